"""Several streams of one batch: joins column by column, and multi-reducers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.fields import Fields
from trident.graph import JoinNode, MultiReduceNode
from trident.runtime.steps.failures import DEFAULT_BOUNDS, Bounds, failing_at
from trident.runtime.steps.key_columns import Ints, group_ids, nulls_apart, one_form
from trident.runtime.steps.rows import Emitted, StepRun, columns_of, iterate_emitting, tuples_of
from trident.tuples import TridentTuple


def join(node: JoinNode, sides: list[pa.Table], bounds: Bounds = DEFAULT_BOUNDS) -> pa.Table:
    """Join the rows of one partition; raise `TooManyRows` before a result beyond the bounds is made.

    Keys come in the order in which they first appear, side by side; those that match nothing come last. Within a key, the
    rows of the last side vary fastest.
    """
    keys, ids = _keys(node, sides)
    groups = keys.num_rows
    rows = [_SideRows(side_ids, groups) for side_ids in ids]
    counts = [np.maximum(side.counts, int(outer)) for side, outer in zip(rows, node.outer, strict=True)]
    bounds.check_step(int(np.prod(counts, axis=0, dtype=float).sum()), sum(side.num_rows for side in sides))
    totals = np.prod(counts, axis=0, dtype=np.int64)
    group = np.repeat(np.arange(groups), totals)
    at = np.arange(len(group)) - np.repeat(np.cumsum(totals) - totals, totals)
    picks: list[pa.Array] = []
    for side, count in zip(reversed(rows), reversed(counts), strict=True):
        picks.insert(0, side.pick(group, at % count[group]))
        at //= count[group]
    columns = [] if node.preserve else keys.take(pa.array(group)).columns
    for table, fields, key, pick in zip(sides, node.inputs, node.groups, picks, strict=True):
        names = fields.names if node.preserve else [name for name in fields.names if name not in key.names]
        columns.extend(table.column(name).take(pick) for name in names)
    return pa.table(columns, schema=schema_of(node.fields))


class _SideRows:
    """The rows of one side by key, in their order."""

    def __init__(self, ids: Ints, groups: int) -> None:
        self.order = np.argsort(ids, kind="stable")
        self.counts = np.bincount(ids, minlength=groups)
        self.starts = np.cumsum(self.counts) - self.counts

    def pick(self, group: Ints, at: Ints) -> pa.Array:
        """Return the `at`-th row of each key, null where the side has none. `group` and `at` are int64 arrays of one length."""
        missing = self.counts[group] == 0
        if not len(self.order):
            return pa.nulls(len(group), pa.int64())
        where = np.where(missing, 0, self.starts[group] + at)
        return pa.array(self.order[where], mask=missing)


def _keys(node: JoinNode, sides: list[pa.Table]) -> tuple[pa.Table, list[Ints]]:
    """Return the distinct keys of all sides, and for each side the number of each row's key (int64, one per row)."""
    whole, ids, firsts = _numbered(node.groups, sides)
    if not node.null_keys_match:
        ids, firsts, _ = nulls_apart(whole, ids, firsts)
    return whole.take(pa.array(firsts)), _of_tables(ids, sides)


def _numbered(groups: Sequence[Fields], tables: Sequence[pa.Table]) -> tuple[pa.Table, Ints, Ints]:
    """Return the keys of all rows, named as in the first table, and their `group_ids`."""
    names = groups[0].names
    parts = [
        table.select(list(key.names)).rename_columns(list(names)) for table, key in zip(tables, groups, strict=True)
    ]
    whole = one_form(pa.concat_tables(parts), names)
    return whole, *group_ids(whole.columns, whole.num_rows)


def _of_tables(ids: Ints, tables: Sequence[pa.Table]) -> list[Ints]:
    return np.split(ids, np.cumsum([table.num_rows for table in tables])[:-1])


def multi_reduce(node: MultiReduceNode, streams: list[pa.Table], run: StepRun) -> pa.Table:
    """Run the reducer over one partition: once, or once for each key that occurs, in order of appearance."""
    out, reducer = Emitted(node.id, node.fields, run.on_error, sum(table.num_rows for table in streams)), node.reducer
    keys: list[tuple[TridentTuple, ...]] = [()]  # what a grouped reducer gets besides
    numbers = [[0] * table.num_rows for table in streams]
    with failing_at(node.id):
        if node.grouped:
            whole, ids, firsts = _numbered(node.groups, streams)
            keys = [(key,) for key in tuples_of(whole.take(pa.array(firsts)), node.groups[0])]
            numbers = [of_table.tolist() for of_table in _of_tables(ids, streams)]
        states = [reducer.init(out, *key) for key in keys]
    for index, (table, of_rows) in enumerate(zip(streams, numbers, strict=True)):

        def visit(at: int, row: TridentTuple, index: int = index, of_rows: list[int] = of_rows) -> None:
            number = of_rows[at]
            after = reducer.execute(states[number], index, *keys[number], row, out)
            states[number] = states[number] if after is None else after

        iterate_emitting(out, table, node.inputs[index], run.on_error, visit, port=index)
    with failing_at(node.id):
        for state, key in zip(states, keys, strict=True):
            reducer.complete(state, *key, out)
    return pa.table(columns_of(node.id, node.fields, out.rows), schema=schema_of(node.fields))
