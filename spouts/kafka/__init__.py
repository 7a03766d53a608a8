"""Records of Kafka topics, in batches for Trident, or record by record for bolts; the extra `kafka`.

Begin with `spout.py`. For the spouts of batches go on with `batch_ranges.py` (what a definition is), `range_coordinator.py`
(the driver's side: which offsets make up a batch) and `range_reader.py` (the workers' side: reads them). `KafkaSpout` emits
single records: `topic_queue.py` has a task's partitions as a queue, `offset_commits.py` commits offsets up to the lowest that
is not acknowledged. For both, `positions.py` decides where a partition begins, and where it goes on if records are gone.
`clients.py` imports librdkafka. Formats of values are in `value_formats.py`.
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
