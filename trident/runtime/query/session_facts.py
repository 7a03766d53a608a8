"""What the session of a batch's DataFrame tells of the query that gives it. A session of Spark Connect tells nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trident.runtime.query.batch_numbers import QueryBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DEFAULT_SHUFFLE = 200  # Spark's own, which is far too many tasks for a batch
_QUERY_ID = "sql.streaming.queryId"


def query_batch_of(df: DataFrame, batch: int) -> QueryBatch:
    """Return the batch, with what is known of its query."""
    if "connect" in type(df).__module__:
        return QueryBatch(batch)
    session: Any = df._jdf.sparkSession()  # noqa: SLF001  PySpark does not say which query calls
    query = session.sparkContext().getLocalProperty(_QUERY_ID)
    if query is None:
        return QueryBatch(batch)
    run = planned = None
    with suppress(Exception):  # not a public interface of Spark's: what it does not tell is not compared
        for stream in session.sharedState().activeStreamingQueries().values():
            if stream.id().toString() == query:
                run = str(stream.runId().toString())
                planned = int(stream.lastExecution().offsetSeqMetadata().batchTimestampMs())
    return QueryBatch(batch, str(query), run, planned)


def width_of(df: DataFrame, cores: int) -> int:
    """Return how many partitions an exchange has that declares none: those of the session, or as many as there are cores."""
    asked = int(df.sparkSession.conf.get("spark.sql.shuffle.partitions", None) or _DEFAULT_SHUFFLE)
    return cores if asked == _DEFAULT_SHUFFLE else asked
