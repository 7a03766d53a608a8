"""Opaque values of several numbers, as of several aggregates in one state, as arrays: the same as for one number.

Each value is a struct of whole numbers and floats. A mean is no number of its own: it is made of the two fields behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trident.state.columns.number_columns import (
    ATTEMPT,
    CURR,
    PREV,
    TXID,
    Column,
    NumberColumns,
    Span,
    combined_numbers,
    overflows,
)
from trident.state.txid import Txid
from trident.state.values import Combine, OpaqueValue
from trident.state.winners import Winners

_MOST_FIELDS = 30
_EXACT_FLOAT = 1 << 53  # whole numbers up to here are floats
_TURNED = 1 << 62  # the least that a sum differs by which was turned
_NUMBERS = {"bigint": (int, np.int64), "double": (float, np.float64)}

Flags = npt.NDArray[np.int64]
"""int64, shape (n,): a bit for each field that is not None, then one for the value itself."""


@dataclass(frozen=True)
class StructForm:
    """The fields of the values, all of them `bigint` or `double`.

    `names`, `types`: of the fields, in their order.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]

    @staticmethod
    def of(fields: Sequence[tuple[str, str | None]]) -> StructForm | None:
        """Return the form of values with these fields and types; None if they do not fit arrays."""
        if not 0 < len(fields) <= _MOST_FIELDS or not all(type_ in _NUMBERS for _, type_ in fields):
            return None
        names, types = zip(*fields, strict=True)
        return StructForm(names, types)

    @property
    def width(self) -> int:
        """How many fields there are."""
        return len(self.names)

    @property
    def full(self) -> int:
        """The flags of a value without any None."""
        return (2 << self.width) - 1

    def columns(self, values: Sequence[Any]) -> StructColumns | None:
        """Return values as columns; None if one of them is no `OpaqueValue` of such structs."""
        if set(map(type, values)) != {OpaqueValue}:
            return None
        txids, attempts, *sides = zip(*values, strict=True)
        numbers, flags = np.empty((len(values), 2 + 2 * self.width), np.int64), np.zeros(len(values), np.int64)
        try:
            numbers[:, TXID], numbers[:, ATTEMPT] = txids, attempts
            for at, side in enumerate(sides):
                start = PREV + at * self.width
                flags |= self._fill(side, numbers[:, start : start + self.width]) << at * (self.width + 1)
        except (OverflowError, TypeError):  # beyond 64 bits, or another struct
            return None
        span = Span(attempts[0], min(txids), max(txids)) if len(set(attempts)) == 1 else None
        return StructColumns(numbers, flags, self, span)

    def read(self, txids: pa.Array, attempts: pa.Array, *sides: pa.StructArray) -> StructColumns:
        """Return values of an Arrow array for each of their fields: who wrote them, then prev and curr."""
        numbers, flags = np.empty((len(txids), 2 + 2 * self.width), np.int64), np.zeros(len(txids), np.int64)
        numbers[:, TXID], numbers[:, ATTEMPT] = txids, attempts
        for at, side in enumerate(sides):
            first, bit = PREV + at * self.width, at * (self.width + 1)
            flags |= _there(side) << bit + self.width
            for field, column in enumerate(side.flatten()):
                numbers[:, first + field] = column.fill_null(0).to_numpy().view(np.int64)
                flags |= _there(column) << bit + field
        return StructColumns(numbers, flags, self)

    def _fill(self, side: Sequence[Any], numbers: npt.NDArray[np.int64]) -> Flags:
        """Write the numbers of structs, or None, into an array; return their flags. TypeError: they are of another form."""
        names, there = list(self.names), np.array([one is not None for one in side])
        if any(one is not None and (type(one) is not dict or list(one) != names) for one in side):
            raise TypeError
        flags = there.astype(np.int64) << self.width
        for at, (name, type_) in enumerate(zip(self.names, self.types, strict=True)):
            kind, dtype = _NUMBERS[type_]
            column = [None if one is None else one[name] for one in side]
            if not {kind, type(None)}.issuperset(map(type, column)):
                raise TypeError
            numbers[:, at] = np.array([0 if one is None else one for one in column], dtype).view(np.int64)
            flags |= np.array([one is not None for one in column]).astype(np.int64) << at
        return flags


