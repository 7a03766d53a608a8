"""Which batch a query or a job gives: whether it is the next one of the log (rules F1, F2), and its DataFrame.

A definition of a query's batch has `batch` (Spark's number), `base` (batch b is txid b + 1 - base), `query` and `run` (ids),
and `planned_ms`: a batch that Spark repeats keeps that time, another one of its number has another. The definition of a named
batch has its `name`, the greatest `names` so far, in order, and `floor`: what was passed over is not greater. So of a name
above it is known whether it was written, and of one below it is not.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trident.engine.dataframe_runner import QueryRows
from trident.errors import CheckpointMismatchError, SpoutError, TopologyError
from trident.fields import Fields, is_nested
from trident.graph import Graph, SpoutNode
from trident.plan import Plan, make_plan
from trident.run.placements import DRIVER
from trident.spark.connect import is_connect
from trident.spout.interfaces import BatchCoordinator, Definition, OnNewLog, TransactionAttempt
from trident.spout.query_batches import QueryBatches, fields_of_schema, fits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"
_MODE = re.compile(r"ForeachBatchSink.*\], (Update|Complete)\b")
_KEEPS_VALUES = re.compile(r"StateStoreSave|WithState")  # aggregations; operators whose values user code keeps
_BATCH, _NUMBER = re.compile(r"LogicalRDD \[([^\]]*)\]"), re.compile(r"#(\d+)")
BEGIN_AGAIN = (
    'To count everything again, give a new checkpoint, a new log_dir and, once, state_recovery="discard_totals"'
)

NAMES_KEPT = 400


@dataclass(frozen=True)
class QueryBatch:
    """Which batch a query gives; None where the session does not tell."""

    batch: int
    query: str | None = None
    run: str | None = None
    planned_ms: int | None = None

    def is_of(self, definition: Mapping[str, Any]) -> bool:
        return _agree(self.query, definition["query"])

    def is_same(self, definition: Mapping[str, Any]) -> bool:
        """Whether a definition is of this very batch, as far as both sides are known."""
        return (
            self.batch == definition["batch"]
            and self.is_of(definition)
            and _agree(self.planned_ms, definition["planned_ms"])
        )


def definition_of(
    found: QueryBatch,
    txid: int,
    last: Mapping[str, Any] | None,
    begun: Mapping[str, Any] | None = None,  # the definition of the next batch, if it has to be repeated
    adopts: bool = False,
) -> dict[str, Any] | None:
    """Return the definition of the batch that a query gives; None if the log has it already."""
    known = last or begun
    if known is not None and "name" in known:
        raise CheckpointMismatchError(
            f"a query gives batch {found.batch}, but this log has batches that were written by name, the last one "
            f"{known['name']!r}: give foreachBatch a function, or a log_dir, of its own"
        )
    if last is not None and found.is_same(last):
        return None
    problem = _problem(found, txid, last)
    if problem is not None and not adopts:
        raise CheckpointMismatchError(f"{problem}. {BEGIN_AGAIN}")
    if begun is not None and not found.is_same(begun):
        raise CheckpointMismatchError(
            f"a query gives batch {found.batch} (query {found.query}), but the log has begun batch {begun['batch']} of query "
            f"{begun['query']}, and transactional states may have a part of it: start the query with the checkpoint that has "
            f"this batch. {BEGIN_AGAIN}"
        )
    told = {"query": found.query, "run": found.run, "planned_ms": found.planned_ms}
    return dict(begun) if begun is not None else {"batch": found.batch, "base": found.batch - txid, **told}


def _problem(found: QueryBatch, txid: int, last: Mapping[str, Any] | None) -> str | None:
    """Say why this is not the next batch, and which of the two sides to restore; None if it is."""
    if last is None:
        if found.batch == 0:
            return None
        return (
            f"Spark gives batch {found.batch} of query {found.query}, but the log has no batch of any query: the log was lost, "
            "the function was renamed, or the checkpoint is that of another program. Restore the log, name the folder where it "
            "is (log_dir), or give the function its former name"
        )
    ends = f"the log ends with batch {last['batch']} of query {last['query']} (txid {txid})"
    gives = f"Spark gives batch {found.batch}"
    if not found.is_of(last):
        return (
            f"{gives} of query {found.query}, but {ends}: the checkpoint was deleted, or two queries use one function or one "
            "log. Restore the checkpoint that belongs to the log; give each query a function and a log_dir of its own"
        )
    if found.batch == last["batch"]:
        return (
            f"{gives}, planned at {found.planned_ms} ms, but the batch {last['batch']} of the log was planned at "
            f"{last['planned_ms']} ms: the checkpoint was restored from an older copy, and the same number means other rows "
            "now. Restore the checkpoint that belongs to the log"
        )
    if found.batch < last["batch"]:
        return (
            f"{gives}, but {ends}: the checkpoint was deleted or restored from an older copy, and the same numbers mean other "
            "rows now. Restore the checkpoint that belongs to the log"
        )
    if found.batch > last["batch"] + 1:
        return (
            f"{gives}, but {ends}: the log is older than the checkpoint, or another function was given the batches between. "
            "Restore the log that belongs to the checkpoint, and the states with it"
        )
    return None


def _agree(one: Any, other: Any) -> bool:
    return one is None or other is None or one == other


def definition_of_name(
    name: str, last: Mapping[str, Any] | None, begun: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Return the definition of a named batch; None if it was written already. `begun` has to be finished first."""
    known = last or begun
    if known is not None and "name" not in known:
        raise CheckpointMismatchError(
            f"write(batch={name!r}): the batches of this log come from a query, the last one is {known['batch']}: give jobs "
            "that name their batches a function, or a log_dir, of their own"
        )
    names: list[str] = [] if last is None else list(last["names"])
    floor = None if last is None else last["floor"]
    if name in names or name == floor:
        return None
    if floor is not None and name <= floor:
        raise SpoutError(
            f"write(batch={name!r}): the log remembers the {len(names)} greatest names, those after {floor!r}, and this one is "
            "not after it: whether it was written cannot be known. Name batches in increasing order, as by their date"
        )
    if begun is not None and begun["name"] != name:
        raise SpoutError(
            f"write(batch={name!r}): the batch {begun['name']!r} was begun and is not finished, and transactional states may "
            f"have a part of it: write batch {begun['name']!r} first"
        )
    insort(names, name)
    if len(names) > NAMES_KEPT:
        floor = names.pop(0)
    return {"name": name, "names": names, "floor": floor}


class HandedBatches(BatchCoordinator):
    """Gives one batch at a time, from `hand_over` to its record."""

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
        if self._df is None or definition != self._definition:
            raise SpoutError(f"batch {attempt.txid} is {definition}, and handed over was {self._definition}")
        return [QueryRows(self._df)]


class HandedSpout(QueryBatches):
    """`QueryBatches` as it runs: with the batches that are handed over."""

    def __init__(self, declared: QueryBatches, handed: HandedBatches) -> None:
        self.fields, self.spout_type, self._handed = declared.fields, declared.spout_type, handed
        self.rows_are, self.on_new_log = declared.rows_are, handed.begins

    def get_coordinator(self, conf: Mapping[str, Any]) -> HandedBatches:
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
    """Return the output mode of the query that gives a batch, if rows may replace earlier ones; else None."""
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
        from pyspark.sql.connect.proto import StreamingQueryCommand

        command = StreamingQueryCommand()
        command.explain.extended = True
        for one in df.sparkSession.streams.active:
            connected: Any = one
            yield str(connected._execute_streaming_query_cmd(command).explain.result), False  # noqa: SLF001
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
