"""What the session of a batch's DataFrame tells of the query that gives it.

A session of Spark Connect tells which queries it runs, not which of them calls, nor when a batch was planned. But plans number
their columns, and the batch's numbers are those of the query that gives it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trident.runtime.query.batch_numbers import QueryBatch
from trident.spark.connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"
_MODE = re.compile(r"ForeachBatchSink.*\], (Update|Complete)\b")
_KEEPS_VALUES = re.compile(r"StateStoreSave|WithState")  # aggregations; operators whose values user code keeps
_BATCH, _NUMBER = re.compile(r"LogicalRDD \[([^\]]*)\]"), re.compile(r"#(\d+)")


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


def mode_of_totals(df: DataFrame) -> str | None:
    """Return the output mode, `Update` or `Complete`, of the query that gives a batch, if rows may replace earlier ones.

    None: each row is new, or no query gives the DataFrame.
    """
    batches = None
    for plan, is_surely_its in _plans_of_queries(df):
        mode = _MODE.search(plan)
        if mode is None or _KEEPS_VALUES.search(plan) is None:
            continue
        if batches is None and not is_surely_its:
            batches = [set(_NUMBER.findall(columns)) for columns in _BATCH.findall(_plan_of_frame(df))]
        if is_surely_its or any(batch <= set(_NUMBER.findall(plan)) for batch in batches or ()):
            return mode[1]
    return None


def _plans_of_queries(df: DataFrame) -> Iterator[tuple[str, bool]]:
    """Iterate over the plans of the queries that may give a batch, each with whether it is known that it does."""
    if is_connect(df):
        yield from ((_plan_of_connect_query(query), False) for query in df.sparkSession.streams.active)
        return
    session: Any = df._jdf.sparkSession()  # noqa: SLF001
    query = session.sparkContext().getLocalProperty(_QUERY_ID)
    jvm: Any = df.sparkSession._jvm  # noqa: SLF001
    streams = session.sharedState().activeStreamingQueries()
    found = (
        [streams.get(jvm.java.util.UUID.fromString(query))] if query else list(streams.values()) if len(streams) else []
    )
    for execution in (stream.lastExecution() for stream in found if stream is not None):
        if execution is not None:  # else it has planned no batch yet
            yield str(execution.toString()), query is not None


# `explain` of both prints the text, to where other threads print, too


def _plan_of_frame(df: Any) -> str:
    return str(df._explain_string(extended=True) if is_connect(df) else df._jdf.queryExecution().toString())  # noqa: SLF001


def _plan_of_connect_query(query: Any) -> str:
    from pyspark.sql.connect.proto import StreamingQueryCommand

    command = StreamingQueryCommand()
    command.explain.extended = True
    return str(query._execute_streaming_query_cmd(command).explain.result)  # noqa: SLF001
