"""Opaque numbers of one partition in arrays: what a commit needs of ten thousand keys is read and written at once.

A row has four numbers, `[txid, attempt, prev, curr]`, as the bits of 64-bit integers or floats, and two flags that say
whether `prev` and `curr` are numbers or None. What does not fit has no place here: `put` says so and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trident.state.columns import Combine, Span
from trident.state.interfaces import Key
from trident.state.values import OpaqueValue

__all__ = ["FoundColumns", "OpaqueColumns"]

_TXID, _ATTEMPT, _PREV, _CURR = range(4)
_HAS_PREV, _HAS_CURR = 1, 2
_SPACE = 1024
_NO_KEY = object()
_MANY_KEYS = 1000
"""From so many on, if they are at least half of all, Arrow finds texts faster than a dict does."""

Rows = npt.NDArray[np.int64]
Column = npt.NDArray[Any]


class OpaqueColumns:
    """The entries of a partition: keys of `width` parts, values that are all whole numbers or all floats."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.type: type[int] | type[float] | None = None  # unknown until the first number comes
        self._rows: dict[
            Any, int
        ] = {}  # by the only part of a key, which is quicker found than a tuple; else by the key
        self._free: list[int] = []
        self._numbers = np.empty((_SPACE, 4), np.int64)
        self._flags = np.zeros(_SPACE, np.uint8)
        self._texts: tuple[pa.Array, Rows] | None = None  # all keys and their rows, to be searched by Arrow
        self._has_settled = False  # did the last commit bring no new key?
        self._cover: Span | None = None  # of all that was ever put, while one attempt did
        self._is_of_one_attempt = True

    @classmethod
    def of(cls, width: int, entries: Mapping[Key, Any]) -> OpaqueColumns | None:
        """Return the same entries as columns; None if they do not fit."""
        made = cls(width)
        return made if made.put(list(entries), list(entries.values())) else None

    def __len__(self) -> int:
        return len(self._rows)

    def keys(self) -> list[Key]:
        """Return all keys, in the order in which they came."""
        return list(zip(self._rows, strict=True)) if self.width == 1 else list(self._rows)

    def entries(self) -> dict[Key, OpaqueValue]:
        """Return everything as a dict."""
        keys = self.keys()
        return dict(zip(keys, self._values(np.fromiter(self._rows.values(), np.int64, len(keys))), strict=True))

    def get(self, keys: Sequence[Key]) -> list[OpaqueValue | None]:
        """Return a value per key, None for an absent one."""
        rows = self._rows_of(self._names(keys))
        if not len(rows) or rows.min() >= 0:
            return self._values(rows)
        there = rows >= 0
        found = iter(self._values(rows[there]))
        return [next(found) if is_there else None for is_there in there.tolist()]

    def put(self, keys: Sequence[Key], values: Sequence[Any]) -> bool:
        """Write a value per key; returns False, and changes nothing, if a key or a value does not fit."""
        if not keys:
            return True
        if {self.width} != set(map(len, keys)) or {OpaqueValue} != set(map(type, values)):
            return False
        txids, attempts, prevs, currs = zip(*values, strict=True)
        types = {*map(type, prevs), *map(type, currs)} - {type(None)}
        if len(types) > 1 or not types <= {int, float} or not self._takes(next(iter(types), None)):
            return False
        try:
            numbers = np.empty((len(keys), 4), np.int64)
            numbers[:, _TXID], numbers[:, _ATTEMPT] = txids, attempts
            for at, column in ((_PREV, prevs), (_CURR, currs)):
                full = [0 if value is None else value for value in column]
                numbers[:, at] = np.array(full, self._dtype()).view(np.int64)
        except OverflowError:  # beyond 64 bits
            return False
        flags = [(prev is not None) | (curr is not None) << 1 for prev, curr in zip(prevs, currs, strict=True)]
        names = self._names(keys)
        self._write(names, self._rows_of(names), numbers, np.array(flags, np.uint8))
        for attempt in set(attempts):
            self._note(Span(attempt, min(txids), max(txids)))
        return True

    def delete(self, keys: Sequence[Key]) -> None:
        """Delete keys; absent ones are ignored."""
        for name in self._names(keys):
            row = self._rows.pop(name, None)
            if row is not None:
                self._free.append(row)
                self._texts = None

    def find(self, parts: Sequence[Sequence[Any] | pa.Array]) -> FoundColumns | None:
        """Return what is there for distinct keys, given part by part; None if keys have another number of parts."""
        if len(parts) != self.width:
            return None
        return self._found(parts[0] if self.width == 1 else list(zip(*map(_listed, parts), strict=True)))

    def find_keys(self, keys: Sequence[Key]) -> FoundColumns:
        """Return what is there for keys."""
        return self._found(self._names(keys))

    def _found(self, names: Sequence[Any] | pa.Array) -> FoundColumns:
        rows = self._rows_of_texts(names)
        if rows is None:
            names = _listed(names)
            rows = self._rows_of(names)
        there = None if not len(rows) or rows.min() >= 0 else rows >= 0
        flags = self._flags.take(rows, mode="wrap")  # the last row's for what is absent
        if there is not None:
            flags *= there
        numbers = self._numbers.take(rows, axis=0, mode="wrap")
        return FoundColumns(self, names, rows, there, numbers, flags, self._cover)

    def put_found(self, found: FoundColumns, txid: int, attempt: int) -> None:
        """Write what was combined."""
        assert self._takes(found.type), "a combine gives no other type"
        numbers = np.empty((len(found.rows), 4), np.int64)
        numbers[:, _TXID], numbers[:, _ATTEMPT] = txid, attempt
        numbers[:, _PREV], numbers[:, _CURR] = found.base.view(np.int64), found.new.view(np.int64)
        flags = found.had.view(np.uint8) | np.uint8(_HAS_CURR)  # True is _HAS_PREV
        if found.there is None:
            self._numbers[found.rows], self._flags[found.rows] = numbers, flags
            self._has_settled = True
        else:
            self._write(found.names, found.rows, numbers, flags)
        self._note(Span(attempt, txid, txid))

    def _note(self, put: Span) -> None:
        """Widen the cover by what was put."""
        attempt, lowest, highest = self._cover or put
        self._is_of_one_attempt &= attempt == put.attempt
        wider = Span(attempt, min(lowest, put.lowest), max(highest, put.highest))
        self._cover = wider if self._is_of_one_attempt else None

    def _takes(self, type_: Any) -> bool:
        """Whether numbers of this type have a place; the first ones settle which."""
        if self.type is None:
            self.type = type_
        return type_ is None or self.type is type_

    def _dtype(self) -> type[np.int64] | type[np.float64]:
        return np.float64 if self.type is float else np.int64

    def _names(self, keys: Sequence[Key]) -> Sequence[Any]:
        if self.width != 1:
            return keys
        return [key[0] if len(key) == 1 else _NO_KEY for key in keys]

    def _rows_of(self, names: Sequence[Any]) -> Rows:
        return np.fromiter(map(self._rows.get, names, repeat(-1)), np.int64, len(names))

    def _rows_of_texts(self, texts: Sequence[Any] | pa.Array) -> Rows | None:
        """Find all texts at once; None where that does not pay: few of all keys, or new ones in every batch."""
        if not isinstance(texts, pa.StringArray) or len(texts) < max(_MANY_KEYS, len(self._rows) // 2):
            return None
        if self._texts is None:
            if not self._has_settled:
                return None
            self._has_settled = False  # not again before the next commit
            if not self._rows or not set(map(type, self._rows)) <= {str, type(None)}:  # Arrow takes bytes for text
                return None
            try:
                keys = pa.array(list(self._rows), pa.string())
            except ValueError:  # half of a surrogate pair
                return None
            self._texts = keys, np.fromiter(self._rows.values(), np.int64, len(keys))
        keys, rows = self._texts
        places = pc.fill_null(pc.index_in(texts, value_set=keys), -1).to_numpy()
        return np.where(places < 0, -1, rows.take(places, mode="wrap"))

    def _values(self, rows: Rows) -> list[Any]:
        numbers, flags = self._numbers.take(rows, axis=0), self._flags.take(rows)
        values = numbers.tolist()
        if self.type is float:
            for value, floats in zip(values, numbers[:, _PREV:].view(np.float64).tolist(), strict=True):
                value[_PREV:] = floats
        if len(flags) and flags.min() < _HAS_PREV | _HAS_CURR:
            for value, flag in zip(values, flags.tolist(), strict=True):
                if not flag & _HAS_PREV:
                    value[_PREV] = None
                if not flag & _HAS_CURR:
                    value[_CURR] = None
        return list(map(tuple.__new__, repeat(OpaqueValue), values))

    def _write(self, names: Sequence[Any], rows: Rows, numbers: Rows, flags: npt.NDArray[np.uint8]) -> None:
        new = np.flatnonzero(rows < 0).tolist()
        self._has_settled = not new
        if new:
            self._texts = None
            rows = rows.copy()
            for at in new:
                row = self._rows.get(names[at])  # there by now, if the key comes twice
                if row is None:
                    row = self._rows[names[at]] = self._next_row(len(new))
                rows[at] = row
        self._numbers[rows] = numbers
        self._flags[rows] = flags

    def _next_row(self, wanted: int) -> int:
        if self._free:
            return self._free.pop()
        row = len(self._rows)
        if row >= len(self._flags):
            space = max(2 * len(self._flags), row + wanted)
            self._numbers = np.concatenate([self._numbers, np.empty((space - len(self._flags), 4), np.int64)])
            self._flags = np.concatenate([self._flags, np.zeros(space - len(self._flags), np.uint8)])
        return row


class FoundColumns:
    """What a partition holds for some keys, and what a commit makes of it: `trident.state.columns.StoredColumns`."""

    base: Column
    had: npt.NDArray[np.bool_]
    new: Column
    type: type[int] | type[float]

    def __init__(
        self,
        columns: OpaqueColumns,
        names: Sequence[Any] | pa.Array,
        rows: Rows,
        there: npt.NDArray[np.bool_] | None,
        numbers: Rows,
        flags: npt.NDArray[np.uint8],
        cover: Span | None,
    ) -> None:
        self.columns, self._names, self.rows = columns, names, rows
        self.there = there  # which keys are; None: all
        self._numbers, self._flags, self.cover = numbers, flags, cover

    @property
    def names(self) -> Sequence[Any]:
        """What the keys are found by."""
        return _listed(self._names)

    def spans(self) -> list[Span]:
        """Return a span per distinct attempt."""
        heads = self._heads()
        if not len(heads):
            return []
        txids, attempts = heads[:, _TXID], heads[:, _ATTEMPT]
        first = int(attempts.min())
        if first == attempts.max():
            return [Span(first, int(txids.min()), int(txids.max()))]
        each = [(attempt, txids[attempts == attempt]) for attempt in np.unique(attempts).tolist()]
        return [Span(attempt, int(wrote.min()), int(wrote.max())) for attempt, wrote in each]

    def txids(self, attempt: int) -> list[int]:
        """Return the distinct txids of an attempt."""
        heads = self._heads()
        found: list[int] = np.unique(heads[heads[:, _ATTEMPT] == attempt, _TXID]).tolist()
        return found

    def first_after(self, txid: int) -> tuple[Key, int]:
        """Return the first key of a batch after `txid`, and that batch."""
        at = int(np.flatnonzero((self.rows >= 0) & (self._numbers[:, _TXID] > txid))[0])
        return self._keys()[at], int(self._numbers[at, _TXID])

    def combine(self, values: Any, function: Combine, fallen: Sequence[tuple[int, int]]) -> Column | None:
        """Combine what stood before with `values`, anything that is an array; None if the result does not fit."""
        values = np.asarray(values)
        self.type = float if values.dtype == np.float64 else int
        if self.columns.type not in (None, self.type):
            return None
        self.base, self.had = self._before(fallen, values.dtype)
        new = _combined(self.base, values, function)
        if np.count_nonzero(self.had) < len(new):
            new = np.where(self.had, new, values)
        if function == "sum" and self.type is int and _overflows(self.base, values, new, self.had):
            return None
        self.new = new
        return new

    def stood(self, fallen: Sequence[tuple[int, int]]) -> list[Any]:
        """Return what stood before."""
        base, had = self._before(fallen, np.dtype(np.float64 if self.columns.type is float else np.int64))
        values: list[Any] = base.tolist()
        if not had.all():
            values = [value if is_there else None for value, is_there in zip(values, had.tolist(), strict=True)]
        return values

    def _before(self, fallen: Sequence[tuple[int, int]], dtype: np.dtype[Any]) -> tuple[Column, npt.NDArray[np.bool_]]:
        """The values that stood before, and which of them are not None."""
        numbers, flags = self._numbers.view(dtype), self._flags
        if not fallen:
            return numbers[:, _CURR], flags >= _HAS_CURR
        fell = np.zeros(len(flags), np.bool_)
        for txid, attempt in fallen:
            fell |= (self._numbers[:, _TXID] == txid) & (self._numbers[:, _ATTEMPT] == attempt)
        base = np.where(fell, numbers[:, _PREV], numbers[:, _CURR])
        return base, np.where(fell, flags & _HAS_PREV != 0, flags >= _HAS_CURR)

    def written(self, txid: int, attempt: int) -> Iterator[tuple[Key, OpaqueValue]]:
        """Iterate over the keys and what batch `txid` put for them."""
        prevs = [prev if had else None for prev, had in zip(self.base.tolist(), self.had.tolist(), strict=True)]
        values = map(OpaqueValue, repeat(txid), repeat(attempt), prevs, self.new.tolist())
        return zip(self._keys(), values, strict=False)

    def _keys(self) -> list[Key]:
        return list(zip(self.names, strict=True)) if self.columns.width == 1 else list(self.names)

    def _heads(self) -> Rows:
        """The txid and the attempt of the keys that are there."""
        heads = self._numbers[:, : _ATTEMPT + 1]
        return heads if self.there is None else heads[self.there]


def _listed(values: Sequence[Any] | pa.Array) -> Sequence[Any]:
    return values.to_pylist() if isinstance(values, (pa.Array, pa.ChunkedArray)) else values


def _combined(stood: Column, values: Column, function: Combine) -> Column:
    """What `Sum`, `Min` and `Max` give; a number of the batch is taken only where it is really smaller or larger."""
    if function == "sum":
        if stood.dtype == np.int64:
            return stood + values  # numpy warns of no overflow of integers; see _overflows
        with np.errstate(invalid="ignore", over="ignore"):  # Python adds infinities and NaN in silence
            return stood + values
    better = values < stood if function == "min" else values > stood
    return np.where(better | (stood != stood), values, stood)


def _overflows(stood: Column, values: Column, new: Column, had: npt.NDArray[np.bool_]) -> bool:
    """Whether a sum wrapped around: its sign then differs from that of both numbers."""
    return bool((((stood ^ new) & (values ^ new) < 0) & had).any())
