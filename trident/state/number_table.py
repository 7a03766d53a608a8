"""Opaque numbers of many keys in arrays, with the row of each key; and values that may be such, or a dict.

Rows of many texts are found at once, by a hash table in arrays; a text is read there as whole numbers of eight bytes each.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trident.state.interfaces import Key
from trident.state.number_columns import NumberColumn, NumberForm
from trident.state.table import ABSENT, KeyColumns, OpaqueTable, Span, as_list
from trident.state.values import UNKNOWN_ATTEMPT, OpaqueValue

_SPACE = 1024
_NO_KEY = object()
_FEW_KEYS = 16  # up to this many keys a dict is faster than arrays, so a map stays a dict until a larger commit comes
Rows = npt.NDArray[np.int64]  # int64, shape (n,): the row of each key, -1 for a key that is not there
_FEW_TEXTS = 256  # up to this many texts a dict is faster
_SHARE = 64
"""The index is made once a batch asks for this part of all keys, because it costs as much as some such batches."""

_BYTES, _MOST_BLOCKS = 8, 5
_LONGEST = _BYTES * _MOST_BLOCKS

_Numbers = npt.NDArray[np.uint64]
# The bytes of a block that are the text's.
_KEPT = np.array([(1 << 8 * size) - 1 for size in range(_BYTES + 1)], np.uint64)
# At random, so that no user can choose texts that collide.
_ODD = np.uint64(int.from_bytes(os.urandom(_BYTES), "little") | 1)


class NumberTable:
    """Keys of `width` fields, and values of one form, or None; a key has one row of an array."""

    def __init__(self, width: int, form: NumberForm) -> None:
        self.width, self.form = width, form
        # By the only field of a key, which is found faster than a tuple; otherwise by the key.
        self._rows: dict[Any, int] = {}
        self._free: list[int] = []
        self._numbers = np.empty((0, 2 + 2 * form.width), np.int64)
        self._had, self._has = np.empty(0, form.flag_type), np.empty(0, form.flag_type)  # flags before and now
        self._reserve(0)
        self._texts = TextIndex(self._rows)
        self._span: Span | None = None  # the writer of everything, while there is only one attempt
        self._is_of_one_attempt = True

    def __len__(self) -> int:
        return len(self._rows)

    def keys(self) -> list[Key]:
        """Return all keys, in the order of their first put."""
        return list(zip(self._rows, strict=True)) if self.width == 1 else list(self._rows)

    def entries(self) -> dict[Key, OpaqueValue | None]:
        rows = np.fromiter(self._rows.values(), np.int64, len(self._rows))
        return dict(zip(self.keys(), self._take(rows), strict=True))

    def get(self, keys: Sequence[Key]) -> list[OpaqueValue | None]:
        return list(self._take(self._rows_of(self._names(keys))))

    def put(self, keys: Sequence[Key], values: Sequence[Any]) -> bool:
        """Write a value per key, of a key that comes twice the last; False, and nothing is changed, if one does not fit."""
        if not keys:
            return True
        table = self._fitting(values) if {self.width} == set(map(len, keys)) else None
        if table is None:
            return False
        names = self._names(keys)
        self._write(names, self._rows_of(names), table)
        return True

    def fill(self, names: Sequence[Any], table: OpaqueTable) -> None:
        assert not self._rows, "the table is empty"
        self._write(names, np.full(len(names), -1, np.int64), table)

    def delete(self, keys: Sequence[Key]) -> None:
        for name in self._names(keys):
            row = self._rows.pop(name, None)
            if row is not None:
                self._free.append(row)
                self._texts.remove(row)

    def find(self, keys: Sequence[Key]) -> OpaqueTable | None:
        """Return the values of keys; None if keys that are given field by field have another number of fields."""
        rows = None
        if not isinstance(keys, KeyColumns):
            names: Any = self._names(keys)
        elif len(keys.parts) != self.width:
            return None
        else:
            names = keys.names
            rows = self._texts.rows_of(names)
        if rows is None:
            names = as_list(names)
            rows = self._rows_of(names)
        found = self._take(rows)
        found.span, found.place = self._span, (names, rows)
        return found

    def put_found(self, new: OpaqueTable) -> None:
        """Write values that were combined with the result of `find`; nothing was put since."""
        names, rows = new.place
        self._write(names, rows, new)

    def _take(self, rows: Rows) -> OpaqueTable:
        # The row of an absent key is -1, and so the last one, which no key has: "wrap" is faster than a check of each row.
        numbers, form, middle = self._numbers.take(rows, axis=0, mode="wrap"), self.form, 2 + self.form.width
        prevs = NumberColumn(form, numbers[:, 2:middle], self._had.take(rows, mode="wrap"))
        currs = NumberColumn(form, numbers[:, middle:], self._has.take(rows, mode="wrap"))
        return OpaqueTable((numbers[:, 0], numbers[:, 1], prevs, currs))

    def _put(self, rows: Rows, table: OpaqueTable) -> None:
        prevs, currs, middle = table.prevs, table.currs, 2 + self.form.width
        numbers = np.empty((len(rows), 2 * middle - 2), np.int64)
        numbers[:, 0], numbers[:, 1], numbers[:, 2:middle] = table.txids, table.attempts, prevs.numbers
        numbers[:, middle:] = currs.numbers
        self._numbers[rows], self._had[rows], self._has[rows] = numbers, prevs.flags, currs.flags
        put = table.span
        if put is None or (self._span is not None and self._span.attempt != put.attempt):
            self._span, self._is_of_one_attempt = None, False  # there is none for two attempts
        elif self._is_of_one_attempt:
            _, lowest, highest = self._span or put
            self._span = Span(put.attempt, min(lowest, put.lowest), max(highest, put.highest))

    def _fitting(self, values: Sequence[Any]) -> OpaqueTable | None:
        """Return opaque values as numbers of the form; None if one does not fit."""
        if not isinstance(values, OpaqueTable):
            if set(map(type, values)) != {OpaqueValue}:
                return None
            values = OpaqueTable.of(values)
        txids, attempts, prevs, currs = values.columns
        span = Span(attempts[0], min(txids), max(txids)) if len(set(attempts)) == 1 else None
        try:
            heads = np.array(txids, np.int64), np.array(attempts, np.int64)
            return OpaqueTable((*heads, *(NumberColumn.of(self.form, side) for side in (prevs, currs))), span)
        except (OverflowError, TypeError, ValueError):  # beyond 64 bits, or of another type
            return None

    def _names(self, keys: Sequence[Key]) -> Sequence[Any]:
        if self.width != 1:
            return keys
        return [key[0] if len(key) == 1 else _NO_KEY for key in keys]

    def _rows_of(self, names: Sequence[Any]) -> Rows:
        return np.fromiter(map(self._rows.get, names, repeat(-1)), np.int64, len(names))

    def _write(self, names: Sequence[Any] | pa.Array, rows: Rows, table: OpaqueTable) -> None:
        if len(rows) and rows.min() < 0:
            new, names = np.flatnonzero(rows < 0), as_list(names)
            self._reserve(len(new))
            added = names if len(new) == len(names) else [names[at] for at in new.tolist()]
            rows, their = rows.copy(), self._add_rows(added)
            rows[new] = their
            self._texts.add(added, their)
        self._put(rows, table)

    def _add_rows(self, names: Sequence[Any]) -> Rows:
        """Give names that are not there their rows; return the row of each."""
        before, reused = len(self._rows), [self._free.pop() for _ in range(min(len(self._free), len(names)))]
        first = before + len(reused)  # where it matters, no row before it is free
        rows = [*reused, *range(first, before + len(names))]
        self._rows.update(zip(names, rows, strict=True))
        found = np.array(rows, np.int64)
        if len(self._rows) < before + len(names):  # a name occurs twice
            found = self._rows_of(names)
            self._free += set(rows).difference(found.tolist())
        return found

    def _reserve(self, more: int) -> None:
        space, wanted = len(self._numbers), len(self._rows) + more
        if wanted >= space:
            grown = max(2 * space, wanted + 1, _SPACE) - space
            self._numbers = np.concatenate([self._numbers, np.empty((grown, self._numbers.shape[1]), np.int64)])
            self._had, self._has = (np.concatenate([one, np.zeros(grown, one.dtype)]) for one in (self._had, self._has))
            self._numbers[-1, :2], self._numbers[-1, 2:] = (ABSENT, UNKNOWN_ATTEMPT), 0


class KeptValues:
    """A value per key: a dict (`entries`), or arrays (`columns`) from the first commit of many keys by columns on.

    `form`: of the values; None: they fit no arrays, or one did not, and it is not tried again.
    """

    def __init__(self, form: NumberForm | None = None) -> None:
        self.form = form
        self.entries: dict[Key, Any] = {}
        self.columns: NumberTable | None = None

    def __len__(self) -> int:
        return len(self.entries if self.columns is None else self.columns)

    def keys(self) -> list[Key]:
        return list(self.entries) if self.columns is None else self.columns.keys()

    def get(self, keys: Sequence[Key]) -> list[Any]:
        return list(map(self.entries.get, keys)) if self.columns is None else self.columns.get(keys)

    def put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write a value per key, or what was combined with the result of `find`."""
        if self.columns is not None:
            if type(values) is OpaqueTable and values.place is not None:
                self.columns.put_found(values)
                return
            if self.columns.put(keys, values):
                return
            self.entries.update(self.columns.entries())
            self.columns = self.form = None
        self.entries.update(zip(keys, values, strict=True))

    def delete(self, keys: Sequence[Key]) -> None:
        if self.columns is not None:
            self.columns.delete(keys)
            return
        for key in keys:
            self.entries.pop(key, None)

    def clear(self) -> None:
        self.entries.clear()
        self.columns = None

    def find(self, keys: Sequence[Key]) -> OpaqueTable | None:
        """Return the values of keys; None while this is a dict, or if the keys do not fit."""
        form = self.form if self.columns is None else None
        if form is not None and isinstance(keys, KeyColumns) and len(keys.parts[0]) > _FEW_KEYS:
            columns = NumberTable(len(keys.parts), form)
            if columns.put(list(self.entries), list(self.entries.values())):
                self.columns, self.entries = columns, {}
            else:
                self.form = None
        return None if self.columns is None else self.columns.find(keys)


