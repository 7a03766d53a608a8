"""From the rows of complete windows to their results: one aggregate over all that fire in a batch, in order of their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import arrow_type, schema_of
from trident.fields import Fields
from trident.graph import WindowNode
from trident.operations.several import Several, result_fields
from trident.operations.windows import LATE, first_and_last, late_field
from trident.runtime.steps.failures import in_lists
from trident.runtime.steps.in_batch import aggregate
from trident.runtime.steps.rows import StepRun
from trident.runtime.windows.grid import Grid
from trident.runtime.windows.worker_input import END, START, aggregating, bigint, merged, with_column

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
        tables.append(_aggregated(node, with_column(held.take(pa.array(at)), END, ends), key, run))
    schema = schema_of(node.fields)
    return pa.concat_tables([_bounded(node, table) for table in tables]) if tables else schema.empty_table()


def session_results(node: WindowNode, held: pa.Table, run: StepRun) -> pa.Table:
    """Return the rows that sessions give, of `held` tuples or partial results with `START` and `END` of the session of each."""
    key = node.group.concat(bigint(START)).concat(bigint(END))
    return _bounded(node, _aggregated(node, held, key, run))


def _aggregated(node: WindowNode, held: pa.Table, key: Fields, run: StepRun) -> pa.Table:
    """Aggregate the rows of windows by a key; in the order of their ends, because a kernel returns groups in no defined one."""
    if node.combines:
        table = merged(node, held, key, run)
    else:
        table = aggregate(node.id, aggregating(node, replace(node.member, group=key), False), held, run)
    ends = table.column(END).to_numpy()
    return table.take(pa.array(np.argsort(ends, kind="stable"))) if np.any(ends[1:] < ends[:-1]) else table


def _bounded(node: WindowNode, table: pa.Table) -> pa.Table:
    """The table with the fields that the window gives, in their order."""
    for name, ordinates in zip(node.bounds.names, _bounds(node, table), strict=False):
        type_ = arrow_type(node.bounds.type_of(name) or "")
        table = table.append_column(name, pa.array(ordinates, pa.int64()).cast(type_))
    return _widened(node, _spread(node, table))


def _spread(node: WindowNode, table: pa.Table) -> pa.Table:
    """The table with the results of several aggregates, each as a column, in place of their value."""
    several = node.member.aggregator
    if not isinstance(several, Several):
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
    return _widened(node, pa.table({**columns, **{late_field(name): tuples.column(name) for name in node.late.names}}))


def _widened(node: WindowNode, table: pa.Table) -> pa.Table:
    """Return a table with all that the node gives; null where the table lacks it."""
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
