"""`ReplayCheck`: processes some batches a second time, and compares what reaches the states: a replay must give the same."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple
from zlib import crc32

import cloudpickle
import numpy as np
import pyarrow as pa

from trident.arrow import one_table, schema_of
from trident.comparing import first_difference, row_text
from trident.counts import counting
from trident.engine.fragment_runs import PutBack, TaskOutput, entry_input, run_step, send, whole
from trident.engine.routing import RowFrame, apply_exchange
from trident.engine.runners import InProcessRunner, pickle_program, process_or_raise, without_peek
from trident.engine.worker import Order, Part, Program, aggregators_of, operations_of, read_part, with_empty_parts
from trident.graph import AggregateNode, RepartitionNode
from trident.observe.events import StepDifference
from trident.operations import ArgMax, ArgMin, Collect, First, Last, MaxWithComparator, MinWithComparator, TopN
from trident.operations.assemblies import FirstRows
from trident.operations.builtin import MinBy
from trident.operations.several import MultiAggregate
from trident.plan import Fragment, Sink, Step
from trident.steps.aggregates import merge_all, merge_partials
from trident.steps.failures import TupleErrors, failing_at, failure_of
from trident.steps.key_columns import are_removals
from trident.steps.rows import StepRun, columns_of
from trident.windows.window_rows import AT, MARKS, PANE, ROWS, bigint, combine_by

logger = logging.getLogger(__name__)

_MOST_BYTES = 64 << 20  # a larger batch is not processed twice, because its rows are all in the memory of this process

_MOST_TUPLES = 1000  # so many tuples of a table are tried one by one

_CLOSE_S = 1.0
_BY_ORDER = (
    ArgMax, ArgMin, Collect, First, FirstRows, Last, MaxWithComparator, MinBy, MinWithComparator, TopN,
)  # fmt: skip


class Checked(NamedTuple):
    """What processing a batch twice showed."""

    done: bool  # False if that failed
    difference: StepDifference | None = None  # the first difference; None if there is none


class ReplayCheck:
    """Processes a `share` (0 … 1) of the batches twice, as a hash of their txids says. Thread-safe: one after the other."""

    def __init__(self, program: Program, share: float = 1.0, parallelism: int = 2) -> None:
        self._program, self._share, self._parallelism = program, share, parallelism
        self._lock = threading.Lock()
        self._runner: InProcessRunner | None = None
        self._has_warned = False
        self._may_turn = not _goes_by_order(program)
        sinks = (sink for fragment in program.fragments.values() for sink in fragment.sinks)
        self._sinks = {(sink.target, sink.port): sink for sink in sinks if sink.target not in program.exchanges}

    def chooses(self, txid: int, parts: Sequence[Part], size: int) -> bool:
        """Whether a batch of about `size` bytes is to be processed twice."""
        if self._hash(txid) >= self._share * (1 << 32):
            return False
        if not parts or size > _MOST_BYTES:
            return False
        return not any(isinstance(part, PutBack) for _, part in parts)

    def read(self, parts: Sequence[Part]) -> list[Part]:
        return [(spout, read_part(self._program, spout, part)) for spout, part in parts]

    def check(self, parts: Sequence[Part], order: Order, output: TaskOutput | None = None) -> Checked:
        """Process a batch a second time, before that a first time without `output`. What goes wrong ends this check alone."""
        with self._lock, counting():  # what operations count here is of no batch
            try:
                return Checked(True, self._difference(self.read(parts), order, output))
            except Exception as error:  # noqa: BLE001  the batch itself went well
                if not self._has_warned:
                    self._has_warned, failure = True, failure_of("", error)
                    logger.warning(
                        "topology %s: batch %s could not be processed twice: step %r: %s; later ones are only counted",
                        self._program.topology, order.attempt, failure.step, failure.cause,
                    )  # fmt: skip
                return Checked(False)

    def close(self) -> None:
        # An operation that does not return holds the lock: it is left.
        if self._lock.acquire(timeout=_CLOSE_S):
            try:
                if self._runner is not None:
                    self._runner.close()
            finally:
                self._lock.release()

    def _difference(self, parts: Sequence[Part], order: Order, output: TaskOutput | None) -> StepDifference | None:
        runner = self._runner = self._runner or _copy_of(self._program, self._parallelism)
        run = StepRun(order.attempt, TupleErrors(bounds=runner.worker.bounds), runner.worker.state)
        first = output or process_or_raise(runner, parts, order)
        # Whether rows come in another order: of a share of the batches in one way each, of all in both.
        ways = [False, True] if self._may_turn else [False]
        for reordered in ways if self._share == 1 else [ways[self._hash(order.attempt.txid) % len(ways)]]:
            backwards = ((spout, replace(part, tables=_reverse(part.tables))) for spout, part in reversed(parts))
            again = process_or_raise(runner, list(backwards) if reordered else parts, order)
            found = self._differing(first, again, run, reordered)
            if found is not None:
                return next((one for one in _compared_steps(runner.program, run, parts) if one is not None), found)
        return None

    def _hash(self, txid: int) -> int:
        return crc32(f"{self._program.topology}/{txid}".encode())

    def _differing(self, first: TaskOutput, second: TaskOutput, run: StepRun, reordered: bool) -> StepDifference | None:
        """Return how what the two runs sent differs for the first state for which it does; None if there is none."""
        for sink in self._sinks.values():
            sent = [_tables_for(sink, output) for output in (first, second)]
            if any(sent):
                schema = next(table.schema for tables in sent for table in tables)
                one, other = (_reaching(sink, tables or [schema.empty_table()], run) for tables in sent)
                if (found := _difference_of(sink.target, one, other, reordered)) is not None:
                    return found
        return None


def _copy_of(program: Program, parallelism: int) -> InProcessRunner:
    # Operations of its own; a `peek` is left out, as what it does would be done again.
    fragments = {
        entry: replace(each, steps=tuple(replace(step, node=without_peek(step.node)) for step in each.steps))
        for entry, each in program.fragments.items()
    }
    copy = cloudpickle.loads(pickle_program(replace(program, fragments=fragments, opens=None)))
    return InProcessRunner(copy, parallelism)


def _goes_by_order(program: Program) -> bool:
    # Then other results for another order are as they should be.
    exchanges = [exchange.node for exchange in program.exchanges.values()]
    shuffles = any(isinstance(node, RepartitionNode) and node.routing.kind == "shuffle" for node in exchanges)
    if shuffles and any(fragment.blocking for fragment in program.fragments.values()):
        return True  # `shuffle` deals out the tuples in their order, and an aggregate of a partition sees which it got
    return any(_is_by_order(operations_of(program, entry)) for entry in program.fragments)


def _tables_for(sink: Sink, output: TaskOutput) -> list[pa.Table]:
    tables: list[Any] = [*output.sinks.get(sink.target, ())]
    tables += [frame.data for frame in output.frames if (frame.target, frame.port) == (sink.target, sink.port)]
    if sink.join is not None:
        return [each for each in tables if each.column_names[0] == MARKS[sink.port]]
    return [each for each in tables if are_removals(each) == (sink.removes is not None)]


def _is_by_order(operations: Iterable[Any]) -> bool:
    """Whether an operation is a built-in whose result depends on the order of the tuples, as it should (`First`, ties …)."""
    return any(
        _is_by_order(part.aggregator for part in each.parts)
        if isinstance(each, MultiAggregate)
        else isinstance(each, _BY_ORDER)
        for each in operations
    )


def _reaching(sink: Sink, tables: Sequence[pa.Table], run: StepRun) -> pa.Table:
    """Return what tables that were sent to a state come to: a row for each key if they are partials, else their rows."""
    if sink.aggregation is not None and sink.aggregation.combines:
        whole_ = merge_all(sink.aggregation, list(tables))
        if whole_ is not None:
            return whole_
        rows = [(*key, value) for key, value in zip(*merge_partials(sink.aggregation, list(tables)), strict=True)]
        fields = sink.aggregation.partial
        return pa.table(columns_of(sink.target, fields, rows), schema=schema_of(fields))
    table = one_table([each for each in tables if each.num_rows] or tables[:1])
    names = set(table.column_names)
    if sink.window is not None and sink.window.combines and (ROWS in names or AT not in names):  # else it keeps tuples
        key = sink.window.group.concat(bigint(PANE)) if PANE in names else sink.window.group
        return table if sink.window.config.counts else combine_by(sink.window, table, key, run)
    return table


def _difference_of(step: str, one: pa.Table, other: pa.Table, reordered: bool) -> StepDifference | None:
    pair = first_difference(one, other, rounding=reordered)
    if pair is None:
        return None
    first, second = (row_text(one.column_names, row) for row in pair)
    return StepDifference(step, None, first, second, reordered)


def _reverse(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Return the same rows backwards, cut at another place."""
    if not tables or not tables[0].num_columns:
        return list(tables)
    table = one_table(tables)
    table = table.take(pa.array(np.arange(table.num_rows)[::-1]))
    cut = (table.num_rows + 1) // 3
    return [table.slice(0, cut), table.slice(cut)] if cut else [table]