class TextIndex:
    """A second index beside a dict of rows by key: a hash table of rows, with open addressing; by row it has what its text is.

    It is filled when it pays, and then kept up to date. Texts of more than 40 bytes, and keys that are no text, are found in
    the dict alone.
    """

    def __init__(self, rows: Mapping[Any, int]) -> None:
        self._rows, self._is_filled = rows, False

    def rows_of(self, texts: Sequence[Any] | pa.Array) -> Rows | None:
        """Return the row of each text; None if a dict is faster, or if these are no texts."""
        if not isinstance(texts, pa.StringArray) or len(texts) <= _FEW_TEXTS or texts.null_count:
            return None
        if not self._is_filled:
            if len(texts) * _SHARE < len(self._rows):
                return None
            self._is_filled, self._blocks = True, list[_Numbers]()
            self._hashes = np.zeros(_SPACE, np.uint64)
            self._lengths = np.full(_SPACE, -1, np.int32)  # -1: no text has this row
            self._widen(0)
            self.add(list(self._rows), np.fromiter(self._rows.values(), np.int64, len(self._rows)))
        rows, doubtful = self._find(_Texts.of(texts))
        if len(doubtful):
            names = texts.take(pa.array(doubtful)).to_pylist()
            rows[doubtful] = [self._rows.get(name, -1) for name in names]
        return rows

    def add(self, names: Sequence[Any], rows: Rows) -> None:
        places = [at for at, name in enumerate(names) if _is_short(name)] if self._is_filled else []
        if places:
            self._add(_Texts.of(pa.array([names[at] for at in places], pa.string())), rows[places])

    def _find(self, texts: _Texts) -> tuple[Rows, npt.NDArray[np.int64]]:
        """Return the row of each text, and the places of those that the table cannot tell."""
        slots = (texts.hashes >> self._shift).view(np.int64)
        rows = self._slots.take(slots).astype(np.int64)
        other = np.flatnonzero((self._hashes.take(rows, mode="wrap") != texts.hashes) & (rows >= 0))
        while len(other):
            slots[other] = (slots[other] + 1) % len(self._slots)
            rows[other] = found = self._slots[slots[other]]
            other = other[(self._hashes[found] != texts.hashes[other]) & (found >= 0)]
        same = self._lengths.take(rows, mode="wrap") == texts.lengths
        for kept, block in zip(self._blocks, texts.blocks, strict=False):  # of texts of one length there are as many
            same &= kept.take(rows, mode="wrap") == block
        same |= rows < 0
        if int(texts.lengths.max(initial=0)) > _LONGEST:
            same &= texts.lengths <= _LONGEST
        return rows, np.flatnonzero(~same)

    def _add(self, texts: _Texts, rows: Rows) -> None:
        """Add texts that are not there, and have rows of their own."""
        short = texts.lengths <= _LONGEST
        rows, lengths = rows[short], texts.lengths[short]
        self._reserve(int(rows.max(initial=-1)) + 1, len(texts.blocks))
        self._hashes[rows], self._lengths[rows] = texts.hashes[short], lengths
        for kept, block in zip(self._blocks, texts.blocks, strict=False):
            kept[rows] = block[short]
        if 2 * (self._used + len(rows)) > len(self._slots):
            rows = np.flatnonzero(self._lengths >= 0)
            self._widen(len(rows))
        self._used += len(rows)
        slots = (self._hashes[rows] >> self._shift).view(np.int64)
        while len(rows):
            free = self._slots[slots] < 0
            self._slots[slots[free]] = rows[free]  # of several one stays
            left = self._slots[slots] != rows
            rows, slots = rows[left], (slots[left] + 1) % len(self._slots)

    def remove(self, row: int) -> None:
        """Forget the text of a row; its slot stays taken until the table is made larger."""
        if self._is_filled and row < len(self._lengths):
            self._lengths[row] = -1

    def _reserve(self, rows: int, blocks: int) -> None:
        space = len(self._hashes)
        if rows > space:
            more = max(space, rows - space)
            self._hashes = np.concatenate([self._hashes, np.zeros(more, np.uint64)])
            self._lengths = np.concatenate([self._lengths, np.full(more, -1, np.int32)])
            self._blocks = [np.concatenate([each, np.zeros(more, np.uint64)]) for each in self._blocks]
        while len(self._blocks) < blocks:
            self._blocks.append(np.zeros(len(self._hashes), np.uint64))

    def _widen(self, count: int) -> None:
        """Make an empty table, of which so many rows take a quarter at most."""
        bits = max(_SPACE, 4 * count - 1).bit_length()
        self._slots, self._shift, self._used = np.full(1 << bits, -1, np.int32), np.uint64(64 - bits), 0


