"""The DataFrame of a batch: `QueryBatches` in the driver gives the one that was handed over, and what its session tells of it.

The batch that was handed over is the next one, and there is no other. A session of Spark Connect tells which queries it runs,
not which of them calls, nor when a batch was planned. But plans number their columns, and the batch's numbers are those of the
query that gives it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trident.errors import SpoutError, TopologyError
from trident.fields import Fields, is_nested
from trident.graph import Graph, SpoutNode
from trident.planner import Plan, make_plan
from trident.runtime.engine.dataframe_runner import QueryRows
from trident.runtime.query.batch_numbers import QueryBatch
from trident.runtime.start.placements import DRIVER
from trident.spark.connect import is_connect
from trident.spout.interfaces import BatchCoordinator, Definition, OnNewLog, TransactionAttempt
from trident.spout.query_batches import QueryBatches, fields_of_schema, fits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"
_MODE = re.compile(r"ForeachBatchSink.*\], (Update|Complete)\b")
_KEEPS_VALUES = re.compile(r"StateStoreSave|WithState")  # aggregations; operators whose values user code keeps
_BATCH, _NUMBER = re.compile(r"LogicalRDD \[([^\]]*)\]"), re.compile(r"#(\d+)")


class HandedBatches(BatchCoordinator):
    """Gives one batch at a time, from `hand_over` to its record.

    `begins`: where the batches of its caller begin when the log is new.
    """

    def __init__(self, begins: OnNewLog = "checkpoint") -> None:
        self.begins = begins
        self._df: DataFrame | None = None
        self._definition: Definition | None = None

    def hand_over(self, df: DataFrame | None, definition: Definition | None = None) -> None:
        """Give the rows of the next batch, and what it is; None: there is no more."""
        self._df, self._definition = df, definition

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        return self._definition

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[QueryRows]:
        """Return the DataFrame; Spark cuts it."""
        if self._df is None or definition != self._definition:
            raise SpoutError(f"batch {attempt.txid} is {definition}, and handed over was {self._definition}")
        return [QueryRows(self._df)]


class HandedSpout(QueryBatches):
    """`QueryBatches` as it runs: with the batches that are handed over."""

    def __init__(self, declared: QueryBatches, handed: HandedBatches) -> None:
        self.fields, self.spout_type, self._handed = declared.fields, declared.spout_type, handed
        self.rows_are, self.on_new_log = declared.rows_are, handed.begins

    def get_coordinator(self, conf: Mapping[str, Any]) -> HandedBatches:
        """Return the driver's side."""
        return self._handed


def plan_of_query(graph: Graph, handed: HandedBatches | None = None) -> Plan:
    """Return the plan of a graph as a query runs it: its batches are handed over, the driver commits its states."""
    batches = handed or HandedBatches()
    nodes = tuple(
        replace(node, spout=HandedSpout(node.spout, batches))
        if isinstance(node, SpoutNode) and isinstance(node.spout, QueryBatches)
        else node
        for node in graph.nodes
    )
    plan = make_plan(replace(graph, nodes=nodes))
    return replace(plan, placements=dict.fromkeys(plan.partitions, DRIVER))


def check_rows(df: DataFrame, spout: QueryBatches, topology: str) -> None:
    """Raise `TopologyError` if a query gives totals again and again, and it was not said what its rows are."""
    mode = None if spout.rows_are else mode_of_totals(df)
    if mode is not None:
        raise TopologyError(
            f"topology {topology!r} is given rows of a query that aggregates, or keeps values in your code, in output mode "
            f"{mode.lower()!r}: such a row may be a total that replaces an earlier one, so adding rows up would count "
            "the earlier one again. Give it the rows before Spark's aggregation; or let the query give each total "
            "once, with withWatermark and outputMode('append'); or say what the rows are, to exactly_once or QueryBatches: "
            "rows_are='totals', and keep the newest of each key with Last(), or rows_are='events', if each row counts. Nothing "
            "was written"
        )


def check_columns(df: DataFrame, fields: Fields, topology: str) -> None:
    """Raise `TopologyError` if a DataFrame lacks a column that the topology reads, or has it with another type."""
    if df.isStreaming:
        raise TopologyError(
            f"topology {topology!r} was given a streaming DataFrame: give the function to its writeStream.foreachBatch, which "
            "calls it with one batch after the other"
        )
    there = fields_of_schema(df.schema, fields.names)
    lacking = [name for name in fields.names if name not in there.names]
    if lacking:
        raise TopologyError(
            f"topology {topology!r} reads the column {lacking[0]!r}, and the query has {', '.join(df.columns) or 'none'}: "
            f'select it, as in .withColumnRenamed("…", {lacking[0]!r}), or declare what the query has'
        )
    for column in df.schema.fields:
        name = column.name
        if name in fields.names and not fits(column, fields.type_of(name)):
            found, declared = there.type_of(name), fields.type_of(name)
            raise TopologyError(
                f"topology {topology!r} reads the column {name!r} as {declared}, and the query has it as {found}: cast it, as "
                f'in .withColumn({name!r}, col({name!r}).cast("{declared}")), or declare the type that it has'
                + (". Spark casts a struct by position: name its members with struct(…)" if is_nested(found) else "")
            )


def query_batch_of(df: DataFrame, batch: int) -> QueryBatch:
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
            frame: Any = df  # `explain` prints the text, to where other threads print, too
            text = frame._explain_string(extended=True) if is_connect(df) else frame._jdf.queryExecution().toString()  # noqa: SLF001
            batches = [set(_NUMBER.findall(columns)) for columns in _BATCH.findall(str(text))]
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


def _plan_of_connect_query(query: Any) -> str:
    from pyspark.sql.connect.proto import StreamingQueryCommand

    command = StreamingQueryCommand()
    command.explain.extended = True
    return str(query._execute_streaming_query_cmd(command).explain.result)  # noqa: SLF001
