"""Spouts: the sources of topologies, one package a source.

`rows` has sources whose rows are in the driver (`FixedBatchSpout`, `FeederBatchSpout`), `text_files` has `TextFileSpout`,
`files` has `CsvFileSpout`, `JsonFileSpout` and `ParquetFileSpout`, `delta` has `DeltaSpout`,
`kafka` has `OpaqueTridentKafkaSpout` and `TransactionalTridentKafkaSpout`, `rate` has `RateSpout` for load tests,
`dataframes` has `DataFrameSpout` and `streaming` has `StructuredStreamingSpout`, whose rows stay in Spark.
`redis_streams` has `RedisStreamSpout` and `TransactionalRedisStreamSpout`.
`redis_messages`, `kafka_messages` and `rabbitmq` have `RedisStreamRichSpout`, `KafkaSpout` and `RabbitMQSpout`, which emit
single messages and acknowledge each of them at its queue; `RedisStreamBolt` writes such a queue.
Begin with `text_files/spout.py`, or with `rows/fixed_batch.py`, which is shorter. `trident.spout` has the interfaces.
"""

from spouts.dataframes import DataFrameSpout
from spouts.delta import DeltaSpout
from spouts.files import CsvFileSpout, JsonFileSpout, ParquetFileSpout
from spouts.kafka import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from spouts.kafka_messages import KafkaSpout
from spouts.rabbitmq import RabbitMQSpout
from spouts.rate import RateSpout
from spouts.redis_messages import RedisStreamBolt, RedisStreamRichSpout
from spouts.redis_streams import RedisStreamSpout, TransactionalRedisStreamSpout
from spouts.rows import FeederBatchSpout, FixedBatchSpout
from spouts.streaming import StructuredStreamingSpout
from spouts.text_files import TextFileSpout

__all__ = [
    "CsvFileSpout",
    "DataFrameSpout",
    "DeltaSpout",
    "FeederBatchSpout",
    "FixedBatchSpout",
    "JsonFileSpout",
    "KafkaSpout",
    "OpaqueTridentKafkaSpout",
    "ParquetFileSpout",
    "RabbitMQSpout",
    "RateSpout",
    "RedisStreamBolt",
    "RedisStreamRichSpout",
    "RedisStreamSpout",
    "StructuredStreamingSpout",
    "TextFileSpout",
    "TransactionalRedisStreamSpout",
    "TransactionalTridentKafkaSpout",
]
