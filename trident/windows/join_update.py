"""Joins over time: what their state holds, and one batch within the commit of that state.

A row is *late* if its time is before the watermark that its side had after the batch before; it is dropped. Every other row
meets all rows of the other side that were not late, lie close enough, and came in this batch or earlier. A row *ends* when the
other side's watermark is beyond the last time that a row may have to meet it. Then it is dropped, and if the other side may be
missing and it has met none, it comes alone.

    ("key", *key)    -> version, when to look at the key for rows of the left side, and of the right side, then of each side
                        the columns: times in microseconds, whether each row has met another one, the other fields
    ("windows",)     -> the directory of `timer_index`, with the watermark of each side, and its chunks

A key is *due* at the earliest end of its rows, by the watermark of the other side, and is looked at a sixteenth of how long
rows are kept later at the most: a row that comes alone may come so much later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.fields import Fields
from trident.graph import JoinWithinNode
from trident.operations.windows import FIRST_MS
from trident.state.interfaces import Key
from trident.steps.failures import Bounds
from trident.steps.key_columns import Ints, group_ids, nulls_apart, one_form
from trident.windows.timer_index import NEVER, DueRecords
from trident.windows.window_partitions import Share
from trident.windows.window_rows import side_tables, without_late

MET = "$met"
"""The column that says whether a stored row has met another one."""

_PANES = 16
"""About so many panes of the least width hold the rows of a side that flows evenly; fewer let rows come alone later."""

_LONG_AGO = FIRST_MS * 1000
_TIMES = " of two sides"

Watermarks = list[int | None]


def update_join(node: JoinWithinNode, state: Any, share: Share) -> pa.Table:
    """Add a batch to a partition of a join's state, between `begin_commit` and `commit`; return the joined rows."""
    own = Fields.of(["$at", MET], ["bigint", "boolean"])
    reach = node.latest_us - node.earliest_us + sum(side.delay_us for side in node.sides)
    of_sides = [own.concat(side.fields.select(side.rest)) for side in node.sides]
    of, unit = (node.sides[0].key, share.place, _TIMES, "the rows of a join"), max(reach // _PANES, 1000)
    records = DueRecords(state, *of, [], *of_sides, unit=unit)
    were: Watermarks = records.frontier or [None, None]
    came = side_tables(node, share.tables)
    watermarks = list(were)  # the latest time of each side less its delay; they never go back
    for at, (side, reached, before) in enumerate(zip(node.sides, share.moment.reached, were, strict=True)):
        if reached is not None:
            watermarks[at] = reached - side.delay_us if before is None else max(before, reached - side.delay_us)
    new = [
        table if before is None else without_late(node, table, table.column(0).to_numpy() < before)[0]
        for table, before in zip(came, were, strict=True)
    ]
    # The keys whose rows of one side end before the watermark of the other one, some twice.
    ended = [records.take(_before(watermarks[1 - side]), side) for side in range(2)]
    sides, keys = _brought_together(node, records, new, ended)
    return _join_rows(node, records, sides, keys, watermarks, share.run.on_error.bounds)


def _before(watermark: int | None) -> int:
    return _LONG_AGO if watermark is None else watermark - 1


@dataclass
class _Side:
    """What is known of one side: stored rows, then the batch's."""

    rows: pa.Table  # `$id` (the number of the key), `$at`, `MET`, and the fields beside the key
    old: int  # how many of them were stored before this batch

    @property
    def times(self) -> Timed:
        return Timed(self.rows.column(0).to_numpy(), self.rows.column(1).to_numpy())


@dataclass
class _Keys:
    """The distinct keys of a batch; those with a null, which meet nothing, come last."""

    rows: pa.Table  # the key fields of each, named as on the left side
    names: list[Key]  # of the keys that the state may have


def _brought_together(
    node: JoinWithinNode, records: DueRecords, new: Sequence[pa.Table], ended: Sequence[pa.Table]
) -> tuple[list[_Side], _Keys]:
    """Read the rows for the keys of the batch, and for the keys that are due."""
    schema = schema_of(node.sides[0].key)
    parts = [
        table.select(list(side.key.names)).rename_columns(schema.names)
        for side, table in zip(node.sides, new, strict=True)
    ]
    parts += ended
    whole = one_form(pa.concat_tables([part.cast(schema) for part in parts]), schema.names)
    # Keys without a null first, which the state may have; a row with a null is a key of its own.
    ids, firsts, stored = nulls_apart(whole, *group_ids(whole.columns, whole.num_rows))
    rows = whole.take(pa.array(firsts, pa.int64()))
    columns = [column.slice(0, stored).to_pylist() for column in rows.columns]
    keys = _Keys(rows, list(zip(repeat("key"), *columns)))
    sides = []
    of_sides = np.split(ids, np.cumsum([part.num_rows for part in parts])[:-1])
    kept = records.read(keys.names)[1]  # for each side the place of the key, the time, `MET` and the other fields
    for side, table, own, before in zip(node.sides, new, of_sides, kept, strict=False):
        columns = [pa.array(own, pa.int64()), table.column(0), pa.array(np.zeros(len(own), bool)),
                   *(table.column(name) for name in side.rest)]  # fmt: skip
        sides.append(_Side(pa.concat_tables([before, pa.table(columns, schema=before.schema)]), before.num_rows))
    return sides, keys


def _join_rows(
    node: JoinWithinNode, records: DueRecords, sides: list[_Side], keys: _Keys, watermarks: Watermarks, bounds: Bounds
) -> pa.Table:
    met_pairs, count = _pairs(node, sides, bounds), len(keys.names)
    stored, dues, alone, empty = [], [], [], np.ones(len(keys.names), bool)
    for at, (side, in_pairs) in enumerate(zip(sides, met_pairs, strict=True)):
        met = np.asarray(side.rows.column(MET).to_numpy(), bool).copy()
        met[in_pairs] = True
        ends = side.times.at + (node.latest_us if at == 0 else -node.earliest_us)
        over = side.times.ids >= count
        watermark = watermarks[1 - at]
        if watermark is not None:
            over |= ends < watermark
        alone.append(np.flatnonzero(over & ~met) if node.sides[1 - at].outer else np.empty(0, np.int64))
        stored.append(side.rows.set_column(2, MET, pa.array(met)).filter(pa.array(~over)))
        now, ids, due = _before(watermark), side.times.ids[~over], np.full(count, -NEVER)
        np.minimum.at(due, ids, np.maximum(ends[~over], now + 1))  # rows of the year 1 may end before all times
        empty[ids] = False
        due[due == -NEVER] = NEVER
        dues.append((due, now))
    records.keep(keys.rows.slice(0, count), dues, watermarks, (), empty.tolist(), *stored)
    left = np.concatenate([met_pairs[0], alone[0], np.full(len(alone[1]), -1)])
    right = np.concatenate([met_pairs[1], np.full(len(alone[0]), -1), alone[1]])
    return _rows(node, sides, keys, left, right)


def _pairs(node: JoinWithinNode, sides: list[_Side], bounds: Bounds) -> tuple[Ints, Ints]:
    """Return the rows that meet in this batch: a new left row and any right row, or a stored left row and a new right row."""
    left, right = (side.times for side in sides)
    given = sum(side.rows.num_rows for side in sides)
    before, made = np.arange(sides[0].old), [0]

    def check(count: int) -> None:
        bounds.check_step(made[0] + count, given)
        made[0] += count

    came = np.arange(sides[0].old, len(left.ids)), np.arange(sides[1].old, len(right.ids))
    first = pairs(left.take(came[0]), right, node.earliest_us, node.latest_us, check)
    second = pairs(left.take(before), right.take(came[1]), node.earliest_us, node.latest_us, check)
    return np.concatenate([came[0][first[0]], second[0]]), np.concatenate([first[1], came[1][second[1]]])


def _rows(node: JoinWithinNode, sides: list[_Side], keys: _Keys, left: Ints, right: Ints) -> pa.Table:
    """Build the rows of the join: the key, then the other fields of each side; -1 is no row."""
    if not len(left):
        return schema_of(node.fields).empty_table()
    ids = np.full(len(left), -1)
    columns: list[Any] = []
    for side, at in zip(sides, (left, right), strict=True):
        there = at >= 0
        ids[there] = side.times.ids[at[there]]
        pick = pa.array(np.where(there, at, 0), pa.int64(), mask=~there)
        columns.extend(side.rows.column(number).take(pick) for number in range(3, side.rows.num_columns))
    return pa.table([*keys.rows.take(pa.array(ids)).columns, *columns], schema=schema_of(node.fields))


# Which rows of two sides meet: the same key, and times that lie close enough; found in columns, without a loop over rows.


class Timed(NamedTuple):
    """Rows of a side: the number of each one's key, and its time in microseconds (int64, one per row)."""

    ids: Ints
    at: Ints

    def take(self, rows: Ints) -> Timed:
        return Timed(self.ids[rows], self.at[rows])


def pairs(left: Timed, right: Timed, earliest: int, latest: int, check: Callable[[int], None]) -> tuple[Ints, Ints]:
    """Return the rows that meet: `earliest <= right time - left time <= latest`, and the same key.

    For each pair (int64) the numbers of the left row, ascending, and of the right row, by time for each left row. `check` is
    called with the number of pairs before they are made.
    """
    if not len(left.ids) or not len(right.ids):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.lexsort((right.at, right.ids))
    # Times become their ranks, so that key and time fit into one number.
    times, ranks = np.unique(np.concatenate([right.at, left.at + earliest, left.at + latest]), return_inverse=True)
    of_right, lows, highs = np.split(ranks.astype(np.int64), [len(right.at), len(right.at) + len(left.at)])
    codes = (right.ids * len(times) + of_right)[order]
    first = np.searchsorted(codes, left.ids * len(times) + lows, "left")
    counts = np.searchsorted(codes, left.ids * len(times) + highs, "right") - first
    total = int(counts.sum())
    check(total)
    rows = np.repeat(np.arange(len(left.ids)), counts)
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, order[first[rows] + within]
