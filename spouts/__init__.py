"""Spouts: the sources of topologies, one package a kind of source.

`rows` has sources whose rows are made in the driver (`FixedBatchSpout`, `FeederBatchSpout`, and `RateSpout` for load tests),
`files` has `TextFileSpout`, `CsvFileSpout`, `JsonFileSpout` and `ParquetFileSpout`, `delta` has `DeltaSpout`, `spark` has
`DataFrameSpout` and `StructuredStreamingSpout`, whose rows stay in Spark.
`changes` has `StateChangesSpout`, which follows a state of another topology.
`kafka` has `OpaqueTridentKafkaSpout` and `TransactionalTridentKafkaSpout`, `redis` has `TransactionalRedisStreamSpout`.
`KafkaSpout` and `RedisStreamRichSpout` (in `kafka` and `redis`) emit single messages and acknowledge each of them at its
queue, by what is in `messages`; `RedisStreamBolt` writes such a queue.
Begin with `files/line_spouts.py`, or with `rows/driver_rows.py`, which is shorter. `trident.spout` has the interfaces.
"""

from spouts.changes import StateChangesSpout
from spouts.delta import DeltaSpout
from spouts.files import CsvFileSpout, JsonFileSpout, ParquetFileSpout, TextFileSpout
from spouts.kafka import KafkaSpout, OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from spouts.redis import RedisStreamBolt, RedisStreamRichSpout, TransactionalRedisStreamSpout
from spouts.rows import FeederBatchSpout, FixedBatchSpout, RateSpout
from spouts.spark import DataFrameSpout, StructuredStreamingSpout

__all__ = [
    "CsvFileSpout", "DataFrameSpout", "DeltaSpout", "FeederBatchSpout", "FixedBatchSpout", "JsonFileSpout",
    "KafkaSpout", "OpaqueTridentKafkaSpout", "ParquetFileSpout", "RateSpout", "RedisStreamBolt", "RedisStreamRichSpout",
    "StateChangesSpout", "StructuredStreamingSpout", "TextFileSpout", "TransactionalRedisStreamSpout",
    "TransactionalTridentKafkaSpout",
]  # fmt: skip
