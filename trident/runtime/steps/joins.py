"""Joins within a batch, column by column: each key's rows of all sides, in every combination."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import schema_of
from trident.graph import JoinNode
from trident.runtime.steps.bounds import DEFAULT_BOUNDS, Bounds
from trident.runtime.steps.groups import Ints, group_ids
from trident.runtime.steps.key_columns import one_form

__all__ = ["join"]


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
    parts = [side.select(list(key.names)).rename_columns(names) for side, key in zip(sides, node.groups, strict=True)]
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
