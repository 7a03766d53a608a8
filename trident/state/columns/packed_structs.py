"""Structs of numbers as the codec stores them: the bytes of many opaque values at once, to arrays and back.

`[txid, attempt, prev, curr]` has the names of a struct at places that depend only on how long the numbers before them are. So
one step reads or writes a number of all values, where the codec makes a dict of each. The bytes are the codec's, to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trident.state.columns.number_columns import Column, NumberColumn, NumberForm
from trident.state.encoding.codec import encode
from trident.state.encoding.extensions import new_packer, pack
from trident.state.table import ABSENT, OpaqueTable
from trident.state.values import UNKNOWN_ATTEMPT

_NONE, _FLOAT, _UNSIGNED, _LARGEST, _SIGNED = 0xC0, 0xCB, 0xCC, 0xCF, 0xD0  # MessagePack's first byte of what follows

# A small whole number is one byte; of others the first byte says how many follow: by the first bound above the number.
_BOUNDS = np.array([-1 << 31, -1 << 15, -1 << 7, -1 << 5, 1 << 7, 1 << 8, 1 << 16, 1 << 32])
_SIZES, _SMALL = np.array([8, 4, 2, 1, 0, 1, 2, 4, 8]), 4
_MARKS = np.array([*range(_SIGNED + 3, _SIGNED - 1, -1), 0, *range(_UNSIGNED, _LARGEST + 1)], np.uint8)

# By the first byte: where the number's own bytes begin and end, how many bits of eight bytes are not its own, and a mask of
# those that are, which else were taken for a sign's.
_BEGIN, _END, _UNUSED, _OWN = np.zeros(256, np.int64), np.ones(256, np.int64), np.full(256, 56), np.full(256, -1)
for _mark, _size in (*zip(_MARKS.tolist(), _SIZES.tolist(), strict=True), (_FLOAT, 8)):
    if _size:
        _BEGIN[_mark], _END[_mark], _UNUSED[_mark] = 1, 1 + _size, 64 - 8 * _size
_OWN[_UNSIGNED:_LARGEST] = 0xFF, 0xFFFF, 0xFFFFFFFF
_FIRST_BYTES = {"bigint": [*range(128), *range(0xE0, 256), _NONE, *_MARKS], "double": [_FLOAT, _NONE]}
_FIT = {type_: np.isin(np.arange(256), firsts) for type_, firsts in _FIRST_BYTES.items()}

_ABSENT = encode([ABSENT, UNKNOWN_ATTEMPT, None, None])


class PackedStructs:
    """Opaque structs of a form, as the codec packs them."""

    def __init__(self, form: NumberForm) -> None:
        self.form = form
        first, *others = map(pack, form.names)
        self._names = [new_packer().pack_map_header(form.width) + first, *others]  # what is before each number
        self._room = 40 + 2 * (sum(map(len, self._names)) + 9 * form.width)  # more than a value has

    def encode(self, table: OpaqueTable) -> list[bytes]:
        """Return the bytes of values that one commit writes."""
        assert table.span is not None, "the columns of a commit say who wrote them"
        begins = np.arange(len(table)) * self._room
        cursor = _Cursor(np.empty(len(table) * self._room, np.uint8), begins)
        cursor.put(encode([table.span.highest, table.span.attempt, None, None])[:-2])
        self._put_structs(cursor, table.prevs)
        self._put_structs(cursor, table.currs)
        data = cursor.bytes.tobytes()
        return [data[begin:end] for begin, end in zip(begins.tolist(), cursor.at.tolist(), strict=True)]

    def decode(self, stored: Sequence[bytes | None]) -> OpaqueTable | None:
        """Return the values of stored bytes, of which None is an absent one; None if some are not of this form."""
        there = [_ABSENT if data is None else data for data in stored]
        sizes = np.fromiter(map(len, there), np.int64, len(there))
        ends = sizes.cumsum()
        # Damaged bytes may be read past their end, by less than the room of a value.
        cursor = _Cursor(np.frombuffer(b"".join((*there, bytes(self._room))), np.uint8), ends - sizes)
        cursor.skip(_ABSENT[:2])  # a list of four
        (txids, are_txids), (attempts, are_attempts) = cursor.numbers("bigint"), cursor.numbers("bigint")
        made = OpaqueTable((txids, attempts, self._structs(cursor), self._structs(cursor)))
        return made if cursor.fits and (are_txids & are_attempts & (cursor.at == ends)).all() else None

    def _put_structs(self, cursor: _Cursor, column: NumberColumn) -> None:
        begins, there = cursor.at, np.flatnonzero(~column.are_none())
        cursor.bytes[begins] = _NONE
        cursor.at, numbers, flags = begins[there], column.numbers[there].T, column.flags[there]
        kinds = _BOUNDS.searchsorted(numbers, side="right")
        marks, sizes = np.where(kinds == _SMALL, numbers.astype(np.uint8), _MARKS[kinds]), _SIZES[kinds]
        for at, type_ in enumerate(self.form.types):
            if type_ == "double":
                marks[at], sizes[at] = _FLOAT, 8
            none = flags & 1 << at == 0
            marks[at, none], sizes[at, none] = _NONE, 0
        words = numbers << 64 - 8 * sizes
        for name, mark, size, word in zip(self._names, marks, sizes, words, strict=True):
            cursor.put(name)
            cursor.bytes[cursor.at], cursor.words[cursor.at + 1] = mark, word
            cursor.at = cursor.at + 1 + size
        cursor.join(begins + 1, there)

    def _structs(self, cursor: _Cursor) -> NumberColumn:
        made, begins = NumberColumn.nulls(self.form, len(cursor.at)), cursor.at
        there = np.flatnonzero(cursor.bytes[begins] != _NONE)
        cursor.at, made.flags[there] = begins[there], 1 << self.form.width
        for at, (name, type_) in enumerate(zip(self._names, self.form.types, strict=True)):
            cursor.skip(name)
            made.numbers[there, at], are_numbers = cursor.numbers(type_)
            made.flags[there] |= are_numbers.astype(np.int64) << at
        cursor.join(begins + 1, there)
        return made


class _Cursor:
    """A place in each of many values, all of which are moved past the same things.

    `words`: the eight bytes from each of `bytes` on.
    `fits`: whether each value had what was expected of it.
    """

    def __init__(self, data: npt.NDArray[np.uint8], at: Column) -> None:
        self.bytes, self.at, self.fits = data, at, True
        self.words = self._pieces(">i8", 8)

    def put(self, text: bytes) -> None:
        self._pieces("V", len(text))[self.at] = np.void(text)
        self.at = self.at + len(text)

    def skip(self, text: bytes) -> None:
        self.fits &= self._pieces("V", len(text))[self.at].tobytes() == text * len(self.at)
        self.at = self.at + len(text)

    def numbers(self, type_: str) -> tuple[Column, npt.NDArray[np.bool_]]:
        """Return the bits of the numbers, 0 for None, and where there are any."""
        marks = self.bytes[self.at]
        numbers = self.words[self.at + _BEGIN[marks]].astype(np.int64) >> _UNUSED[marks] & _OWN[marks]
        self.fits &= bool(_FIT[type_][marks].all() and not (numbers[marks == _LARGEST] < 0).any())
        self.at, are_numbers = self.at + _END[marks], marks != _NONE
        return numbers * are_numbers, are_numbers

    def join(self, others: Column, places: Column) -> None:
        """Put these places among others."""
        others[places], self.at = self.at, others

    def _pieces(self, type_: str, size: int) -> npt.NDArray[Any]:
        """Return the pieces of a size that begin at each byte."""
        dtype = np.dtype(type_ if type_ != "V" else f"V{size}")
        return np.ndarray(max(0, len(self.bytes) - size + 1), dtype, self.bytes.data, 0, (1,))
