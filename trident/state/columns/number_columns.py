"""Opaque numbers of some keys, or structs of numbers, as arrays: the value rule and the combining of a commit for all at once.

A struct is what several aggregates are in one state. A mean is no number of its own: it is made of the two fields behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trident.fields import struct_fields
from trident.state.table import OpaqueTable
from trident.state.txid import Txid
from trident.state.values import Combine, OpaqueValue, stand_before
from trident.state.winners import Winners

TXID, ATTEMPT, PREV, CURR = range(4)
HAS_PREV, HAS_CURR = 1, 2
"""The flags of values that are numbers, not structs."""

_MOST_FIELDS = 30
_EXACT_FLOAT = 1 << 53  # whole numbers up to here are floats
_TURNED = 1 << 62  # the least that a sum differs by which was turned
_NUMBERS = {"bigint": (int, np.int64), "double": (float, np.float64)}

Column = npt.NDArray[Any]
"""int64 or float64, shape (n,)."""

Side = npt.NDArray[np.int64]
"""int64, shape (n, width): the values before, or the current ones, as bits of their types."""

Flags = npt.NDArray[Any]
"""Whole numbers, shape (n,): a bit for each number that is not None; of a struct one more, for the struct itself."""


class Span(NamedTuple):
    """The writer of some values: one attempt, in batches from `lowest` to `highest`."""

    attempt: int
    lowest: int
    highest: int


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

    def fields(self, side: Side) -> list[Column]:
        return [side[:, at].view(_NUMBERS[type_][1]) for at, type_ in enumerate(self.types)]

    def to_values(self, side: Side, flags: Flags) -> list[Any]:
        columns: list[list[Any]] = [column.tolist() for column in self.fields(side)]
        for column, places in zip(columns, self._nones(flags), strict=False):
            for place in np.flatnonzero(places).tolist():
                column[place] = None
        if not self.names:
            return columns[0]
        structs: list[Any] = list(map(dict, map(zip, repeat(self.names), zip(*columns, strict=True))))
        for place in np.flatnonzero(flags >> self.width & 1 == 0).tolist():
            structs[place] = None
        return structs

    def arrow(self, side: Side, flags: Flags) -> pa.Array:
        masks = self._nones(flags) or repeat(None)
        columns = [pa.array(column, mask=mask) for column, mask in zip(self.fields(side), masks, strict=False)]
        if not self.names:
            return columns[0]
        is_none = pa.array(flags >> self.width & 1 == 0)
        return pa.StructArray.from_arrays(columns, list(self.names), mask=is_none)

    def _nones(self, flags: Flags) -> list[npt.NDArray[np.bool_]]:
        """Return where each number is None; nothing if none is."""
        if not len(flags) or flags.min() == self.full:
            return []
        return [flags >> at & 1 == 0 for at in range(self.width)]

    def fill(self, side: Side, values: Sequence[Any]) -> Flags:
        """Write values of Python; return their flags. TypeError, OverflowError: they are of another form."""
        flags = _there(values) << self.bits - 1
        for at, (type_, column) in enumerate(zip(self.types, self._columns(values), strict=True)):
            kind, dtype = _NUMBERS[type_]
            if not {kind, type(None)}.issuperset(map(type, column)):
                raise TypeError
            side[:, at] = np.array([0 if one is None else one for one in column], dtype).view(np.int64)
            if self.names:
                flags |= _there(column) << at
        return flags

    def _columns(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return a column for each number. TypeError: a value is another struct."""
        names = list(self.names)
        if not names:
            return [values]
        if any(one is not None and (type(one) is not dict or list(one) != names) for one in values):
            raise TypeError
        return [[None if one is None else one[name] for one in values] for name in names]

    def read(self, side: Side, values: pa.Array) -> Flags:
        """Write the values of an Arrow array; return their flags."""
        flags = _valid(values) << self.bits - 1
        for at, column in enumerate(values.flatten() if self.names else [values]):
            side[:, at] = column.fill_null(0).to_numpy().view(np.int64)
            flags |= _valid(column) << at
        return flags


INTS, FLOATS = NumberForm(("bigint",)), NumberForm(("double",))


