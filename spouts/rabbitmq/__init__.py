"""Messages of a RabbitMQ queue, each unacknowledged there until its tuple tree is complete.

It takes the extra `rabbitmq`. Begin with `spout.py`, then `queue_consumer.py` (what becomes of a message at the
broker); `broker.py` calls it. `Json` and `Avro` are the formats of Kafka's spouts.
"""

from spouts.kafka.value_formats import Json
from spouts.rabbitmq.spout import RabbitMQSpout
from trident.servers.avro import Avro

__all__ = ["Avro", "Json", "RabbitMQSpout"]
