"""Records of Kafka topics, in batches for Trident, or record by record for bolts; the extra `kafka`.

Begin with `spout.py`. Batches: `range_coordinator.py` (the driver's side, and what a definition is) and `range_reader.py` (the
workers' side). Single records: `topic_queue.py`, `offset_commits.py`. For both `positions.py` decides where a partition begins
and what was lost; `record_tables.py` makes tuples of records.
"""

from spouts.kafka.spout import KafkaSpout, OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from spouts.kafka.value_formats import ByColumns, ByRecord, Json
from trident.servers.avro import Avro

__all__ = [
    "Avro",
    "ByColumns",
    "ByRecord",
    "Json",
    "KafkaSpout",
    "OpaqueTridentKafkaSpout",
    "TransactionalTridentKafkaSpout",
]
