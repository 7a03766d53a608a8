"""Spouts: the sources of topologies, one package a kind of source; `trident.spout` has the interfaces.

Begin with `files/line_spouts.py`, or with `rows/driver_rows.py`, which is shorter. `changes` follows a state of another
topology; `messages` is what the spouts of single messages share (`KafkaSpout`, `RedisStreamRichSpout`).
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
