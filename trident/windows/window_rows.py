"""Rows of windows: what a worker sends to one, and what comes of those that are complete.

A worker sends tuples, or partial results if the time of a tuple says to which window it belongs: the grouping fields, the
aggregated fields or partial results, and with event time `PANE` or `AT`; of a session `START` and `AT`, the times of its first
and last tuple; to a join over time the rows of one side that have a time, with that time in front.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import arrow_type, schema_of
from trident.counts import count_again, remark
from trident.fields import Fields
from trident.graph import AggregateNode, Aggregation, JoinWithinNode, WindowNode
from trident.operations.names import merging_member
from trident.operations.several import MultiAggregate, result_fields
from trident.operations.windows import LATE, SessionWindow, first_and_last, late_field
from trident.steps.aggregates import merged_table, partial
from trident.steps.failures import in_lists
from trident.steps.in_batch import aggregate
from trident.steps.key_columns import Ints, group_ids, one_form
from trident.steps.rows import StepRun
from trident.windows.grid import Grid, Spans, sessions_of

AT, END, PANE, ROWS, START, SESSION = "$at", "$end", "$pane", "$rows", "$start", "$session"
"""Columns in addition to the user's, all bigint: event time, end of a window, pane, number of tuples, start and number of
a session."""

NOTHING = Fields.of(["$"], ["boolean"])
"""The column that stands in for an aggregator without inputs, because a table needs a column to have rows."""


def content_fields(node: WindowNode) -> Fields:
    """Return the fields of what a window keeps: grouping fields, and partial results or what the aggregator sees."""
    return node.group.concat(node.member.outputs) if node.combines else _raw_fields(node)


def value_fields(node: WindowNode) -> Fields:
    """Return those of `content_fields` that a record of a key holds; there is at least one."""
    fields = content_fields(node)
    names = [name for name in fields.names if name not in node.group.names]
    return fields.select(names) if names else NOTHING


def aggregating(node: WindowNode, member: Aggregation, partial: bool) -> AggregateNode:
    return AggregateNode(node.id, (), member.partial, (member,), partial)


def bigint(name: str) -> Fields:
    return Fields.of([name], ["bigint"])


def window_input(node: WindowNode, table: pa.Table, run: StepRun) -> pa.Table:
    event_time = node.config.event_time
    if event_time is not None:
        tuples, at = with_times(table, node.id, node.state, event_time.field, keeps_wrong=len(node.late) > 0)
        table = with_column(tuples, AT, at)
    if not node.combines or node.config.counts or len(node.late):
        fields = _raw_fields(node)
        table = with_nothing(table) if fields is NOTHING else table
        return table.select([*dict.fromkeys((*fields.names, *node.late.names)), *([] if event_time is None else [AT])])
    if event_time is None:
        return partials(node, table, node.group, run)
    return _by_session(node, table, run) if isinstance(node.config, SessionWindow) else _by_pane(node, table, run)


def _by_session(node: WindowNode, table: pa.Table, run: StepRun) -> pa.Table:
    """Return partial results per session, as far as these tuples tell: its first and last time, its number of tuples."""
    if not table.num_rows:
        return partials(node, table, node.group, run)
    ids, firsts = group_ids([table.column(name) for name in node.group.names], table.num_rows)
    at = table.column(AT).to_numpy()
    numbers, found = sessions_of(Spans(ids, at, at), node.config.length * node.config.per_ms)
    part = partials(node, with_column(table, SESSION, numbers), bigint(SESSION), run)
    of_part = part.column(SESSION).to_numpy()
    keys = table.select(list(node.group.names)).take(pa.array(firsts[found.keys[of_part]]))
    columns = [*keys.columns, *(part.column(name) for name in node.member.outputs.names)]
    part = pa.table(columns, names=list(content_fields(node).names))
    for name, ofs in ((START, found.starts), (AT, found.lasts), (ROWS, np.bincount(numbers))):
        part = with_column(part, name, ofs[of_part])
    return part


def _by_pane(node: WindowNode, table: pa.Table, run: StepRun) -> pa.Table:
    """Return partial results per pane, with the latest time of all, and the number of tuples in the first row of each pane."""
    if not table.num_rows:
        return partials(node, table, node.group, run)
    at = table.column(AT).to_numpy()
    panes = Grid.of(node.config).pane_of(at)
    distinct, sizes = np.unique(panes, return_counts=True)
    if len(distinct) == 1:  # the usual case in small batches: one column less to group by
        part = partials(node, table, node.group, run)
        part = with_column(part, PANE, np.full(part.num_rows, distinct[0]))
    else:
        part = partials(node, with_column(table, PANE, panes), node.group.concat(bigint(PANE)), run)
    there, firsts = np.unique(part.column(PANE).to_numpy(), return_index=True)
    rows = np.zeros(part.num_rows, np.int64)
    rows[firsts] = sizes[np.searchsorted(distinct, there)]
    part = with_column(with_column(part, AT, np.full(part.num_rows, at.max())), ROWS, rows)
    return part.select([*content_fields(node).names, PANE, AT, ROWS])  # one order, whatever was grouped by


def panes_of(node: WindowNode, table: pa.Table) -> Ints:
    if PANE in table.column_names:
        panes: Ints = table.column(PANE).to_numpy()
        return panes
    return Grid.of(node.config).pane_of(table.column(AT).to_numpy())


def partials(node: WindowNode, table: pa.Table, key: Fields, run: StepRun) -> pa.Table:
    """Aggregate tuples to partial results by a key; without a key to one row."""
    return partial(node.id, replace(node.member, group=key), table, run.on_error)


def combine_by(node: WindowNode, table: pa.Table, key: Fields, run: StepRun) -> pa.Table:
    """Combine partial results by a key; other columns than these are dropped."""
    member = replace(node.member, group=key)
    whole = merged_table(member, one_form(table, key.names)) if table.num_rows else None
    return aggregate(node.id, aggregating(node, merging_member(member), True), table, run) if whole is None else whole


def with_column(table: pa.Table, name: str, numbers: Ints) -> pa.Table:
    return table.append_column(pa.field(name, pa.int64()), pa.array(numbers, pa.int64()))


def with_nothing(table: pa.Table) -> pa.Table:
    return table.append_column(schema_of(NOTHING).field(0), pa.nulls(table.num_rows, pa.bool_()))


def _raw_fields(node: WindowNode) -> Fields:
    more = [name for name in node.inputs.names if name not in node.group.names]
    return node.group.concat(node.inputs.select(more)) if len(node.group) or more else NOTHING


MARKS = ("$left", "$right")
"""The name of the column of times (bigint, microseconds), which says which side a table belongs to."""


def join_input(node: JoinWithinNode, port: int, table: pa.Table) -> pa.Table:
    """Return what is sent for one table of a side. Rows without a time are dropped and counted."""
    side = node.sides[port]
    kept, at = with_times(table, node.id, node.state, side.time)
    if not pa.types.is_timestamp(table.schema.field(side.time).type):
        at = at * 1000
    return kept.add_column(0, pa.field(MARKS[port], pa.int64()), pa.array(at, pa.int64()))


def side_tables(node: JoinWithinNode, tables: Iterable[pa.Table]) -> list[pa.Table]:
    found: list[list[pa.Table]] = [[], []]
    for table in tables:
        found[MARKS.index(table.column_names[0])].append(table)
    return [
        pa.concat_tables(of_side or [pa.schema([(mark, pa.int64()), *schema_of(side.fields)]).empty_table()])
        for side, mark, of_side in zip(node.sides, MARKS, found, strict=True)
    ]


NOWHERE = -(1 << 62)
"""The time of a tuple that is passed on although no calendar has its time: a late row, which does not move the watermark."""

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"seconds": 10**9, "milliseconds": 10**6, "microseconds": 1000, "nanoseconds": 1}
_PLAUSIBLE = 946_684_800, 4_102_444_800  # the years 2000 to 2099 in seconds
_DAY_MS = 86_400_000


def with_times(table: pa.Table, step: str, state: str, field: str, keeps_wrong: bool = False) -> tuple[pa.Table, Ints]:
    """Return the tuples that have a time, and their times in the unit of the type; those without are dropped and counted.

    `keeps_wrong`: whether to keep those whose time no calendar has, at `NOWHERE`.
    """
    column = table.column(field)
    per_ms, times = 1 if pa.types.is_integer(column.type) else 1000, column.cast(pa.int64())
    first, last = first_and_last(per_ms)
    low, high = pc.min_max(times).as_py().values()
    if low is not None and (low < first or high > last):
        wrong = low if low < first else high
        remark(step, "no time", _no_time(field, wrong, per_ms, state, keeps_wrong))
    elif low is not None:
        _look_at(step, state, field, low, high, per_ms)
        if not column.null_count:
            return table, np.asarray(times.to_numpy(), np.int64)
    known = pc.fill_null(pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last)), False)
    if without := table.num_rows - (pc.sum(known).as_py() or 0):
        count_again({f"{state}/no_event_time": without})
    if not keeps_wrong:
        return table.filter(known), np.asarray(times.filter(known).to_numpy(), np.int64)
    there = pc.is_valid(times)
    at = pc.if_else(known, times, NOWHERE).filter(there).to_numpy()
    return table.filter(there), np.asarray(at, np.int64)


def _no_time(field: str, value: int, per_ms: int, state: str, keeps_wrong: bool) -> str:
    unit = "milliseconds" if per_ms == 1 else "microseconds"
    become = f"is not a tuple of {state!r}, but a late row" if keeps_wrong else f"is left out of {state!r}"
    return (
        f"the event time {field}={value} in {unit} since 1970 is not within the years 1 to 9999{_unit_hint(value, unit)}. What "
        f"has such a time {become}. Convert the field before; what was committed until then stays out"
    )


def _unit_hint(value: int, unit: str) -> str:
    """Say in which other units a value would be a time of these years."""
    others = [
        each for each in _UNITS if each != unit and _PLAUSIBLE[0] <= value * _UNITS[each] // 10**9 <= _PLAUSIBLE[1]
    ]
    return "".join(f"; in {each} it would be {_date_text(value, each)}" for each in others)


def _date_text(value: int, unit: str) -> str:
    return f"{_BEGINNING + timedelta(microseconds=value * _UNITS[unit] // 1000):%Y-%m-%d %H:%M:%S} UTC"


def _look_at(step: str, state: str, field: str, low: int, high: int, per_ms: int) -> None:
    """Say so of times that are times, but probably wrong. Nothing else may ask this machine's clock."""
    ms, unit = high // per_ms, "milliseconds" if per_ms == 1 else "microseconds"
    if _unit_hint(low, unit) and (guess := _unit_hint(high, unit)):
        taken = f"is {_date_text(high, unit)}, because it is taken as {unit} since 1970"
        remark(step, "unit", f"the event time {field}={high} {taken}{guess}. If so, convert the field before {state!r}")
    if (ahead := ms - time.time_ns() // 1_000_000) > _DAY_MS:
        what = f"the event time {_date_text(ms, 'milliseconds')} in {field!r} is {ahead // _DAY_MS:,} days ahead of the clock"
        then = f"the watermark of {state!r} goes with it, and stays there: earlier tuples are late. If it is not meant, filter "
        more = "such times out before, and give another state_name, which begins again"
        remark(step, "ahead", f"{what}; {then}{more}")


_MANY = 1 << 20  # rows that are aggregated at once, unless one window has more


class Complete(NamedTuple):
    """A window that fires: its end, and the range of its rows in a table of all that is held."""

    end: int
    first: int
    stop: int


def results(node: WindowNode, held: pa.Table, windows: Sequence[Complete], run: StepRun) -> pa.Table:
    """Return the rows that windows give, of `held` tuples or partial results; windows come in order of their ends."""
    key = node.group.concat(bigint(END))
    tables = []
    for some in in_lists(windows, lambda window: window.stop - window.first, _MANY):
        sizes = [window.stop - window.first for window in some]
        at = np.concatenate([np.arange(window.first, window.stop) for window in some])
        ends = np.repeat(np.array([window.end for window in some], np.int64), sizes)
        tables.append(_aggregate_windows(node, with_column(held.take(pa.array(at)), END, ends), key, run))
    schema = schema_of(node.fields)
    return pa.concat_tables([_with_bounds(node, table) for table in tables]) if tables else schema.empty_table()


def session_results(node: WindowNode, held: pa.Table, run: StepRun) -> pa.Table:
    """Return the rows that sessions give, of `held` tuples or partial results with `START` and `END` of the session of each."""
    key = node.group.concat(bigint(START)).concat(bigint(END))
    return _with_bounds(node, _aggregate_windows(node, held, key, run))


def _aggregate_windows(node: WindowNode, held: pa.Table, key: Fields, run: StepRun) -> pa.Table:
    """Aggregate the rows of windows by a key; in the order of their ends, because a kernel returns groups in no defined one."""
    if node.combines:
        table = combine_by(node, held, key, run)
    else:
        table = aggregate(node.id, aggregating(node, replace(node.member, group=key), False), held, run)
    ends = table.column(END).to_numpy()
    return table.take(pa.array(np.argsort(ends, kind="stable"))) if np.any(ends[1:] < ends[:-1]) else table


def _with_bounds(node: WindowNode, table: pa.Table) -> pa.Table:
    for name, ordinates in zip(node.bounds.names, _bounds(node, table), strict=False):
        type_ = arrow_type(node.bounds.type_of(name) or "")
        table = table.append_column(name, pa.array(ordinates, pa.int64()).cast(type_))
    return _with_all_fields(node, _spread(node, table))


def _spread(node: WindowNode, table: pa.Table) -> pa.Table:
    """The table with the results of several aggregates, each as a column, in place of their value."""
    several = node.member.aggregator
    if not isinstance(several, MultiAggregate):
        return table
    (value,) = node.member.outputs.names
    results = {name: pc.struct_field(table.column(value), [name]) for name in result_fields(several).names}
    table = table.drop_columns([value])
    return pa.table([*table.columns, *results.values()], names=[*table.column_names, *results])


def late_rows(node: WindowNode, tuples: pa.Table) -> pa.Table:
    """Return the rows that a window gives for tuples that came too late, if it is to give them."""
    if not len(node.late):
        return schema_of(node.fields).empty_table()
    columns = {LATE: pa.array(np.ones(tuples.num_rows, bool))}
    return _with_all_fields(
        node, pa.table({**columns, **{late_field(name): tuples.column(name) for name in node.late.names}})
    )


def without_late(node: WindowNode | JoinWithinNode, rows: pa.Table, late: np.ndarray) -> tuple[pa.Table, pa.Table]:
    """Return the rows that are in time, and the late ones, whose tuples are counted."""
    if late.any():
        tuples = rows.column(ROWS).to_numpy()[late].sum() if ROWS in rows.column_names else late.sum()
        count_again({f"{node.state}/late": int(tuples)})
    return rows.filter(pa.array(~late)), rows.filter(pa.array(late))


def _with_all_fields(node: WindowNode, table: pa.Table) -> pa.Table:
    schema = schema_of(node.fields)
    there = set(table.column_names)
    columns = [
        table.column(name) if name in there else pa.nulls(table.num_rows, type_)
        for name, type_ in zip(schema.names, schema.types, strict=True)
    ]
    return pa.table(columns, names=schema.names).cast(schema)


def _bounds(node: WindowNode, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    ends = table.column(END).to_numpy()
    grid, unit = Grid.of(node.config), node.config.per_ms
    starts = table.column(START).to_numpy() if START in table.column_names else ends - grid.length
    if node.config.counts:
        return np.maximum(starts, 0), ends
    if grid.clock is not None:
        starts, ends = grid.clock.begins(starts), grid.clock.is_over(ends)
    (first, last), us = first_and_last(unit), 1000 // unit  # a timestamp is in microseconds
    return np.maximum(starts, first) * us, np.minimum(ends, last) * us
