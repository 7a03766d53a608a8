"""Finds the rows of many texts at once: a hash table in arrays beside the dict that has the row of each key.

A text is read as whole numbers of eight bytes each. So a batch of texts becomes a few arrays, and is hashed, looked up and
compared by a few operations on them; no text becomes a Python object.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Rows = npt.NDArray[np.int64]
"""int64, shape (n,): the row of each key, -1 for a key that is not there."""

_FEW_TEXTS = 256
"""Up to this many texts a dict is faster."""

_SHARE = 64
"""The index is made once a batch asks for this part of all keys, because it costs as much as some such batches."""

_BYTES, _MOST_BLOCKS = 8, 5
_LONGEST = _BYTES * _MOST_BLOCKS
_SPACE = 1024

_Numbers = npt.NDArray[np.uint64]
# The bytes of a block that are the text's.
_KEPT = np.array([(1 << 8 * size) - 1 for size in range(_BYTES + 1)], np.uint64)
# At random, so that no user can choose texts that collide.
_ODD = np.uint64(int.from_bytes(os.urandom(_BYTES), "little") | 1)


class TextIndex:
    """A second index beside a dict of rows by key; made when it pays, and then kept up to date.

    Texts of more than 40 bytes, and keys that are no text, are found in the dict alone.

    `rows`: the row of each key.
    """

    def __init__(self, rows: Mapping[Any, int]) -> None:
        self._rows = rows
        self._table: _TextTable | None = None

    def rows_of(self, texts: Sequence[Any] | pa.Array) -> Rows | None:
        """Return the row of each text; None if a dict is faster, or if these are no texts."""
        if not isinstance(texts, pa.StringArray) or len(texts) <= _FEW_TEXTS or texts.null_count:
            return None
        if self._table is None:
            if len(texts) * _SHARE < len(self._rows):
                return None
            self._table = _TextTable()
            self.add(list(self._rows), np.fromiter(self._rows.values(), np.int64, len(self._rows)))
        asked = _Texts.of(texts)
        rows, doubtful = self._table.find(asked)
        if len(doubtful):
            names = texts.take(pa.array(doubtful)).to_pylist()
            rows[doubtful] = [self._rows.get(name, -1) for name in names]
        return rows

    def add(self, names: Sequence[Any], rows: Rows) -> None:
        """Note the rows of keys that were added to the dict."""
        if self._table is None:
            return
        places = [at for at, name in enumerate(names) if _is_short(name)]
        if places:
            texts = pa.array([names[at] for at in places], pa.string())
            self._table.add(_Texts.of(texts), rows[places])

    def remove(self, row: int) -> None:
        """Note that the key of a row was removed from the dict."""
        if self._table is not None:
            self._table.remove(row)


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


class _TextTable:
    """A hash table of rows, with open addressing, and beside it by row what its text is."""

    def __init__(self) -> None:
        self._hashes = np.zeros(_SPACE, np.uint64)
        self._lengths = np.full(_SPACE, -1, np.int32)  # -1: no text has this row
        self._blocks: list[_Numbers] = []
        self._widen(0)

    def find(self, texts: _Texts) -> tuple[Rows, npt.NDArray[np.int64]]:
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

    def add(self, texts: _Texts, rows: Rows) -> None:
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
        self._place(rows)

    def remove(self, row: int) -> None:
        """Forget the text of a row; its slot stays taken until the table is made larger."""
        if row < len(self._lengths):
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

    def _place(self, rows: Rows) -> None:
        self._used += len(rows)
        slots = (self._hashes[rows] >> self._shift).view(np.int64)
        while len(rows):
            free = self._slots[slots] < 0
            self._slots[slots[free]] = rows[free]  # of several one stays
            left = self._slots[slots] != rows
            rows, slots = rows[left], (slots[left] + 1) % len(self._slots)


def _is_short(name: Any) -> bool:
    """Whether the key is a text that Arrow can hold, and not obviously too long."""
    if not isinstance(name, str) or len(name) > _LONGEST:
        return False
    return name.isascii() or not any("\ud800" <= each <= "\udfff" for each in name)