class StructColumns(NumberColumns):
    """One opaque struct of numbers per key.

    `numbers`: int64, shape (n, 2 + 2 * width): txid, attempt, the fields of prev, the fields of curr, as bits of their types.
    `flags`: int64, shape (n,): the `Flags` of prev in the lower bits, those of curr behind them.
    `dtype`: the form of the values.
    """

    __slots__ = ()

    def values(self) -> list[OpaqueValue]:
        heads = [self.numbers[:, at].tolist() for at in (TXID, ATTEMPT)]
        fields = [*heads, *(self._structs(*self._side(at)) for at in (PREV, CURR))]
        return list(map(tuple.__new__, repeat(OpaqueValue), zip(*fields, strict=True)))

    def column(self, at: int) -> Any:
        """Return `TXID` or `ATTEMPT` as int64, `PREV` or `CURR` as an Arrow array of structs."""
        if at < PREV:
            return self.numbers[:, at]
        numbers, flags = self._side(at)
        fields = [pa.array(column, mask=flags >> bit & 1 == 0) for bit, column in enumerate(self._fields(numbers))]
        is_none = pa.array(flags >> self.dtype.width & 1 == 0)
        return pa.StructArray.from_arrays(fields, list(self.dtype.names), mask=is_none)

    def before(self, txid: int, winners: Winners) -> tuple[npt.NDArray[np.int64], Flags]:
        """Return the bits of the values before batch `txid`, of shape (n, width), and their flags."""
        (prev, has_prev), (curr, has_curr), stand = self._side(PREV), self._side(CURR), self.stand(txid, winners)
        if stand is None:
            return curr, has_curr
        return np.where(stand[:, np.newaxis], curr, prev), np.where(stand, has_curr, has_prev)

    def values_before(self, txid: int, winners: Winners) -> list[Any]:
        return self._structs(*self.before(txid, winners))

    def combined(self, values: Any, function: Combine | Sequence[Combine], txid: Txid) -> StructColumns | None:
        form, width = self.dtype, self.dtype.width
        if isinstance(function, str) or [field.name for field in values.type] != list(form.names):
            return None
        base, had = self.before(int(txid), txid.winners)
        numbers = np.empty((len(base), 2 + 2 * width), np.int64)
        numbers[:, TXID], numbers[:, ATTEMPT], numbers[:, PREV : PREV + width] = int(txid), txid.attempt, base
        given, new = values.flatten(), self._fields(numbers[:, PREV + width :])
        has = np.full(len(base), form.full)
        for at, old in reversed(list(enumerate(self._fields(base)))):  # the fields that a mean is made of are behind it
            if function[at] == "mean":
                if sums_have_turned(self._fields(base)[at : at + 3]) or sums_have_turned(given[at : at + 3]):
                    return None
                _write_means(new[at], new[at + 1], new[at + 2])
                has[new[at + 2] == 0] &= ~(1 << at)
            elif not _combine_into(new[at], old, had >> at & 1 == 1, np.asarray(given[at]), function[at]):
                return None
        flags = had | has << width + 1
        return StructColumns(numbers, flags, form, Span(txid.attempt, int(txid), int(txid)))

    def _side(self, at: int) -> tuple[npt.NDArray[np.int64], Flags]:
        """Return the bits and the flags of `PREV` or `CURR`."""
        width = self.dtype.width
        if at == PREV:
            return self.numbers[:, PREV : PREV + width], self.flags & self.dtype.full
        return self.numbers[:, PREV + width :], self.flags >> width + 1

    def _fields(self, side: npt.NDArray[np.int64]) -> list[Column]:
        """Return a view for each field."""
        return [side[:, at].view(_NUMBERS[type_][1]) for at, type_ in enumerate(self.dtype.types)]

    def _structs(self, side: npt.NDArray[np.int64], flags: Flags) -> list[dict[str, Any] | None]:
        width, columns = self.dtype.width, [column.tolist() for column in self._fields(side)]
        for at, column in enumerate(columns):
            for place in np.flatnonzero(flags >> at & 1 == 0).tolist():
                column[place] = None
        structs: list[dict[str, Any] | None]
        structs = list(map(dict, map(zip, repeat(self.dtype.names), zip(*columns, strict=True))))
        for place in np.flatnonzero(flags >> width & 1 == 0).tolist():
            structs[place] = None
        return structs


def _there(column: pa.Array) -> Flags:
    there: Flags = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    return there


def _combine_into(new: Column, old: Column, had: npt.NDArray[np.bool_], given: Column, function: Combine) -> bool:
    """Write old numbers, where there are any, combined with the given ones; False if the result does not fit."""
    if given.dtype != new.dtype:
        return False
    np.copyto(new, given)
    np.copyto(new, combined_numbers(old, given, function), where=had)
    return not (function == "sum" and new.dtype == np.int64 and overflows(old, given, new, had))


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