def _compared_steps(program: Program, run: StepRun, parts: Sequence[Part]) -> Iterator[StepDifference | None]:
    # What differs is found: each step alone processes its tables twice, then in another order.
    output = TaskOutput()
    for index, (spout, part) in enumerate(with_empty_parts(program, parts)):
        yield from _of_fragment(program.fragments[spout], part.tables, run)
        send(program.fragments[spout], part.tables, program.exchanges, run, index, output)
    for entry, partition in chain.from_iterable(program.destinations):
        exchange, fragment = program.exchanges[entry], program.fragments[entry]
        frames = [frame for frame in output.frames if (frame.target, frame.partition) == (entry, partition)]
        gather = partial(apply_exchange, exchange, run=run)
        yield _compare_runs(exchange.node.id, partial(gather, frames), partial(gather, _reverse_frames(frames)))
        tables = [gather(frames)]
        yield from _of_fragment(fragment, tables, run)
        send(fragment, tables, program.exchanges, run, partition, output)


def _of_fragment(fragment: Fragment, given: Iterable[pa.Table], run: StepRun) -> Iterator[StepDifference | None]:
    for table in whole(fragment, given):
        tables = {fragment.entry: table}
        for step in fragment.steps:
            sources = [tables[source] for source in step.sources]
            yield _of_step(step, sources, run)
            tables[step.id] = run_step(step, sources, run)
        for sink in fragment.sinks:
            data = tables[sink.source].select(list(sink.fields.names))
            other = None if _is_by_order(aggregators_of(sink)) else partial(_into, sink, run, _reverse([data]))
            yield _compare_runs(sink.target, partial(_into, sink, run, [data]), other)