class NumberColumns(OpaqueTable):
    """A table whose columns are arrays of numbers.

    `numbers`: int64, shape (n, 2 + 2 * width): txid, attempt, prev, curr. The last two are bits of the types of `form`. A row
    of zeros for an absent key.
    `flags`: those of prev in the lower bits, those of curr behind them.
    `form`: what the values are; None while no number is known.
    `span`: the writer of the values, known without reading them; None if several attempts may have written.
    `place`: what the store that gave this needs to find the keys, when it is given what was made of it.
    """

    __slots__ = ("flags", "form", "numbers", "place", "span")

    def __init__(
        self, numbers: Side, flags: Flags, form: NumberForm | None, span: Span | None = None, place: Any = None
    ) -> None:
        self.numbers, self.flags, self.form, self.span, self.place = numbers, flags, form, span, place

    @staticmethod
    def absent(form: NumberForm | None, count: int) -> NumberColumns:
        known = form or INTS
        return NumberColumns(np.zeros((count, 2 + 2 * known.width), np.int64), np.zeros(count, known.flag_type), form)

    @staticmethod
    def of(values: Sequence[Any], form: NumberForm | None = None) -> NumberColumns | None:
        """Return values as columns; None if one of them is no opaque value of the form, or is beyond 64 bits.

        Without a form they are numbers of one type.
        """
        values = list(values)
        if set(map(type, values)) != {OpaqueValue}:
            return None
        txids, attempts, prevs, currs = zip(*values, strict=True)
        if form is None:
            types = {*map(type, prevs), *map(type, currs)} - {type(None)}
            form = FLOATS if types == {float} else INTS if types else None
        made = NumberColumns.absent(form, len(values))
        try:
            made.numbers[:, TXID], made.numbers[:, ATTEMPT] = txids, attempts
            made.write(NumberForm.fill, prevs, currs)
        except (OverflowError, TypeError):  # beyond 64 bits, or of another type
            return None
        made.span = Span(attempts[0], min(txids), max(txids)) if len(set(attempts)) == 1 else None
        return made

    @staticmethod
    def read(form: NumberForm, txids: pa.Array, attempts: pa.Array, prevs: pa.Array, currs: pa.Array) -> NumberColumns:
        """Return the values of an Arrow array for each of their fields."""
        made = NumberColumns.absent(form, len(txids))
        made.numbers[:, TXID], made.numbers[:, ATTEMPT] = txids, attempts
        made.write(NumberForm.read, prevs, currs)
        return made

    def __len__(self) -> int:
        return len(self.flags)

    def __getitem__(self, at: Any) -> Any:
        some = at if isinstance(at, slice) else [at]
        found = NumberColumns(self.numbers[some], self.flags[some], self.form, self.span)
        return found if isinstance(at, slice) else found.values()[0]

    def __iter__(self) -> Iterator[OpaqueValue | None]:
        return iter(self.values())

    def values(self) -> list[OpaqueValue | None]:
        form = self.form or INTS
        heads = [self.numbers[:, at].tolist() for at in (TXID, ATTEMPT)]
        sides = [form.to_values(*self.side(at)) for at in (PREV, CURR)]
        values: list[OpaqueValue | None] = list(
            map(tuple.__new__, repeat(OpaqueValue), zip(*heads, *sides, strict=True))
        )
        if len(values) and not self.flags.all():
            for place in np.flatnonzero((self.flags == 0) & ~self.numbers[:, :PREV].any(axis=1)).tolist():
                values[place] = None
        return values

    def column(self, at: int) -> pa.Array:
        """Return a field of the values: `TXID`, `ATTEMPT`, `PREV` or `CURR`."""
        return pa.array(self.numbers[:, at]) if at < PREV else (self.form or INTS).arrow(*self.side(at))

    @property
    def curr(self) -> Any:
        """The values of what `combine_with` returned: an array of NumPy, or of Arrow if they are structs."""
        form = self.form or INTS
        return self.column(CURR) if form.names else form.fields(self.side(CURR)[0])[0]

    def first_after(self, txid: int) -> tuple[int, int] | None:
        if self.span is not None and self.span.highest <= txid:
            return None
        later = np.flatnonzero(self.numbers[:, TXID] > txid)
        return (int(later[0]), int(self.numbers[later[0], TXID])) if len(later) else None

    def before(self, txid: int, winners: Winners) -> tuple[Side, Flags]:
        """Return the values before batch `txid`, and their flags."""
        (curr, has_curr), span = self.side(CURR), self.span
        if span is not None and span.highest < txid and winners.won_all(span.lowest, span.highest, span.attempt):
            return curr, has_curr
        stand = stand_before(self.numbers[:, TXID], self.numbers[:, ATTEMPT], txid, winners)
        if stand.all():
            return curr, has_curr
        prev, has_prev = self.side(PREV)
        return np.where(stand[:, np.newaxis], curr, prev), np.where(stand, has_curr, has_prev)

    def values_before(self, txid: int, winners: Winners) -> list[Any]:
        return (self.form or INTS).to_values(*self.before(txid, winners))

    def latest(self) -> list[Any]:
        return (self.form or INTS).to_values(*self.side(CURR))

    def combine_with(self, values: Any, function: Combine | Sequence[Combine], txid: Txid) -> NumberColumns | None:
        """Return what the commit `txid` writes: the values before it, and these combined with `values`.

        Parameters
        ----------
        values
            Anything that is an array of int64 or float64, shape (n,); or an Arrow array of structs, of whose fields only
            means are null.
        function
            The function; of structs one for each field.

        Returns
        -------
        NumberColumns | None
            None if the result does not fit columns: a sum beyond 64 bits, values of another form.
        """
        form = _form_of(values, function, self.form)
        if form is None or self.form not in (None, form):
            return None
        functions, given = ([function], [values]) if isinstance(function, str) else (function, values.flatten())
        base, had = self.before(int(txid), txid.winners)
        numbers, flags = np.empty((len(base), 2 + 2 * form.width), np.int64), had | form.full << form.bits
        numbers[:, TXID], numbers[:, ATTEMPT], numbers[:, PREV : PREV + form.width] = int(txid), txid.attempt, base
        olds, news = form.fields(base), form.fields(numbers[:, PREV + form.width :])
        for at in reversed(range(form.width)):  # the fields that a mean is made of are behind it
            if functions[at] == "mean":
                if sums_have_turned(olds[at : at + 3]) or sums_have_turned(given[at : at + 3]):
                    return None
                _write_means(*news[at : at + 3])
                flags[news[at + 2] == 0] &= ~(1 << form.bits + at)
            elif not _combine_into(news[at], olds[at], had & 1 << at != 0, np.asarray(given[at]), functions[at]):
                return None
        span = Span(txid.attempt, int(txid), int(txid))
        return NumberColumns(numbers, flags, form, span, self.place)

    def side(self, at: int) -> tuple[Side, Flags]:
        """Return the bits and the flags of `PREV` or `CURR`."""
        form = self.form or INTS
        middle = PREV + form.width
        if at == PREV:
            return self.numbers[:, PREV:middle], self.flags & form.full
        return self.numbers[:, middle:], self.flags >> form.bits

    def write(self, how: Callable[[NumberForm, Side, Any], Flags], prevs: Any, currs: Any) -> None:
        """Write both sides in one of the ways of a form."""
        form = self.form or INTS
        prev, curr = (how(form, self.side(at)[0], side) for at, side in ((PREV, prevs), (CURR, currs)))
        self.flags = (prev | curr << form.bits).astype(form.flag_type)


def _form_of(values: Any, function: Combine | Sequence[Combine], known: NumberForm | None) -> NumberForm | None:
    """Return the form of values that are combined: of structs the one that is known, if it is theirs."""
    if isinstance(function, str):
        return FLOATS if np.asarray(values).dtype == np.float64 else INTS
    return known if known is not None and [field.name for field in values.type] == list(known.names) else None


def _there(values: Sequence[Any]) -> Flags:
    return np.fromiter((value is not None for value in values), np.int64, len(values))


def _valid(column: pa.Array) -> Flags:
    valid: Flags = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
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
