"""Several streams of one batch: joins column by column, and multi-reducers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import schema_of
from trident.graph import JoinNode, MultiReduceNode
from trident.runtime.steps.bounds import DEFAULT_BOUNDS, Bounds
from trident.runtime.steps.failures import failing_at
from trident.runtime.steps.key_columns import Ints, group_ids, one_form
from trident.runtime.steps.rows import Emitted, StepRun, columns_of, iterate, tuples_of
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
    names = node.groups[0].names
    parts = [
        side.select(list(key.names)).rename_columns(list(names)) for side, key in zip(sides, node.groups, strict=True)
    ]
    whole = one_form(pa.concat_tables(parts), names)
    ids, firsts = group_ids(whole.columns, whole.num_rows)
    if not node.null_keys_match:
        ids, firsts = _apart(whole, ids, firsts)
    bounds = np.cumsum([part.num_rows for part in parts])[:-1]
    return whole.take(pa.array(firsts)), np.split(ids, bounds)


def _apart(keys: pa.Table, ids: Ints, firsts: Ints) -> tuple[Ints, Ints]:
    """Give each row with a null in its key a key of its own, as in SQL."""
    nulls = np.zeros(len(ids), bool)
    for column in keys.columns:
        nulls |= pc.is_null(column).to_numpy()
    apart = ids.copy()
    rows = np.flatnonzero(nulls)
    apart[rows] = len(firsts) + np.arange(len(rows))
    left, ids = np.unique(apart, return_inverse=True)  # the keys with a null have no rows now
    return ids, np.concatenate([firsts, rows])[left]


def multi_reduce(node: MultiReduceNode, streams: list[pa.Table], run: StepRun) -> pa.Table:
    """Run the reducer over one partition: once, or once for each key that occurs, in order of appearance."""
    out = Emitted(node.id, node.fields, run.on_error, sum(table.num_rows for table in streams))
    with failing_at(node.id):
        folds: _Grouped | _Whole = _Grouped(node, streams, out) if node.grouped else _Whole(node, out)
    for index, table in enumerate(streams):

        def visit(at: int, row: TridentTuple, index: int = index) -> None:
            before = len(out.rows)
            try:
                folds.execute(index, at, row)
            except Exception:
                out.take_back(before)
                raise

        iterate(node.id, table, node.inputs[index], run.on_error, visit, port=index)
    with failing_at(node.id):
        folds.complete()
    return pa.table(columns_of(node.id, node.fields, out.rows), schema=schema_of(node.fields))


class _Whole:
    """One state for the whole partition."""

    def __init__(self, node: MultiReduceNode, out: Emitted) -> None:
        self._reducer, self._out = node.reducer, out
        self._state = node.reducer.init(out)

    def execute(self, index: int, at: int, row: TridentTuple) -> None:
        after = self._reducer.execute(self._state, index, row, self._out)
        self._state = self._state if after is None else after

    def complete(self) -> None:
        self._reducer.complete(self._state, self._out)


class _Grouped:
    """A state for each key."""

    def __init__(self, node: MultiReduceNode, streams: list[pa.Table], out: Emitted) -> None:
        self._reducer, self._out = node.reducer, out
        names = node.groups[0].names
        keys = pa.concat_tables(
            [
                table.select(list(group.names)).rename_columns(list(names))
                for table, group in zip(streams, node.groups, strict=True)
            ]
        )
        keys = one_form(keys, names)
        ids, firsts = group_ids(keys.columns, keys.num_rows)
        self._groups = list(tuples_of(keys.take(pa.array(firsts)), node.groups[0]))
        self._ids, self._starts, rows = ids.tolist(), [], 0
        for table in streams:
            self._starts.append(rows)
            rows += table.num_rows
        self._states = [node.reducer.init(out, group) for group in self._groups]

    def execute(self, index: int, at: int, row: TridentTuple) -> None:
        number = self._ids[self._starts[index] + at]
        after = self._reducer.execute(self._states[number], index, self._groups[number], row, self._out)
        self._states[number] = self._states[number] if after is None else after

    def complete(self) -> None:
        for state, group in zip(self._states, self._groups, strict=True):
            self._reducer.complete(state, group, self._out)