class _Texts(NamedTuple):
    """Texts as numbers: the hash of each, its length in bytes, and its blocks, padded with zeros."""

    hashes: _Numbers
    lengths: npt.NDArray[np.int32]
    blocks: list[_Numbers]

    @staticmethod
    def of(texts: pa.StringArray) -> _Texts:
        """Read texts of which none is null; of a long one only the first 40 bytes."""
        _, offsets, data = texts.buffers()
        ends = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
        size = int(ends[-1] - ends[0])
        # A copy with room behind it, because the last block may reach beyond the end.
        padded = np.zeros(size + _BYTES, np.uint8)
        if size:
            padded[:size] = np.frombuffer(data, np.uint8, size, int(ends[0]))
        block_at = np.ndarray(size + 1, "<u8", padded, strides=(1,))
        starts, lengths = ends[:-1] - ends[0], ends[1:] - ends[:-1]
        first = block_at[starts] & _KEPT.take(np.minimum(lengths, _BYTES))
        hashes, blocks = _mix(lengths.astype(np.uint64), first), [first]
        for begin in range(_BYTES, min(int(lengths.max(initial=0)), _LONGEST), _BYTES):
            longer = np.flatnonzero(lengths > begin)  # a hash must not depend on how long other texts are
            kept = np.minimum(lengths[longer] - begin, _BYTES)
            blocks.append(block := np.zeros(len(texts), np.uint64))
            block[longer] = block_at[starts[longer] + begin] & _KEPT.take(kept)
            hashes[longer] = _mix(hashes[longer], block[longer])
        return _Texts(hashes, lengths, blocks)


def _mix(hashes: _Numbers, block: _Numbers) -> _Numbers:
    mixed = (hashes ^ block) * _ODD
    return mixed ^ mixed >> np.uint64(29)


def _is_short(name: Any) -> bool:
    """Whether the key is a text that Arrow can hold, and not obviously too long."""
    if not isinstance(name, str) or len(name) > _LONGEST:
        return False
    return name.isascii() or not any("\ud800" <= each <= "\udfff" for each in name)
