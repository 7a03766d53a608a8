"""Numbers of many keys, or structs of numbers, as one column of an `OpaqueTable`: chosen, combined and written as arrays.

A struct is what several aggregates are in one state. A mean is no number of its own: it is made of the two fields behind it.
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
from trident.state.table import ABSENT, OpaqueTable
from trident.state.values import UNKNOWN_ATTEMPT, Combine

_MOST_FIELDS = 30
_EXACT_FLOAT = 1 << 53  # whole numbers up to here are floats
_TURNED = 1 << 62  # the least that a sum differs by which was turned
_NUMBERS = {"bigint": (int, pa.int64(), np.int64), "double": (float, pa.float64(), np.float64)}

Column = npt.NDArray[Any]
"""int64 or float64, shape (n,)."""


@dataclass(frozen=True)
class NumberForm:
    """What the values are: `bigint`, `double`, or structs whose fields are such.

    `types`: of the numbers.
    `names`: of the fields, in the order of their types; none: a value is the number itself.
    """

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
        """How many numbers a value has."""
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
        """Return an Arrow array for each number."""
        masks = self._nones() or repeat(None)
        return [pa.array(column, mask=mask) for column, mask in zip(self._fields(), masks, strict=False)]

    def are_none(self) -> npt.NDArray[np.bool_]:
        """Return where a value itself is None."""
        none: npt.NDArray[np.bool_] = self.flags >> self.form.bits - 1 & 1 == 0
        return none

    def repeated(self, number: int) -> Column:
        """Return a number for each value."""
        made = np.empty(len(self.flags), np.int64)
        made.fill(number)  # of a few, three times as fast as `numpy.full`
        return made

    def where(self, these: npt.NDArray[np.bool_], others: NumberColumn) -> NumberColumn:
        """Return these values, and the others where it is not these."""
        numbers = np.where(these[:, np.newaxis], self.numbers, others.numbers)
        return NumberColumn(self.form, numbers, np.where(these, self.flags, others.flags))

    def combine_with(self, values: Any, function: Combine | Sequence[Combine]) -> NumberColumn | None:
        """Return these values, where there are any, combined with others; None if the result does not fit.

        It does not if a sum is beyond 64 bits, or values are of another form.

        `values`: anything that is an array of int64 or float64, shape (n,); or an Arrow array of structs, of whose fields only
        means are null.
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
        """Return where each number is None; nothing if none is."""
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
    return not (function == "sum" and new.dtype == np.int64 and overflows(old, given, combined, had))


def combined_numbers(base: Column, values: Column, function: Combine) -> Column:
    """Return the result of `Sum`, `Min` or `Max`: of equal numbers the stored one; a NaN is greater than any number."""
    if function == "sum":
        if base.dtype == np.int64:
            return base + values  # NumPy does not warn about integer overflow; see overflows
        with np.errstate(invalid="ignore", over="ignore"):  # Python adds infinities and NaN without a warning
            return base + values
    better = (values < base) | (base != base) if function == "min" else (values > base) | (values != values)
    return np.where(better, values, base)


def overflows(base: Column, values: Column, new: Column, had: npt.NDArray[np.bool_]) -> bool:
    """Whether a sum wrapped around: its sign then differs from that of both numbers."""
    return bool((((base ^ new) & (values ^ new) < 0) & had).any())


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
