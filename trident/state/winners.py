"""Which attempt won each txid, and which drivers may have written: what the log says about the past."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


FORMER = "former"
"""Among the facts of a state in the log: the former types of its values, as in `Winners.types`."""
CHANGES = "changes"
"""Among the facts of a state in the log: the batch after which its store has each change."""
KEPT = "kept"
"""Among the facts of a state in the log: the options that keep something of its past, as they were last given."""
STORED_UNDER = "stored_under"
"""Among the facts of a state in the log: the name under which its store knows it, where it is called otherwise now."""
CALLED = "called"
"""Among the facts of a state in the log: what it was called last, before its name was changed."""
LIMITS = "limits"
"""Among the facts of a state: by the names of aggregates how many values each remembers of a key, where it drops others."""
SERIALIZER = "serializer"
"""Among the facts of a state: what its values are written with, where the store does not decide that itself."""
BESIDE_MEANING = (FORMER, CHANGES, KEPT, STORED_UNDER, CALLED, LIMITS, SERIALIZER)
"""The facts of a state that are not part of what it means."""


def renamed_facts(facts: Mapping[str, Any], old: str) -> dict[str, Any]:
    return {STORED_UNDER: old, **facts, CALLED: old}


@dataclass(frozen=True)
class Winners:
    """Which attempt of each committed txid won, as ranges: `(first txid, attempt)`, ascending.

    The winner of txid t is the attempt of the last range that starts at or before t. The list grows with failures,
    not with batches. Txids up to `adopted` were written by a lost or foreign log: each value is valid as it is.

    `types` has the former types of one state's values, oldest first: `(attempt, type, names)`, of what earlier attempts wrote.
    `names`: what such a value calls each field of a declared one, None where it has none; None: a function migrates it.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    adopted: int = 0
    types: tuple[tuple[int, str, Mapping[str, str | None] | None], ...] = ()
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_starts", tuple(start for start, _ in self.ranges))

    def winner(self, txid: int) -> int | None:
        """Return the attempt that won `txid`; None if the log knows no winner (adopted, or never committed)."""
        at = bisect_right(self._starts, txid) - 1
        return self.ranges[at][1] if at >= 0 else None

    def won(self, txid: int, attempt: int) -> bool:
        """Whether what `attempt` wrote in `txid` (a committed txid) is valid."""
        at = bisect_right(self._starts, txid)  # `winner` spelt out: this runs once per key of a batch
        return (at > 0 and self.ranges[at - 1][1] == attempt) or txid <= self.adopted

    def won_all(self, lowest: int, highest: int, attempt: int) -> bool:
        """Whether one look shows that `attempt` won every txid from `lowest` to `highest`; False may be "ask for each"."""
        at = bisect_right(self._starts, highest)
        one_range = at > 0 and at == bisect_right(self._starts, lowest)
        return (one_range and self.ranges[at - 1][1] == attempt) or highest <= self.adopted

    def won_each(self, txids: npt.NDArray[np.int64], attempts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Answer `won` for each of many values, as bool, shape (n,).

        Parameters
        ----------
        txids, attempts
            int64, shape (n,): who wrote each value.
        """
        stand: npt.NDArray[np.bool_] = txids <= self.adopted
        if not len(txids) or not self.ranges:
            return stand
        first, last = bisect_right(self._starts, int(txids.min())), bisect_right(self._starts, int(txids.max()))
        for at in range(max(first - 1, 0), last):  # few values are so old that many failures came since
            start, attempt = self.ranges[at]
            in_range = txids >= start
            if at + 1 < last:
                in_range &= txids < self.ranges[at + 1][0]
            stand |= in_range & (attempts == attempt)
        return stand

    def with_winner(self, txid: int, attempt: int) -> Winners:
        """Return the winners after `txid` was committed by `attempt`; itself if nothing changes."""
        if self.ranges and self.ranges[-1][1] == attempt:
            return self
        return Winners((*self.ranges, (txid, attempt)), self.adopted, self.types)

    def with_adopted(self, txid: int) -> Winners:
        """Return the winners with every txid up to `txid` taken as it is found."""
        return Winners(self.ranges, max(txid, self.adopted), self.types)

    def with_types(self, types: Iterable[Iterable[Any]]) -> Winners:
        """Return the winners with the former types of a state's values."""
        whole = tuple((one[0], one[1], one[2] if len(one) > 2 else None) for one in map(tuple, types))
        return Winners(self.ranges, self.adopted, whole)

    @staticmethod
    def of(ranges: Iterable[Iterable[int]], adopted: int = 0, types: Iterable[Iterable[Any]] = ()) -> Winners:
        """Build from plain lists, as the log stores them."""
        return Winners(tuple((first, attempt) for first, attempt in ranges), adopted).with_types(types)


@dataclass(frozen=True)
class Epochs:
    """The epochs whose drivers may have written to the states, as ranges `(first, last)`, ascending.

    A driver is among them once its start has compared log and stores. So an attempt of any other epoch was not made by
    a driver that this log knows: the log was rolled back.
    """

    ranges: tuple[tuple[int, int], ...] = ()

    def __contains__(self, epoch: int) -> bool:
        return any(first <= epoch <= last for first, last in self.ranges)

    def with_epoch(self, epoch: int) -> Epochs:
        """Return the epochs with one more, later than all."""
        *earlier, (first, last) = self.ranges or ((epoch, epoch),)
        if last + 1 < epoch:
            return Epochs((*self.ranges, (epoch, epoch)))
        return Epochs((*earlier, (first, epoch)))

    @staticmethod
    def of(ranges: Iterable[Iterable[int]]) -> Epochs:
        """Build from plain lists, as the log stores them."""
        return Epochs(tuple((first, last) for first, last in ranges))


EVERYTHING_WON = Winners(adopted=1 << 62)
"""For a plain `int` txid: no log to ask, so every earlier write is valid (Storm's rule)."""
