"""Kafka as a sink: the tuples of a stream as records of a topic, each batch one transaction of Kafka's.

Begin with `state.py`; `topic_sink.py` has the life of a commit, the transactions and the errors,
`to_topic.py` how a tuple becomes a record.
"""

from states.kafka.state import KafkaTopicOptions, KafkaTopicState
from states.kafka.to_topic import ToTopic
from trident.servers.avro import Avro

__all__ = ["Avro", "KafkaTopicOptions", "KafkaTopicState", "ToTopic"]
