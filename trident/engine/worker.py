"""The work of a worker: read a part of a batch or gather an exchange, apply the steps, pass on Arrow tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import Any, NamedTuple

import pyarrow as pa

from trident.arrow import cast_table, schema_of
from trident.counts import counting
from trident.engine.fragment_runs import NS, PutBack, PutBacks, TaskOutput, put_backs_of, send
from trident.engine.routing import RowFrame, apply_exchange, check_gathered
from trident.graph import StateNode
from trident.operations.interfaces import TridentOperationContext
from trident.plan import Exchange, Fragment, Sink
from trident.roles import has
from trident.spout.interfaces import BadRow, PartitionRead, TransactionAttempt
from trident.state.interfaces import StateConf, note_state
from trident.state.txid import Txid
from trident.steps.failures import (
    MOST_SHIPPED,
    Bounds,
    Failure,
    StepFailed,
    TooManyRows,
    TupleErrors,
    calls_user_code,
    failing_at,
    failure_of,
    printable_row,
)
from trident.steps.rows import StepRun, doubted_fields, without_impossible
from trident.windows.window_partitions import Now

logger = logging.getLogger(__name__)

Destination = tuple[str, int]
"""An exchange and one of its partitions. A Spark stage has a task for each destination of its level."""

Part = tuple[str, Any]  # a part of a batch: the spout, and what its emitter reads. Or an entry, and a `PutBack`.


@dataclass(frozen=True)
class ReadPart:
    """A part that is read already, or of a spout that has no rows in a batch, for steps that run without rows too."""

    tables: Sequence[pa.Table] = ()
    output: TaskOutput = field(default_factory=TaskOutput)  # what reading gave besides the rows

    def give(self, output: TaskOutput) -> Sequence[pa.Table]:
        """Return the tables; add to `output` what else reading gave."""
        output.rows.update(self.output.rows)
        output.metadata.update(self.output.metadata)
        return self.tables


@dataclass(frozen=True)
class Program:
    """Everything of a topology that a worker needs: fragments, emitters of the spouts, static states, settings, exchanges.

    `speculates`: whether Spark may start a copy of a task that is slow, and takes the result of whichever ends first.
    `resident`: whether workers run it that get each part of an attempt at most once, whatever Spark does with their own tasks.
    `committed`, `commits`: the states that tasks commit, by name, and the entries where they do; the driver commits the others.
    """

    topology: str
    fragments: Mapping[str, Fragment]
    emitters: Mapping[str, Any]
    states: Mapping[str, StateNode]
    settings: Mapping[str, Any]
    exchanges: Mapping[str, Exchange] = field(default_factory=dict)
    levels: tuple[tuple[str, ...], ...] = ()
    most_shipped: int = MOST_SHIPPED  # how many bytes a task may pass on to Spark
    speculates: bool = False
    resident: bool = False
    processing: int | None = None  # how many of the levels process; those after them commit. None: all
    committed: Mapping[str, StateNode] = field(default_factory=dict)
    commits: Collection[str] = ()
    opens: Callable[[Program], WorkerProgram] | None = None  # what a process makes of the program

    @property
    def destinations(self) -> list[list[Destination]]:
        return [
            [(entry, partition) for entry in level for partition in range(self.exchanges[entry].partitions or 1)]
            for level in self.levels
        ]

    def of_width(self, parallelism: int) -> Program:
        """Return the program with so many partitions of each exchange that declares none."""
        wide = {id_: replace(one, partitions=one.partitions or parallelism) for id_, one in self.exchanges.items()}
        return replace(self, exchanges=wide)

    def open_worker(self) -> WorkerProgram:
        return WorkerProgram(self) if self.opens is None else self.opens(self)


class Order(NamedTuple):
    """What all that process and commit a batch are told about the attempt.

    `txids`: by state, the batch's txid as each partition must see it; empty if nothing is committed.
    `sources`: by stage, the digest of the runs of tasks whose rows are to be committed; empty: of this very job.
    """

    attempt: TransactionAttempt
    capture: bool = False  # whether tuples that raise are left out
    txids: Mapping[str, Sequence[Txid]] = {}
    now: Now | None = None  # the time of the batch
    sources: Mapping[int, str] = {}


class WorkerProgram:
    """A program, prepared once in this process, with `more` operations, and without what is `prepared` elsewhere in it."""

    def __init__(self, program: Program, more: Sequence[Any] = (), prepared: Sequence[Any] = ()) -> None:
        self.program, self.bounds = program, Bounds.of(program.settings)
        self._states: dict[str, Any] = {}
        own = [*(op for entry in program.fragments for op in operations_of(program, entry)), *more]
        # By identity: one object may stand at several steps, and two that are equal are two.
        elsewhere = {id(operation) for operation in prepared}
        distinct = {id(operation): operation for operation in own if id(operation) not in elsewhere}
        self.operations = list(distinct.values())
        for operation in self.operations:
            if has(operation, "prepare"):
                operation.prepare(program.settings, TridentOperationContext(operation=type(operation).__name__))

    def state(self, name: str) -> Any:
        if name not in self._states:
            node = self.program.states[name]
            conf = StateConf(self.program.topology, name, settings=self.program.settings, read_only=True)
            self._states[name] = node.spec.factory.make_state(conf, 0, node.spec.required_num_partitions or 1)
            note_state(self._states[name])
        return self._states[name]

    def gather(
        self, entry: str, partition: int, frames: Sequence[RowFrame], run: StepRun, order: Order, output: TaskOutput
    ) -> Iterator[pa.Table]:
        """Give the rows of one partition of an exchange, for what arrived there; add to `output` what else resulted."""
        yield apply_exchange(self.program.exchanges[entry], frames, run)

    def cleanup(self) -> None:
        # Every operation, also if one of them raises.
        for operation in self.operations:
            try:
                if has(operation, "cleanup"):
                    operation.cleanup()
            except Exception:
                logger.exception("cleanup of %r failed", operation)


def operations_of(program: Program, entry: str) -> Iterator[Any]:
    """Iterate over the user objects of an entry and its fragment: operations, and the aggregators of its sinks."""
    fragment = program.fragments[entry]
    exchange = program.exchanges.get(entry)
    for step in fragment.steps:
        yield from step.node.operations
    if exchange is not None:
        yield from exchange.node.operations
    for sink in fragment.sinks:
        yield from aggregators_of(sink)


def aggregators_of(sink: Sink) -> Iterator[Any]:
    if sink.aggregation is not None:
        yield sink.aggregation.aggregator
    if sink.window is not None:
        yield sink.window.member.aggregator


def with_empty_parts(program: Program, parts: Sequence[Part]) -> list[Part]:
    # Some steps give results without rows too.
    there = {spout for spout, _ in parts}
    missing = [name for name in program.emitters if name not in there and program.fragments[name].blocking]
    return [*parts, *((name, ReadPart()) for name in missing)]


def run_parts(worker: WorkerProgram, parts: Sequence[Part], order: Order) -> list[TaskOutput]:
    parts = with_empty_parts(worker.program, parts)
    return [run_part(worker, order, index, *part) for index, part in enumerate(parts)]


def run_part(worker: WorkerProgram, order: Order, index: int, spout: str, part: Any) -> TaskOutput:
    """Read one part, the `index`-th of the batch, and run its fragment. A failure comes back as data."""
    program, output = worker.program, TaskOutput()
    on_error = TupleErrors(order.capture, output.captured, worker.bounds, spout, index)
    run = StepRun(order.attempt, on_error, worker.state)
    if isinstance(part, PutBack):
        # They fail as any tuple does: only on the last try are they letters again.
        if part.lost and not order.capture:
            return TaskOutput(failure=part.lost[0])
        output.captured.extend(part.lost)
        output.frames.extend(part.frames)
        if not part.tables:
            return output
        return _run_fragment(program, program.fragments[spout], [], run, index, output, part.tables)
    fragment, emitter = program.fragments[spout], program.emitters[spout]
    tables = part.give(output) if isinstance(part, ReadPart) else _read(emitter, fragment, part, output, on_error)
    if doubted_fields(fragment.fields):
        tables = (without_impossible(spout, fragment.fields, table, on_error) for table in tables)
    return _run_fragment(program, fragment, tables, run, index, output)


def read_part(program: Program, spout: str, part: Any) -> ReadPart:
    # Ahead of `run_part`, which takes the result in place of the part.
    if isinstance(part, ReadPart):
        return part
    output, emitter, fragment = TaskOutput(), program.emitters[spout], program.fragments[spout]
    with failing_at(spout):
        return ReadPart(list(_read(emitter, fragment, part, output, TupleErrors())), output)


@calls_user_code
def run_entry(
    worker: WorkerProgram, order: Order, entry: str, partition: int, frames: Sequence[RowFrame], level: int = 0
) -> TaskOutput:
    """Gather one partition of an exchange and run its fragment. A failure comes back as data."""
    output, fragment = TaskOutput(level=level), worker.program.fragments[entry]
    partitions = worker.program.exchanges[entry].partitions or 1
    on_error = TupleErrors(order.capture, output.captured, worker.bounds, entry, partition, partitions)
    run = StepRun(order.attempt, on_error, worker.state, output.timers)
    # Before the frames become one table, which needs as much memory once more.
    try:
        check_gathered(worker.program.exchanges[entry], partition, frames, worker.bounds)
    except TooManyRows as error:
        return TaskOutput(failure=failure_of(entry, error, retry=False), level=level)
    tables = worker.gather(entry, partition, frames, run, order, output)
    return _run_fragment(worker.program, fragment, tables, run, partition, output, put_backs_of(frames))


def _run_fragment(
    program: Program,
    fragment: Fragment,
    tables: Iterable[pa.Table],
    run: StepRun,
    index: int,
    output: TaskOutput,
    letters: PutBacks | None = None,
) -> TaskOutput:
    began = perf_counter_ns()
    try:
        with counting() as output.metrics:
            send(fragment, tables, program.exchanges, run, index, output, letters)
    except StepFailed as error:  # whatever a spout or kernel raises fails the attempt, not the process
        # Without what it gave before, which is a part of the rows only, and must not reach a state.
        return TaskOutput(failure=error.failure, level=output.level, fenced=output.fenced)
    output.figures[fragment.entry][NS] += perf_counter_ns() - began
    return output


@calls_user_code
def _read(emitter: Any, fragment: Fragment, part: Any, output: TaskOutput, on_error: TupleErrors) -> Iterator[pa.Table]:
    schema = schema_of(fragment.fields)
    for data in emitter.emit(part):
        if isinstance(data, PartitionRead):
            output.metadata.setdefault(fragment.entry, {})[data.partition] = data
            continue
        if isinstance(data, BadRow):
            on_error(fragment.entry, printable_row(data.row), data.error, data.row, 0)
            continue
        table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        same = table.schema.equals(schema)
        if not same and table.schema.names != schema.names:
            cause = f"emitted the columns {table.schema.names}, but the fields are {schema.names}"
            raise StepFailed(Failure(fragment.entry, None, cause, retry=False, can_heal=False))
        # Wider or dictionary-encoded columns are cast to the declared type; a value that does not fit raises.
        table = table if same or table.schema.types == schema.types else cast_table(table, fragment.fields)
        output.rows[fragment.entry] = output.rows.get(fragment.entry, 0) + table.num_rows
        yield table
