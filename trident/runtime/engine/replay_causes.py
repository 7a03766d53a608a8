"""Finds the step that does not repeat itself: each step of a batch alone, twice over the same tables, then in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from trident.arrow import concatenated, schema_of
from trident.comparing import Pair, first_difference, row_text
from trident.graph import AggregateNode
from trident.observe.events import not_repeated
from trident.operations import ArgMax, ArgMin, Collect, First, Last, MaxWithComparator, MinWithComparator, TopN
from trident.operations.assemblies import FirstRows
from trident.operations.comparators import MinBy
from trident.operations.several import Several
from trident.planner import Fragment, Sink, Step
from trident.runtime.engine.fragment_runs import entry_input, run_step, whole
from trident.runtime.engine.routing import RowFrame, apply_exchange
from trident.runtime.engine.worker import ReadPart, WorkerProgram
from trident.runtime.steps.aggregates import merge_partials, merged
from trident.runtime.steps.rows import StepRun, columns_of
from trident.runtime.windows.worker_input import AT, PANE, ROWS, bigint
from trident.runtime.windows.worker_input import merged as merged_panes

_BY_ORDER = (
    ArgMax, ArgMin, Collect, First, FirstRows, Last, MaxWithComparator, MinBy, MinWithComparator, TopN,
)  # fmt: skip
_MOST_TUPLES = 1000
"""So many tuples of a table are tried one by one."""


class StepDifference(NamedTuple):
    """A step that gave other rows for the same ones.

    `step`, `row`: the step or state, and the tuple that it was given, as text; None if several tuples make a row together.
    `first`, `second`: the first row, as text, that only one of the runs gave; "nothing" if it gave only rows that the other one
    gave too.
    `reordered`: whether the second run had the tuples in another order; if not, it had the very same tables.
    """

    step: str
    row: str | None
    first: str
    second: str
    reordered: bool

    def __str__(self) -> str:
        return not_repeated(*self)


class Arrived(NamedTuple):
    """What one partition of an exchange was given."""

    entry: str
    frames: Sequence[RowFrame]


def is_by_order(operations: Iterable[Any]) -> bool:
    """Whether an operation is a built-in whose result depends on the order of the tuples, as it should (`First`, ties …)."""
    return any(
        is_by_order(part.aggregator for part in each.parts)
        if isinstance(each, Several)
        else isinstance(each, _BY_ORDER)
        for each in operations
    )


def cause_of(
    worker: WorkerProgram, run: StepRun, parts: Iterable[tuple[str, Any, bool]], arrived: Iterable[Arrived]
) -> StepDifference | None:
    """Return the first step of a batch that differs; None if each of them repeats itself this time.

    `parts`, `arrived`: the tuples of the batch: as they were read, and at each partition of each exchange.
    """
    found = (one for fragment, tables in _inputs(worker, run, parts, arrived) for one in _of(fragment, tables, run))
    return next((one for one in found if one is not None), None)


def _inputs(
    worker: WorkerProgram, run: StepRun, parts: Iterable[tuple[str, Any, bool]], arrived: Iterable[Arrived]
) -> Iterator[tuple[Any, Any]]:
    """Give each fragment with the tables of a partition, and each exchange with what arrived there."""
    program = worker.program
    for spout, part, _ in parts:
        assert isinstance(part, ReadPart), part
        yield program.fragments[spout], part.tables
    for each in arrived:
        exchange = program.exchanges[each.entry]
        yield exchange, each.frames
        yield program.fragments[each.entry], [apply_exchange(exchange, each.frames, run)]


def _of(place: Any, given: Any, run: StepRun) -> Iterator[StepDifference | None]:
    if not isinstance(place, Fragment):
        gather = lambda frames: apply_exchange(place, frames, run)  # noqa: E731
        yield _compared(place.node.id, partial(gather, given), partial(gather, _turned_frames(given)))
        return
    for table in whole(place, given):
        tables = {place.entry: table}
        for step in place.steps:
            sources = [tables[source] for source in step.sources]
            yield _of_step(step, sources, run)
            tables[step.id] = run_step(step, sources, run)
        for sink in place.sinks:
            data = tables[sink.source].select(list(sink.fields.names))
            other = None if is_by_order(_aggregators_of(sink)) else partial(_into, sink, run, turned([data]))
            yield _compared(sink.target, partial(_into, sink, run, [data]), other)


def _of_step(step: Step, sources: list[pa.Table], run: StepRun) -> StepDifference | None:
    in_pieces = len(sources) == 1 and not isinstance(step.node, AggregateNode)  # as tuples come, in any tables
    other = [turned([each]) if in_pieces else [concatenated(turned([each]))] for each in sources]
    again = lambda: concatenated([run_step(step, list(each), run) for each in zip(*other, strict=True)])  # noqa: E731
    once = partial(run_step, step, sources, run)
    found = _compared(step.id, once, None if is_by_order(step.node.operations) else again)
    if found is None or found.reordered or not in_pieces:
        return found
    (table,) = sources
    for at in range(min(table.num_rows, _MOST_TUPLES) if table.num_columns else 0):
        alone = _compared(step.id, partial(run_step, step, [table.slice(at, 1)], run), None)
        if alone is not None:
            row = tuple(value for (value,) in (column.slice(at, 1).to_pylist() for column in table.columns))
            return alone._replace(row=row_text(table.column_names, row))
    return found


def _compared(
    step: str, once: Callable[[], pa.Table], in_other_order: Callable[[], pa.Table] | None
) -> StepDifference | None:
    """Compare what a step gives twice, and then in another order."""
    first = once()
    pair, reordered = first_difference(first, once()), False
    if pair is None and in_other_order is not None:
        pair, reordered = first_difference(first, in_other_order(), rounding=True), True
    return None if pair is None else difference_of(step, first, pair, reordered)


def difference_of(step: str, table: pa.Table, pair: Pair, reordered: bool) -> StepDifference:
    """Return the difference between two tables with the columns of `table`."""
    first, second = (row_text(table.column_names, row) for row in pair)
    return StepDifference(step, None, first, second, reordered)


def _aggregators_of(sink: Sink) -> list[Any]:
    aggregators = [sink.aggregation and sink.aggregation.aggregator, sink.window and sink.window.member.aggregator]
    return [each for each in aggregators if each is not None]


def reaching(sink: Sink, tables: Sequence[pa.Table], run: StepRun) -> pa.Table:
    """Return what tables that were sent to a state come to: a row for each key if they are partials, else their rows."""
    if sink.aggregation is not None and sink.aggregation.combines:
        whole_ = merged(sink.aggregation, list(tables))
        if whole_ is not None:
            return whole_
        rows = [(*key, value) for key, value in zip(*merge_partials(sink.aggregation, list(tables)), strict=True)]
        fields = sink.aggregation.partial
        return pa.table(columns_of(sink.target, fields, rows), schema=schema_of(fields))
    table = concatenated([each for each in tables if each.num_rows] or tables[:1])
    names = set(table.column_names)
    if sink.window is not None and sink.window.combines and (ROWS in names or AT not in names):  # else it keeps tuples
        key = sink.window.group.concat(bigint(PANE)) if PANE in names else sink.window.group
        return table if sink.window.config.counts else merged_panes(sink.window, table, key, run)
    return table


def turned(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Return the same rows backwards, cut at another place."""
    if not tables or not tables[0].num_columns:
        return list(tables)
    table = concatenated(tables)
    table = table.take(pa.array(np.arange(table.num_rows)[::-1]))
    cut = (table.num_rows + 1) // 3
    return [table.slice(0, cut), table.slice(cut)] if cut else [table]


def _turned_frames(frames: Sequence[RowFrame]) -> list[RowFrame]:
    last = len(frames)
    return [
        frame._replace(data=concatenated(turned([frame.data])), order=("", last - at, 0))
        for at, frame in enumerate(sorted(frames, key=lambda frame: (frame.port, frame.order)))
    ]


def _into(sink: Sink, run: StepRun, tables: Sequence[pa.Table]) -> pa.Table:
    return reaching(sink, [entry_input(sink, table, run) for table in tables], run)
