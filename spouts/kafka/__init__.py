"""Records of Kafka topics, each exactly once; `pip install 'trident-spark[kafka]'`.

Begin with `spout.py` (the two spouts), then `batch_ranges.py` (what a definition is), `range_coordinator.py` (the driver's
side: which offsets make up a batch) and `range_reader.py` (the workers' side: reads them). Formats of values are in
`value_formats.py` and `record_functions.py`.
"""

from spouts.kafka.record_functions import ByColumns, ByRecord
from spouts.kafka.spout import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from spouts.kafka.value_formats import Json
from trident.servers.avro import Avro

__all__ = [
    "Avro",
    "ByColumns",
    "ByRecord",
    "Json",
    "OpaqueTridentKafkaSpout",
    "TransactionalTridentKafkaSpout",
]
