"""`DataFrameRunner`: each attempt is one query of DataFrames, with what Spark Connect has: no RDD, no SparkContext.

Between the tasks travel rows of three columns: `at` chooses the task of the next stage, as Spark's own hash sends a number to
it; `to` says which destination the row is for, `item` is what is sent. A row for a later stage passes through the tasks
between.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any

import cloudpickle
import pyarrow as pa

from trident.engine.fragment_runs import TaskOutput
from trident.engine.runners import InProcessRunner, Runner, pickle_program, tag_of
from trident.engine.tasks import Job, Routes, Sent, merge_sent, routes_of, run_level_task, run_parts_task, skips
from trident.engine.worker import Order, Part, Program, with_empty_parts
from trident.spark.job_errors import QueryStopped, said_as_failure
from trident.spout.interfaces import TransactionAttempt
from trident.spout.query_batches import cast_of
from trident.steps.failures import StepFailed, failure_of, in_lists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SCHEMA = "at int, to int, item binary"
_ROWS = pa.schema([("at", pa.int32()), ("to", pa.int32()), ("item", pa.binary())])
_RESULT = -1
_MOST_BYTES = 4 << 20  # of items that go to Spark at once, unless one has more
_PIECE_ROWS = 1 << 16
_APART = 1 << 20  # the number of the first part beside those of a DataFrame, which has fewer partitions
_SEED = 42
_BITS = 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class QueryRows:
    """The part of a batch that is a DataFrame: Spark cuts it into tasks. Stays in the driver."""

    df: DataFrame


class DataFrameRunner(Runner):
    """Runs each attempt as one query: a stage over the parts of the batch, and a stage per level of exchanges.

    `session`: evaluates the batches of a topology that Trident drives, and interrupts them; None: a query gives the batches.
    `stop`: ends a session that ends with the topology.
    """

    def __init__(
        self,
        program: Program,
        parallelism: int,
        session: SparkSession | None = None,
        stop: Callable[[], None] | None = None,
    ) -> None:
        self.parallelism = parallelism
        self.program = program.of_width(parallelism)
        self._session, self._stop = session, stop
        self._id, self._pickled = uuid.uuid4().hex, pickle_program(self.program)
        self._empty: InProcessRunner | None = None
        # Batch after batch has the same columns.
        self._columns_of = lru_cache(maxsize=8)(self._columns)
        self._routes_of = cache(lambda any_way: routes_of(self.program, any_way, False, parallelism))

    def process(self, parts: Sequence[Part], order: Order) -> TaskOutput:
        job = Job(self._id, self._pickled, order)
        routes = self._routes_of(skips(parts, order))
        others = [part for part in parts if not isinstance(part[1], QueryRows)]
        try:
            with self._job_tag(order.attempt), said_as_failure():
                first = self._first_stage(job, routes, parts, others)
                items = [] if first is None else self._run_stages(job, routes, first)
        except StepFailed as error:
            return TaskOutput(failure=error.failure)
        except QueryStopped as stopped:
            if self._session is None:
                raise
            return TaskOutput(failure=failure_of("spark", Exception(f"interrupted: {stopped.__cause__}")))
        if items:
            return merge_sent(items)
        if self._empty is None:  # a copy: the objects of the plan may be prepared where states are committed
            self._empty = InProcessRunner(cloudpickle.loads(self._pickled), self.parallelism)
        return self._empty.process(others, order)  # Spark starts no task where it sees no rows

    @contextmanager
    def _job_tag(self, attempt: TransactionAttempt) -> Iterator[None]:
        if self._session is not None:
            self._session.addTag(tag_of(self._id, attempt))
        try:
            yield
        finally:
            if self._session is not None:
                self._session.removeTag(tag_of(self._id, attempt))

    def _first_stage(self, job: Job, routes: Routes, parts: Sequence[Part], others: Sequence[Part]) -> DataFrame | None:
        session, rows = self._session, None
        for spout, part in parts:
            if isinstance(part, QueryRows):
                session = part.df.sparkSession
                columns = part.df.selectExpr(*self._columns_of(spout, part.df.schema))
                names = self.program.fragments[spout].fields.names
                rows = columns.mapInArrow(partial(_query_task, job, routes, spout, names), _SCHEMA)
        apart = others if rows is not None else with_empty_parts(self.program, others)
        if not apart or session is None:
            return rows
        numbered = [(number, cloudpickle.dumps(part)) for number, part in enumerate(apart, _APART)]
        small = session.createDataFrame(numbered, "number int, part binary")
        sent = small.mapInArrow(partial(_parts_task, job, routes), _SCHEMA)
        return sent if rows is None else rows.union(sent)

    def _columns(self, spout: str, schema: StructType) -> list[str]:
        fields, there = self.program.fragments[spout].fields, {one.name: one for one in schema.fields}
        casts = (cast_of(there[name], fields.type_of(name)) for name in fields.names)
        return [f"{one} AS c{at}" for at, one in enumerate(casts)]

    def _run_stages(self, job: Job, routes: Routes, rows: DataFrame) -> list[bytes | Sent]:
        for stage, level in enumerate(routes.levels, 1):
            rows = rows.repartition(len(level), "at").mapInArrow(partial(_level_task, job, routes, stage), _SCHEMA)
        return [pickle.loads(item) for item in _collect_arrow(rows).column("item").to_pylist()]

    def cancel(self, attempt: TransactionAttempt) -> None:
        if self._session is not None:
            self._session.interruptTag(tag_of(self._id, attempt))

    def close(self) -> None:
        if self._empty is not None:
            self._empty.close()
        if self._stop is not None:
            self._stop()


def _collect_arrow(df: DataFrame) -> pa.Table:
    if not hasattr(df, "toArrow"):  # PySpark 3.5
        collected: Any = df
        batches = collected._collect_as_arrow()  # noqa: SLF001
        return pa.Table.from_batches(batches, None if batches else _ROWS)
    return df.toArrow()


def _query_task(
    job: Job, routes: Routes, spout: str, names: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    # PySpark maps only columns whose names need no quotes, so they come under others.
    from pyspark import TaskContext

    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    yield from _first_rows(job, routes, task, (spout, _pieces(batches, names)))
    for _ in batches:  # Spark keeps a worker only if it reads all of its input
        pass


def _parts_task(job: Job, routes: Routes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number, part in zip(batch.column("number").to_pylist(), batch.column("part").to_pylist(), strict=True):
            yield from _first_rows(job, routes, number, cloudpickle.loads(part))


def _first_rows(job: Job, routes: Routes, task: int, part: Part) -> Iterator[pa.RecordBatch]:
    return _rows(routes, 0, map(_destination_and_bytes, run_parts_task(job, routes, task, iter([(task, part)]))))


def _level_task(job: Job, routes: Routes, stage: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Serve the destinations of this level whose rows come here; pass on the rows of others."""
    level = routes.levels[stage - 1]
    here: dict[int, list[bytes]] = {}

    def passed_on() -> Iterator[tuple[int, bytes]]:
        for batch in batches:
            for to, item in zip(batch.column("to").to_pylist(), batch.column("item").to_pylist(), strict=True):
                if to in level:
                    here.setdefault(to, []).append(item)
                else:
                    yield to, item

    # First all that passes through: only then all rows of the destinations here have come.
    yield from _rows(routes, stage, passed_on())
    for to in sorted(here):
        # Taken out, so that its bytes go as soon as they are tables.
        arrived = (pickle.loads(item) for item in here.pop(to))
        sent = run_level_task(job, routes, stage, to - level.start, arrived)
        yield from _rows(routes, stage, map(_destination_and_bytes, sent))


