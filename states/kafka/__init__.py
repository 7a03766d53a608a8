"""Kafka as a sink: the tuples of a stream as records of a topic, each batch one transaction; begin with `state.py`."""

from states.kafka.options import KafkaTopicOptions
from states.kafka.state import KafkaTopicState, ToTopic
from trident.servers.avro import Avro

__all__ = ["Avro", "KafkaTopicOptions", "KafkaTopicState", "ToTopic"]