def _of_step(step: Step, sources: list[pa.Table], run: StepRun) -> StepDifference | None:
    in_pieces = len(sources) == 1 and not isinstance(step.node, AggregateNode)  # as tuples come, in any tables
    other = [_reverse([each]) if in_pieces else [one_table(_reverse([each]))] for each in sources]
    again = lambda: one_table([run_step(step, list(each), run) for each in zip(*other, strict=True)])  # noqa: E731
    once = partial(run_step, step, sources, run)
    found = _compare_runs(step.id, once, None if _is_by_order(step.node.operations) else again)
    if found is None or found.reordered or not in_pieces:
        return found
    (table,) = sources
    for at in range(min(table.num_rows, _MOST_TUPLES) if table.num_columns else 0):
        alone = _compare_runs(step.id, partial(run_step, step, [table.slice(at, 1)], run), None)
        if alone is not None:
            row = tuple(value for (value,) in (column.slice(at, 1).to_pylist() for column in table.columns))
            return alone._replace(row=row_text(table.column_names, row))
    return found


def _compare_runs(
    step: str, once: Callable[[], pa.Table], in_other_order: Callable[[], pa.Table] | None
) -> StepDifference | None:
    first = once()
    found = _difference_of(step, first, once(), reordered=False)
    if found is None and in_other_order is not None:
        found = _difference_of(step, first, in_other_order(), reordered=True)
    return found


def _reverse_frames(frames: Sequence[RowFrame]) -> list[RowFrame]:
    last = len(frames)
    return [
        frame._replace(data=one_table(_reverse([frame.data])), order=("", last - at, 0))
        for at, frame in enumerate(sorted(frames, key=lambda frame: (frame.port, frame.order)))
    ]


def _into(sink: Sink, run: StepRun, tables: Sequence[pa.Table]) -> pa.Table:
    with failing_at(sink.target):
        return _reaching(sink, [entry_input(sink, table, run) for table in tables], run)