def _destination_and_bytes(sent: tuple[int, Sent] | bytes) -> tuple[int, bytes]:
    # The last stage gives the result alone.
    return (_RESULT, pickle.dumps(sent)) if isinstance(sent, bytes) else (sent[0], pickle.dumps(sent[1]))


def _rows(routes: Routes, stage: int, sent: Iterable[tuple[int, bytes]]) -> Iterator[pa.RecordBatch]:
    """Give what a task of a stage sends as rows of Spark, several at once."""
    at = _task_chooser(routes, stage)
    for rows in in_lists(((at(to), to, item) for to, item in sent), lambda row: len(row[2]), _MOST_BYTES):
        columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _ROWS, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=_ROWS)


def _task_chooser(routes: Routes, stage: int) -> Callable[[int], int]:
    """Return what gives the value of `at` for a destination: one for each task of the next level, or for none."""
    if stage == len(routes.levels):
        return lambda to: 0
    following = routes.levels[stage]
    numbers = numbers_for(len(following))
    return lambda to: numbers[(to - following.start) % len(following)]


def _pieces(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.Table]:
    # Spark's batches are small, and a pass over a fragment has a price of its own.
    for kept in in_lists((batch for batch in batches if batch.num_rows), lambda batch: batch.num_rows, _PIECE_ROWS):
        yield pa.Table.from_batches(kept).rename_columns(list(names)).combine_chunks()


def partition_of(number: int, partitions: int) -> int:
    """Return the partition to which Spark's `repartition(partitions, column)` sends an `int`."""
    # Murmur3 of four bytes.
    k = (number & _BITS) * 0xCC9E2D51 & _BITS
    k = (k << 15 | k >> 17) * 0x1B873593 & _BITS
    h = _SEED ^ k
    h = (h << 13 | h >> 19) * 5 + 0xE6546B64 & _BITS
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & _BITS
    h = (h ^ h >> 13) * 0xC2B2AE35 & _BITS
    h ^= h >> 16
    return (h - (1 << 32) if h >> 31 else h) % partitions


@lru_cache(maxsize=64)
def numbers_for(partitions: int) -> tuple[int, ...]:
    """Return for each partition the least number that is sent there."""
    found: dict[int, int] = {}
    for number in count():
        found.setdefault(partition_of(number, partitions), number)
        if len(found) == partitions:
            return tuple(found[each] for each in range(partitions))
    raise AssertionError("unreachable")
