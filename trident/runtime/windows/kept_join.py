"""What the state of a join over time holds: the rows of both sides by key, and when each key must be looked at again.

::

    ("join",)        -> version, watermark of the left side, of the right side (microseconds; None before its first row)
    ("key", *key)    -> version, then of each side the columns: times, whether each row has met another one, the other fields
    ("windows",)     -> the directory of `kept_windows`, and its chunks: the keys whose rows end in each pane of time

With n > 1 partitions each has all but the keys' rows for itself, under `("join", n, partition)` and so on.

A batch reads and writes the keys of its own rows, and those whose rows can meet no other row any more. A side may run far ahead
of the other one, so the panes get wider with their distance from the watermark, four times at each level. A wide pane is opened
when the watermark reaches it; what stays of its rows then goes to narrower ones. So there are few panes at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.errors import CorruptValueError
from trident.fields import Fields
from trident.graph import JoinSide, JoinWithinNode
from trident.operations.windows import FIRST_MS
from trident.runtime.steps.key_columns import Ints, group_ids
from trident.runtime.windows.kept_windows import WindowStore, mergeable
from trident.runtime.windows.shares import ONE, PartitionPlace
from trident.state.encoding.codec import decode, decode_found, encode, encode_many
from trident.state.interfaces import Key

MET = "$met"
"""The column that says whether a stored row has met another one."""

_VERSION = 1
_PANES = 16
"""About so many panes of the least width hold the rows of a side that flows evenly; fewer let rows come alone later."""

_NEAR = 16
"""So many panes from the watermark on are of the least width; each next level begins four times as far away."""

_LEVELS = 32
_LONG_AGO = FIRST_MS * 1000

Watermarks = list[int | None]


class _Pane(NamedTuple):
    """A range of times at which rows of a side end, in microseconds; the stop is not in it."""

    number: int
    side: int
    level: int
    start: int
    stop: int

    @staticmethod
    def of(number: int, least: int) -> _Pane:
        """Return the pane of a number: `(n * _LEVELS + level) * 2 + side`, where n counts the widths of its level."""
        level, width = number // 2 % _LEVELS, least << 2 * (number // 2 % _LEVELS)
        start = number // (2 * _LEVELS) * width
        return _Pane(number, number % 2, level, start, start + width)


class KeptJoin:
    """The state of a join, within a commit.

    `watermarks`: of the left and of the right side, after the batches so far.
    """

    def __init__(self, node: JoinWithinNode, state: Any, place: PartitionPlace = ONE) -> None:
        self._node, self._state, self._marks = node, state, place.key("join")
        reach = node.latest_us - node.earliest_us + sum(side.delay_us for side in node.sides)
        self._width = max(reach // _PANES, 1000)
        self._panes = WindowStore(state, node.sides[0].key, self._width, place, node.sides[0].key)
        others = [other.key("join") for other in self._panes.taken_from]
        self._panes.forget(others)
        # The partitions of another layout all have the same marks.
        self.watermarks: Watermarks = _watermarks(state.multi_get(others[:1] or [self._marks])[0])
        self._found: set[Key] = set()
        self._opened: list[_Pane] = []

    # ---- which keys to look at again --------------------------------------------------------------------------------

    def due_keys(self, watermarks: Watermarks) -> pa.Table:
        """Open the panes that the other side's watermark reached, or passed if narrow; return the keys of their rows."""
        self._opened = []
        for number in self._panes.directory.panes:
            pane = _Pane.of(number, self._width)
            watermark = watermarks[1 - pane.side]
            if watermark is not None and (pane.start if pane.level else pane.stop) <= watermark:
                self._opened.append(pane)
        numbers = [pane.number for pane in self._opened]
        read = self._panes.read(run for number in numbers for run in self._panes.directory.panes[number])
        for number in numbers:
            self._panes.remove(number)
        return pa.Table.from_batches([rows for of_run in read.values() for rows in of_run], self._panes.schema)

    def was_opened(self, side: int, ends: Ints) -> Any:
        """Return whether rows end in a wide pane that `due_keys` opened (bool, one per row)."""
        found = np.zeros(len(ends), bool)
        for pane in self._opened:
            if pane.side == side and pane.level:
                found |= (ends >= pane.start) & (ends < pane.stop)
        return found

    def look_again(self, side: int, keys: pa.Table, ends: Ints, watermark: int | None) -> None:
        """Remember the keys of rows, by the times at which these end (int64, one per row); `watermark`: of the other side."""
        panes = self._numbers(side, ends, _LONG_AGO if watermark is None else watermark)
        keys = keys.cast(self._panes.schema)
        for pane in np.unique(panes).tolist():
            rows = keys.filter(pa.array(panes == pane))
            runs = self._panes.directory.panes.get(pane, [])
            merged = runs[len(runs) - mergeable(runs, True) :]
            read = self._panes.read(merged)
            stored = pa.Table.from_batches([rows for of_run in read.values() for rows in of_run], self._panes.schema)
            self._panes.add(pane, _distinct(pa.concat_tables([stored, rows])), merged)

    def _numbers(self, side: int, ends: Ints, watermark: int) -> Ints:
        """Return the pane of each row."""
        numbers = ends // self._width * (2 * _LEVELS) + side
        level, begins = 1, self._width * _NEAR
        while (far := ends - watermark >= begins).any():
            numbers[far] = (ends[far] // (self._width << 2 * level) * _LEVELS + level) * 2 + side
            level, begins = level + 1, begins * 4
        return numbers

    # ---- rows by key ------------------------------------------------------------------------------------------------

    def read(self, keys: Sequence[Key]) -> list[pa.Table]:
        """Return the rows stored for some keys: for each side a table of `MET`, the mark of the side and the fields.

        A first column `$id` has the place of the row's key in `keys`; the key's own fields are left out.
        """
        names = _names(keys)
        data = self._state.multi_get(names) if names else []
        self._found = {name for name, one in zip(names, data, strict=True) if one is not None}
        width = [2 + len(side.rest) for side in self._node.sides]
        empty: list[Any] = [_VERSION, *([] for _ in range(sum(width)))]
        records = decode_found(data, empty)
        for version, size in {(record[0], len(record)) for record in records}:
            if version != _VERSION or size != len(empty):
                raise _unknown(version)
        bounds = (1, 1 + width[0], 1 + sum(width))
        return [
            _side_rows(side, [record[bounds[at] : bounds[at + 1]] for record in records])
            for at, side in enumerate(self._node.sides)
        ]

    def write(self, keys: Sequence[Key], sides: Sequence[pa.Table], watermarks: Watermarks) -> None:
        """Store the rows of some keys, as `read` returns them, in place of what was read, and all else that changed."""
        columns = [column for rows in sides for column in _by_key(rows, len(keys))]
        names = _names(keys)
        records = [[_VERSION, *record] for record in zip(*columns, strict=True)] if columns else []
        full = [any(record[1:]) for record in records]
        puts = [name for name, some in zip(names, full, strict=True) if some]
        values = encode_many([record for record, some in zip(records, full, strict=True) if some])
        self._state.multi_put([self._marks, *puts], [encode([_VERSION, *watermarks]), *values])
        emptied = [name for name, some in zip(names, full, strict=True) if not some and name in self._found]
        if emptied:
            self._state.multi_remove(emptied)
        self._panes.write()


def _watermarks(marks: bytes | None) -> Watermarks:
    version, *watermarks = [_VERSION, None, None] if marks is None else decode(marks)
    if version != _VERSION:
        raise _unknown(version)
    return watermarks


def _names(keys: Sequence[Key]) -> list[Key]:
    return [("key", *key) for key in keys]


def _distinct(keys: pa.Table) -> pa.Table:
    _, firsts = group_ids(keys.columns, keys.num_rows)
    return keys.take(pa.array(firsts))


def _side_rows(side: JoinSide, records: list[list[list[Any]]]) -> pa.Table:
    sizes = np.array([len(columns[0]) for columns in records], np.int64)
    fields = Fields.of(["$id", "$at", MET], ["bigint", "bigint", "boolean"])
    schema = schema_of(fields.concat(side.fields.select(side.rest)))
    columns = list(zip(*records, strict=True)) if records else repeat((), len(schema) - 1)
    arrays = [
        pa.array(list(chain.from_iterable(of_keys)), type_)
        for type_, of_keys in zip(schema.types[1:], columns, strict=False)
    ]
    return pa.table([pa.array(np.repeat(np.arange(len(records)), sizes), pa.int64()), *arrays], schema=schema)


def _by_key(rows: pa.Table, count: int) -> list[list[list[Any]]]:
    """Return for each column but the first the values of each key."""
    ids = rows.column(0).to_numpy()
    order = np.argsort(ids, kind="stable")
    bounds = np.searchsorted(ids[order], np.arange(count + 1)).tolist()
    sorted_ = rows.take(pa.array(order))
    found = []
    for column in sorted_.columns[1:]:
        values = column.to_pylist()
        found.append([values[start:stop] for start, stop in pairwise(bounds)])
    return found


def _unknown(version: object) -> CorruptValueError:
    return CorruptValueError(
        f"read the rows of a join: they are of version {version} or of other fields, this topology keeps version {_VERSION}; "
        "another version of the topology wrote them. Give the join another state_name"
    )
