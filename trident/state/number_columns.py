"""Numbers of many keys, or structs of numbers, as one column of an `OpaqueTable`: chosen, combined and written as arrays.

A struct is what several aggregates are in one state. A mean is no number of its own: it is made of the two fields behind it.
`PackedStructs` are their bytes in the codec, to the last: `[txid, attempt, prev, curr]` has the names of a struct at places
that depend only on how long the numbers before them are. So one step reads or writes a number of all values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trident.fields import struct_fields
from trident.state.encoding.codec import encode
from trident.state.encoding.extensions import new_packer, pack
from trident.state.table import ABSENT, OpaqueTable
from trident.state.values import UNKNOWN_ATTEMPT, Combine

_MOST_FIELDS = 30
_EXACT_FLOAT = 1 << 53  # whole numbers up to here are floats
_TURNED = 1 << 62  # the least that a sum differs by which was turned
_NUMBERS = {"bigint": (int, pa.int64(), np.int64), "double": (float, pa.float64(), np.float64)}

Column = npt.NDArray[Any]  # int64 or float64, shape (n,)
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


@dataclass(frozen=True)
class NumberForm:
    """What the values are: a `bigint`, a `double`, or a struct of such; no names: a value is the number itself."""

    types: tuple[str, ...]
    names: tuple[str, ...] = ()

    @staticmethod
    def of(type_: str | None) -> NumberForm | None:
        """Return the form of values of a type; None if they do not fit arrays."""
        if type_ in _NUMBERS:
            return NumberForm((type_,))
        fields = struct_fields(type_)
        if not 0 < len(fields) <= _MOST_FIELDS or not all(declared in _NUMBERS for _, declared in fields):
            return None
        names, types = zip(*fields, strict=True)
        return NumberForm(types, names)

    @cached_property
    def width(self) -> int:
        return len(self.types)

    @cached_property
    def bits(self) -> int:
        """How many flags a value has; the last of them is its own."""
        return len(self.types) + bool(self.names)

    @cached_property
    def full(self) -> int:
        """The flags of a value without any None."""
        return (1 << self.bits) - 1

    @cached_property
    def flag_type(self) -> Any:
        return np.int64 if self.names else np.uint8

    @cached_property
    def arrow(self) -> pa.DataType:
        types = [_NUMBERS[type_][1] for type_ in self.types]
        return pa.struct(list(zip(self.names, types, strict=True))) if self.names else types[0]


class NumberColumn:
    """The values of some keys: an Arrow array for `pyarrow.array`, a list with `tolist`.

    `form`: what they are.
    `numbers`: int64, shape (n, width): bits of the types of the form.
    `flags`: shape (n,): a bit for each number that is not None; of a struct one more, for the struct itself.
    """

    __slots__ = ("flags", "form", "numbers")

    def __init__(self, form: NumberForm, numbers: Column, flags: Column) -> None:
        self.form, self.numbers, self.flags = form, numbers, flags

    @staticmethod
    def nulls(form: NumberForm, count: int) -> NumberColumn:
        return NumberColumn(form, np.zeros((count, form.width), np.int64), np.zeros(count, form.flag_type))

    @staticmethod
    def of(form: NumberForm, values: Sequence[Any] | pa.Array) -> NumberColumn:
        """Return the column of values of Python, or of an Arrow array of the form's type.

        TypeError, ValueError, OverflowError: one is of another form, or beyond 64 bits.
        """
        if not isinstance(values, pa.Array):
            _check_types(form, values)
            values = pa.array(values, form.arrow)
        made = NumberColumn.nulls(form, len(values))
        made.flags |= _valid(values, form) << form.bits - 1
        for at, column in enumerate(values.flatten() if form.names else ()):
            made.flags |= _valid(column, form) << at
            made.numbers[:, at] = column.fill_null(0).to_numpy().view(np.int64)
        if not form.names:
            made.numbers[:, 0] = values.fill_null(0).to_numpy().view(np.int64)
        return made

    def __len__(self) -> int:
        return len(self.flags)

    def __getitem__(self, places: Any) -> NumberColumn:
        return NumberColumn(self.form, self.numbers[places], self.flags[places])

    def __setitem__(self, places: Any, values: NumberColumn) -> None:
        self.numbers[places], self.flags[places] = values.numbers, values.flags

    def tolist(self) -> list[Any]:
        columns: list[list[Any]] = [column.tolist() for column in self._fields()]
        for column, places in zip(columns, self._nones(), strict=False):
            for place in np.flatnonzero(places).tolist():
                column[place] = None
        if not self.form.names:
            return columns[0]
        structs: list[Any] = list(map(dict, map(zip, repeat(self.form.names), zip(*columns, strict=True))))
        for place in np.flatnonzero(self.flags >> self.form.width & 1 == 0).tolist():
            structs[place] = None
        return structs

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:
        columns = self.arrays()
        if not self.form.names:
            return columns[0]
        return pa.StructArray.from_arrays(columns, list(self.form.names), mask=pa.array(self.are_none()))

    def arrays(self) -> list[pa.Array]:
        masks = self._nones() or repeat(None)
        return [pa.array(column, mask=mask) for column, mask in zip(self._fields(), masks, strict=False)]

    def are_none(self) -> npt.NDArray[np.bool_]:
        none: npt.NDArray[np.bool_] = self.flags >> self.form.bits - 1 & 1 == 0
        return none

    def repeat(self, number: int) -> Column:
        made = np.empty(len(self.flags), np.int64)
        made.fill(number)  # of a few, three times as fast as `numpy.full`
        return made

    def where(self, these: npt.NDArray[np.bool_], others: NumberColumn) -> NumberColumn:
        numbers = np.where(these[:, np.newaxis], self.numbers, others.numbers)
        return NumberColumn(self.form, numbers, np.where(these, self.flags, others.flags))

    def combine_with(self, values: Any, function: Combine | Sequence[Combine]) -> NumberColumn | None:
        """Return these values, where there are any, combined with others; None if the result does not fit.

        `values`: anything that is an array of int64 or float64, shape (n,); or an Arrow array of structs, of whose fields
        only means are null.
        `function`: the function; of structs one for each field.
        """
        form, had = self.form, self.flags
        functions, given = ([function], [values]) if isinstance(function, str) else (function, values)
        if isinstance(function, str) == bool(form.names):
            return None
        if form.names:
            if [one.name for one in values.type] != list(form.names):
                return None
            given = values.flatten()
        made = NumberColumn(form, np.empty(self.numbers.shape, np.int64), had | form.full)
        olds, news = self._fields(), made._fields()
        for at in reversed(range(form.width)):  # the fields that a mean is made of are behind it
            if functions[at] == "mean":
                if sums_have_turned(olds[at : at + 3]) or sums_have_turned(given[at : at + 3]):
                    return None
                _write_means(*news[at : at + 3])
                made.flags[news[at + 2] == 0] &= ~(1 << at)
            elif not _combine_into(news[at], olds[at], had & 1 << at != 0, np.asarray(given[at]), functions[at]):
                return None
        return made

    def _fields(self) -> list[Column]:
        return [self.numbers[:, at].view(_NUMBERS[type_][2]) for at, type_ in enumerate(self.form.types)]

    def _nones(self) -> list[npt.NDArray[np.bool_]]:
        if not len(self) or self.flags.min() == self.form.full:
            return []
        return [self.flags >> at & 1 == 0 for at in range(self.form.width)]


def absent_numbers(form: NumberForm, count: int) -> OpaqueTable:
    """Return a table of so many keys, none of which was written, to put numbers of a form into."""
    heads = np.full(count, ABSENT, np.int64), np.full(count, UNKNOWN_ATTEMPT, np.int64)
    return OpaqueTable((*heads, NumberColumn.nulls(form, count), NumberColumn.nulls(form, count)))


def _check_types(form: NumberForm, values: Sequence[Any]) -> None:
    """Raise TypeError if a value is not of the types of the form: Arrow would take a bool for a number, or a whole float."""
    names = list(form.names)
    if any(one is not None and (type(one) is not dict or list(one) != names) for one in values if names):
        raise TypeError
    columns = [[one[name] for one in values if one is not None] for name in names] or [list(values)]
    for type_, column in zip(form.types, columns, strict=True):
        if not {_NUMBERS[type_][0], type(None)}.issuperset(map(type, column)):
            raise TypeError


def _valid(column: pa.Array, form: NumberForm) -> Column:
    valid: Column = column.is_valid().to_numpy(zero_copy_only=False).astype(form.flag_type)
    return valid


def _combine_into(new: Column, old: Column, had: npt.NDArray[np.bool_], given: Column, function: Combine) -> bool:
    """Write old numbers, where there are any, combined with the given ones; False if the result does not fit."""
    if given.dtype != new.dtype:
        return False
    combined = combined_numbers(old, given, function)
    if not had.all():
        combined = np.where(had, combined, given)
    new[:] = combined
    # A sum that wrapped around has another sign than both numbers.
    wraps = function == "sum" and new.dtype == np.int64
    return not (wraps and bool((((old ^ combined) & (given ^ combined) < 0) & had).any()))


def combined_numbers(base: Column, values: Column, function: Combine) -> Column:
    """Return the result of `Sum`, `Min` or `Max`: of equal numbers the stored one; a NaN is greater than any number."""
    if function == "sum":
        if base.dtype == np.int64:
            return base + values  # NumPy does not warn about integer overflow; see _combine_into
        with np.errstate(invalid="ignore", over="ignore"):  # Python adds infinities and NaN without a warning
            return base + values
    better = (values < base) | (base != base) if function == "min" else (values > base) | (values != values)
    return np.where(better, values, base)


def sums_have_turned(fields: Sequence[Column | pa.Array]) -> bool:
    """Whether a sum, of means, sums and counts, is remembered as less than it is, because it is beyond 64 bits: see `Avg`."""
    means, totals, counts = (one.fill_null(0).to_numpy() if isinstance(one, pa.Array) else one for one in fields)
    return totals.dtype == np.int64 and bool((np.abs(means * counts - totals) >= _TURNED).any())


def _write_means(means: Column, totals: Column, counts: Column) -> None:
    """Write each total by its count, as Python divides them; 0 where there is none."""
    means[:] = 0.0
    if totals.dtype == np.int64 and len(totals) and max(-int(totals.min()), int(totals.max())) > _EXACT_FLOAT:
        pairs = zip(totals.tolist(), counts.tolist(), strict=True)
        means[:] = [total / count if count else 0.0 for total, count in pairs]
    else:
        np.divide(totals, counts, out=means, where=counts != 0)


class PackedStructs:
    """Opaque structs of a form, as the codec packs them."""

    def __init__(self, form: NumberForm) -> None:
        self.form = form
        first, *others = map(pack, form.names)
        self._names = [new_packer().pack_map_header(form.width) + first, *others]  # what is before each number
        self._room = 40 + 2 * (sum(map(len, self._names)) + 9 * form.width)  # more than a value has

    def encode(self, table: OpaqueTable) -> list[bytes]:
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
    """A place in each of many values, all of which are moved past the same things."""

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
        others[places], self.at = self.at, others

    def _pieces(self, type_: str, size: int) -> npt.NDArray[Any]:
        dtype = np.dtype(type_ if type_ != "V" else f"V{size}")
        return np.ndarray(max(0, len(self.bytes) - size + 1), dtype, self.bytes.data, 0, (1,))
