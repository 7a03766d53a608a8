"""Records of Kafka topics, in batches for Trident, or record by record for bolts; the extra `kafka`.

Begin with `spout.py`. For the spouts of batches go on with `range_coordinator.py` (the driver's side: what a definition is, and
which offsets make up a batch) and `range_reader.py` (the workers' side: reads them). `KafkaSpout` emits single records:
`topic_queue.py` has a task's partitions as a queue, `offset_commits.py` commits offsets up to the lowest that is not
acknowledged. For both, `positions.py` decides where a partition begins, where it goes on if records are gone, and says what was
lost; `record_tables.py` makes tuples of records. `clients.py` alone imports librdkafka. Formats of values are in
`value_formats.py`.
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
