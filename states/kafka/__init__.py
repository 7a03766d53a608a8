"""Kafka as a sink: the tuples of a stream as records of a topic, each batch one transaction of Kafka's.

Begin with `state.py`, also for how a tuple becomes a record; `topic_sink.py` has the life of a commit, the transactions and the
errors.
"""

from states.kafka.options import KafkaTopicOptions
from states.kafka.state import KafkaTopicState, ToTopic
from trident.servers.avro import Avro

__all__ = ["Avro", "KafkaTopicOptions", "KafkaTopicState", "ToTopic"]
