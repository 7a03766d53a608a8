"""The opaque values of some keys as arrays: the value rule and the combining of a commit, for all keys at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trident.state.txid import Txid
from trident.state.values import Combine, OpaqueValue, stand_before
from trident.state.winners import Winners

TXID, ATTEMPT, PREV, CURR = range(4)
HAS_PREV, HAS_CURR = 1, 2

Column = npt.NDArray[Any]
"""int64 or float64, shape (n,)."""


class Span(NamedTuple):
    """The writer of some values: one attempt, in batches from `lowest` to `highest`."""

    attempt: int
    lowest: int
    highest: int


class NumberColumns:
    """One opaque number per key, in the order of the keys.

    `numbers`: int64, shape (n, 4): txid, attempt, prev, curr. The last two are the bits of `dtype`. A row of zeros for an
    absent key.
    `flags`: uint8, shape (n,): `HAS_PREV` and `HAS_CURR`; where a flag is missing, the value is None.
    `dtype`: int64 or float64, the type of prev and curr; None while no number is known; of structs their form.
    `span`: the writer of the values, known without reading them; None if several attempts may have written.
    `place`: what the store needs to find the keys when it writes.
    """

    __slots__ = ("dtype", "flags", "numbers", "place", "span")

    def __init__(
        self,
        numbers: npt.NDArray[np.int64],
        flags: npt.NDArray[Any],
        dtype: Any,
        span: Span | None = None,
        place: Any = None,
    ) -> None:
        self.numbers, self.flags, self.dtype, self.span, self.place = numbers, flags, dtype, span, place

    def __len__(self) -> int:
        return len(self.flags)

    @staticmethod
    def of(values: Sequence[Any]) -> NumberColumns | None:
        """Return values as columns; None if one of them is not an opaque number of 64 bits, or their types differ."""
        if set(map(type, values)) != {OpaqueValue}:
            return None
        txids, attempts, prevs, currs = zip(*values, strict=True)
        types = {*map(type, prevs), *map(type, currs)} - {type(None)}
        if len(types) > 1 or not types <= {int, float}:
            return None
        dtype = None if not types else np.float64 if float in types else np.int64
        numbers = np.empty((len(values), 4), np.int64)
        try:
            numbers[:, TXID], numbers[:, ATTEMPT] = txids, attempts
            for at, column in ((PREV, prevs), (CURR, currs)):
                full = [0 if value is None else value for value in column]
                numbers[:, at] = np.array(full, dtype or np.int64).view(np.int64)
        except OverflowError:  # beyond 64 bits
            return None
        flags = [(prev is not None) | (curr is not None) << 1 for prev, curr in zip(prevs, currs, strict=True)]
        span = Span(attempts[0], min(txids), max(txids)) if len(set(attempts)) == 1 else None
        return NumberColumns(numbers, np.array(flags, np.uint8), dtype, span)

    def values(self) -> list[OpaqueValue]:
        """Return the values one by one."""
        values = self.numbers.tolist()
        if self.dtype is np.float64:
            for value, floats in zip(values, self.numbers[:, PREV:].view(np.float64).tolist(), strict=True):
                value[PREV:] = floats
        if len(self) and self.flags.min() < HAS_PREV | HAS_CURR:
            for value, flag in zip(values, self.flags.tolist(), strict=True):
                if not flag & HAS_PREV:
                    value[PREV] = None
                if not flag & HAS_CURR:
                    value[CURR] = None
        return list(map(tuple.__new__, repeat(OpaqueValue), values))

    def column(self, at: int) -> Column:
        """Return `TXID` or `ATTEMPT` as int64, `PREV` or `CURR` as `dtype`; shape (n,)."""
        return (self.numbers if at < PREV else self.numbers.view(self.dtype or np.int64))[:, at]

    @property
    def curr(self) -> Column:
        """The current values: `dtype`, shape (n,)."""
        return self.column(CURR)

    def first_after(self, txid: int) -> tuple[int, int] | None:
        """Return the place of the first value that a batch after `txid` wrote, and that batch; None if there is none."""
        if self.span is not None and self.span.highest <= txid:
            return None
        later = np.flatnonzero(self.numbers[:, TXID] > txid)
        return (int(later[0]), int(self.numbers[later[0], TXID])) if len(later) else None

    def before(self, txid: int, winners: Winners) -> tuple[Column, npt.NDArray[Any]]:
        """Return the values before batch `txid` (of `dtype`), and which of them are not None; both of shape (n,)."""
        curr, has_curr, stand = self.curr, self.flags >= HAS_CURR, self.stand(txid, winners)
        if stand is None:
            return curr, has_curr
        return np.where(stand, curr, self.column(PREV)), np.where(stand, has_curr, self.flags & HAS_PREV != 0)

    def stand(self, txid: int, winners: Winners) -> npt.NDArray[np.bool_] | None:
        """Return where `curr` is the value before batch `txid`; None: everywhere, as one look has shown."""
        span = self.span
        if span is not None and span.highest < txid and winners.won_all(span.lowest, span.highest, span.attempt):
            return None
        return stand_before(self.numbers[:, TXID], self.numbers[:, ATTEMPT], txid, winners)

    def values_before(self, txid: int, winners: Winners) -> list[Any]:
        """Return the result of `before` as Python objects."""
        base, had = self.before(txid, winners)
        values: list[Any] = base.tolist()
        if not had.all():
            values = [value if is_there else None for value, is_there in zip(values, had.tolist(), strict=True)]
        return values

    def combined(self, values: Any, function: Combine | Sequence[Combine], txid: Txid) -> NumberColumns | None:
        """Return what the commit `txid` writes: the values before it, and these combined with `values`.

        Parameters
        ----------
        values
            Anything that is an array of int64 or float64, shape (n,).
        function
            The function; one for each field of structs, which are not for these columns.

        Returns
        -------
        NumberColumns | None
            None if the result does not fit columns: a sum beyond 64 bits, a number of another type.
        """
        if not isinstance(function, str):
            return None
        values = np.asarray(values)
        dtype = np.float64 if values.dtype == np.float64 else np.int64
        if self.dtype not in (None, dtype):
            return None
        base, had = self.before(int(txid), txid.winners)
        new = combined_numbers(base, values, function)
        if np.count_nonzero(had) < len(new):
            new = np.where(had, new, values)
        if function == "sum" and dtype is np.int64 and overflows(base, values, new, had):
            return None
        numbers = np.empty((len(new), 4), np.int64)
        numbers[:, TXID], numbers[:, ATTEMPT] = int(txid), txid.attempt
        numbers[:, PREV], numbers[:, CURR] = base.view(np.int64), new.view(np.int64)
        flags = had.view(np.uint8) | np.uint8(HAS_CURR)  # True is HAS_PREV
        return NumberColumns(numbers, flags, dtype, Span(txid.attempt, int(txid), int(txid)))


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
