"""The spouts, one row each, as the suite of `trident.testing` checks them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.spouts import file_sources, row_sources, server_sources
from trident.testing import SpoutPromise, SpoutSource

__all__ = ["SPOUTS", "Spout"]


@dataclass(frozen=True)
class Spout:
    """One row.

    Attributes
    ----------
    source
        What the suite calls for each check; called with the server, if there is one.
    makes
        The name of the spout in `spouts`; empty: it is a user's.
    server
        Which server the source is on, if it is on one.
    broken
        The promises that it is known to break, each with the reason.
    """

    name: str
    source: Callable[..., Any]
    makes: str = ""
    server: Literal["", "kafka", "redis", "spark"] = ""
    broken: Mapping[SpoutPromise, str] = field(default_factory=dict)


PY4J = {SpoutPromise.CLOSE: "Py4J keeps the thread and the socket of a query's calls as long as Spark runs"}


def lasting(source: type[SpoutSource]) -> type[SpoutSource]:
    """Have another process read the source too, which its own tests do without."""
    return type(source.__name__, (source,), {"durable": True})


SPOUTS = {
    spout.name: spout
    for spout in (
        Spout("fixed", row_sources.FixedRows, "FixedBatchSpout"),
        Spout("feeder", row_sources.FedRows, "FeederBatchSpout"),
        Spout("rate", row_sources.NumberedRows, "RateSpout"),
        Spout("text", lasting(file_sources.TextSource), "TextFileSpout"),
        Spout("csv", lasting(file_sources.CsvSource), "CsvFileSpout"),
        Spout("json", lasting(file_sources.JsonSource), "JsonFileSpout"),
        Spout("parquet", lasting(file_sources.ParquetSource), "ParquetFileSpout"),
        Spout("delta", lasting(file_sources.DeltaSource), "DeltaSpout"),
        Spout("delta-changes", lasting(file_sources.DeltaChangesSource), "DeltaSpout"),
        Spout("dataframe", row_sources.WrittenRows, "DataFrameSpout"),
        Spout("kafka", server_sources.TransactionalTopics, "TransactionalTridentKafkaSpout", "kafka"),
        Spout("kafka-opaque", server_sources.OpaqueTopics, "OpaqueTridentKafkaSpout", "kafka"),
        Spout("redis-streams", server_sources.StreamRanges, "TransactionalRedisStreamSpout", "redis"),
        Spout("state-changes", server_sources.StateFeed, "StateChangesSpout", "redis"),
        Spout("streaming", server_sources.Streamed, "StructuredStreamingSpout", "spark", PY4J),
        # Spouts of a user's, as docs/writing-a-spout.md writes them.
        Spout("batches", row_sources.WrittenBatches),
        Spout("partitioned", row_sources.Partitions),
        Spout("partitioned-opaque", row_sources.OpaquePartitions),
        Spout("csv-example", row_sources.CsvExample),
        Spout("rich", row_sources.QueuedWords),
    )
}
