"""Records of Kafka topics as single messages; offsets are committed only up to the lowest that is not acknowledged.

`pip install 'trident-spark[kafka]'`. Begin with `spout.py`, then `topic_queue.py` (a task's partitions as a queue) and
`offset_window.py` (what of a partition is done). `spouts.kafka` reads topics in batches, for Trident.
"""

from spouts.kafka_messages.spout import KafkaSpout

__all__ = ["KafkaSpout"]
