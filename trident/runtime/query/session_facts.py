"""What the session of a batch's DataFrame tells of the query that gives it.

A session of Spark Connect tells which queries it runs, not which of them calls, nor when a batch was planned.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trident.runtime.query.batch_numbers import QueryBatch
from trident.spark.connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"


def query_batch_of(df: DataFrame, batch: int) -> QueryBatch:
    """Return the batch, with what is known of its query."""
    from pyspark.errors import PySparkException

    if is_connect(df):
        queries: list[Any] = []
        with suppress(PySparkException):  # as below
            queries = df.sparkSession.streams.active
        return QueryBatch(batch, *((queries[0].id, queries[0].runId) if len(queries) == 1 else ()))
    session: Any = df._jdf.sparkSession()  # noqa: SLF001  PySpark does not say which query calls
    query = session.sparkContext().getLocalProperty(_QUERY_ID)
    if query is None:
        return QueryBatch(batch)
    run = planned = None
    with suppress(Exception):  # not a public interface of Spark's: what it does not tell is not compared
        jvm: Any = df.sparkSession._jvm  # noqa: SLF001
        streams = session.sharedState().activeStreamingQueries()
        stream = streams.get(jvm.java.util.UUID.fromString(query))  # the end of an iteration costs PySpark 15 ms
        run = str(stream.runId().toString())
        planned = int(stream.lastExecution().offsetSeqMetadata().batchTimestampMs())
    return QueryBatch(batch, str(query), run, planned)
