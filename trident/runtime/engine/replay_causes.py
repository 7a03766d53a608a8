"""Finds the step that does not repeat itself: each step of a batch alone, twice over the same tables, then in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from trident.arrow import concatenated, schema_of
from trident.comparing import first_difference, row_text
from trident.graph import AggregateNode
from trident.observe.events import not_repeated
from trident.operations import ArgMax, ArgMin, Collect, First, Last, MaxWithComparator, MinWithComparator, TopN
from trident.operations.assemblies import FirstRows
from trident.operations.comparators import MinBy
from trident.operations.several import Several
from trident.planner import Fragment, Sink, Step
from trident.runtime.engine.fragment_runs import entry_input, run_step, whole
from trident.runtime.engine.hops import destinations_of
from trident.runtime.engine.routing import RowFrame, apply_exchange
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.worker import Part, Program, aggregators_of, send, with_empty_parts
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


def is_by_order(operations: Iterable[Any]) -> bool:
    """Whether an operation is a built-in whose result depends on the order of the tuples, as it should (`First`, ties …)."""
    return any(
        is_by_order(part.aggregator for part in each.parts)
        if isinstance(each, Several)
        else isinstance(each, _BY_ORDER)
        for each in operations
    )


def cause_of(program: Program, run: StepRun, parts: Sequence[Part]) -> StepDifference | None:
    """Process a batch once more; return the first step that differs, None if each of them repeats itself this time.

    `parts`: the tuples of the batch, as they were read.
    """
    return next((one for one in _compared_steps(program, run, parts) if one is not None), None)


def _compared_steps(program: Program, run: StepRun, parts: Sequence[Part]) -> Iterator[StepDifference | None]:
    output = TaskOutput()
    for index, (spout, part, _) in enumerate(with_empty_parts(program, parts)):
        yield from _of_fragment(program.fragments[spout], part.tables, run)
        send(program.fragments[spout], part.tables, program.exchanges, run, index, output)
    for entry, partition in chain.from_iterable(destinations_of(program)):
        exchange, fragment = program.exchanges[entry], program.fragments[entry]
        frames = [frame for frame in output.frames if (frame.target, frame.partition) == (entry, partition)]
        gather = partial(apply_exchange, exchange, run=run)
        yield _compared(exchange.node.id, partial(gather, frames), partial(gather, _turned_frames(frames)))
        tables = [gather(frames)]
        yield from _of_fragment(fragment, tables, run)
        send(fragment, tables, program.exchanges, run, partition, output)


def _of_fragment(fragment: Fragment, given: Iterable[pa.Table], run: StepRun) -> Iterator[StepDifference | None]:
    """Compare each step, and what is sent to each entry, over the tables of a partition."""
    for table in whole(fragment, given):
        tables = {fragment.entry: table}
        for step in fragment.steps:
            sources = [tables[source] for source in step.sources]
            yield _of_step(step, sources, run)
            tables[step.id] = run_step(step, sources, run)
        for sink in fragment.sinks:
            data = tables[sink.source].select(list(sink.fields.names))
            other = None if is_by_order(aggregators_of(sink)) else partial(_into, sink, run, turned([data]))
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
    found = difference_of(step, first, once(), reordered=False)
    if found is None and in_other_order is not None:
        found = difference_of(step, first, in_other_order(), reordered=True)
    return found


def difference_of(step: str, one: pa.Table, other: pa.Table, reordered: bool) -> StepDifference | None:
    """Return the difference between what a step, or a state, was given by two runs; None if there is none."""
    pair = first_difference(one, other, rounding=reordered)
    if pair is None:
        return None
    first, second = (row_text(one.column_names, row) for row in pair)
    return StepDifference(step, None, first, second, reordered)


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
