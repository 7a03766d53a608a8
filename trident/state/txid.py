"""What a commit knows: the txid, its attempt, who won the txids before, and the sentinel that must be found.

`Txid` is an `int`, so `State.begin_commit(txid)` keeps Trident's signature and any wrapper that forwards it forwards
everything. A plain `int` works as well: attempt 0, every earlier attempt counts as the winner, no sentinel check;
this is Storm's three-field rule.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["EVERYTHING_WON", "RETRY_BITS", "Epochs", "Sentinel", "Snapshot", "Txid", "Winners", "epoch_of"]

RETRY_BITS = 20
"""An attempt is `epoch << RETRY_BITS | retry`: no epoch's attempts are those of another one."""


def epoch_of(attempt: int) -> int:
    """Return the epoch of the driver that made an attempt."""
    return attempt >> RETRY_BITS


class Sentinel(NamedTuple):
    """The last commit that touched one partition of a state, as the store itself records it (R8, R9).

    Two sentinels are equal if they are of the same commit: incarnation, txid and attempt. The rest are notes on it.

    Attributes
    ----------
    place
        The state that keeps its values there, as `topology/state`; "" if the record does not say (older versions).
    sealed
        False from the begin of a commit until the store has acknowledged all of it. A store that commits a batch as one
        transaction never shows False.
    """

    incarnation: str
    txid: int
    attempt: int
    place: str = ""
    sealed: bool = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and self[:3] == other[:3]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:3])

    @property
    def fields(self) -> list[Any]:
        """What is stored: all five, or the first three where the others say nothing."""
        return list(self if self.place or not self.sealed else self[:3])

    @property
    def version(self) -> int:
        """A number that rises with every legal move of the sentinel; for stores that fence by a single version.

        txid and attempt never fall along a legal history and one of them rises with each move, so their sum does.
        """
        return self.txid + self.attempt

    def __str__(self) -> str:
        return f"batch {self.txid} attempt {self.attempt} of incarnation {self.incarnation}"


@dataclass(frozen=True)
class Winners:
    """Which attempt of each committed txid won, as ranges: `(first txid, attempt)`, ascending.

    The winner of txid t is the attempt of the last range that starts at or before t. The list grows with failures,
    not with batches. Txids up to `adopted` were written by a lost or foreign log: each value stands as it is.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    adopted: int = 0
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_starts", tuple(start for start, _ in self.ranges))

    def winner(self, txid: int) -> int | None:
        """Return the attempt that won `txid`; None if the log knows no winner (adopted, or never committed)."""
        at = bisect_right(self._starts, txid) - 1
        return self.ranges[at][1] if at >= 0 else None

    def won(self, txid: int, attempt: int) -> bool:
        """Whether what `attempt` wrote in `txid` (a committed txid) stands."""
        at = bisect_right(self._starts, txid)  # `winner` spelt out: this runs once per key of a batch
        return (at > 0 and self.ranges[at - 1][1] == attempt) or txid <= self.adopted

    def won_all(self, lowest: int, highest: int, attempt: int) -> bool:
        """Whether one look tells that `attempt` won every txid from `lowest` to `highest`; False may be "ask for each"."""
        at = bisect_right(self._starts, highest)
        one_range = at > 0 and at == bisect_right(self._starts, lowest)
        return (one_range and self.ranges[at - 1][1] == attempt) or highest <= self.adopted

    def won_each(self, txids: npt.NDArray[np.int64], attempts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Answer `won` for each of many values.

        Parameters
        ----------
        txids, attempts
            int64, shape (n,): who wrote each value.

        Returns
        -------
        numpy.ndarray
            bool, shape (n,).
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
        return Winners((*self.ranges, (txid, attempt)), self.adopted)

    def with_adopted(self, txid: int) -> Winners:
        """Return the winners with every txid up to `txid` taken as it is found."""
        return Winners(self.ranges, max(txid, self.adopted))

    @staticmethod
    def of(ranges: Iterable[Iterable[int]], adopted: int = 0) -> Winners:
        """Build from plain lists, as the log stores them."""
        return Winners(tuple((first, attempt) for first, attempt in ranges), adopted)


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


class _EverythingWon(Winners):
    """For a plain `int` txid: no log to ask, so every earlier write stands (Storm's rule)."""

    def won(self, txid: int, attempt: int) -> bool:
        return True

    def won_all(self, lowest: int, highest: int, attempt: int) -> bool:
        return True

    def won_each(self, txids: npt.NDArray[np.int64], attempts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        everything: npt.NDArray[np.bool_] = txids == txids
        return everything


EVERYTHING_WON: Winners = _EverythingWon()


class Txid(int):
    """The txid of a commit together with what the value rules need to know about it.

    Attributes
    ----------
    attempt
        Which try this is; grows for ever, across restarts.
    winners
        The winning attempts of all earlier txids.
    incarnation
        The identity of the log; None for a commit without a log (no sentinel is kept then).
    expected
        The sentinel that the log says this partition has (its last committed touch); None if it was never touched.
    epochs
        The epochs of the drivers that may have written before; None: of any.
    """

    attempt: int
    winners: Winners
    incarnation: str | None
    expected: Sentinel | None
    epochs: Epochs | None

    def __new__(
        cls,
        txid: int,
        attempt: int = 0,
        winners: Winners = EVERYTHING_WON,
        incarnation: str | None = None,
        expected: Sentinel | None = None,
        epochs: Epochs | None = None,
    ) -> Txid:
        """Make the number and what it carries."""
        self = super().__new__(cls, txid)
        self.attempt, self.winners, self.incarnation, self.expected = attempt, winners, incarnation, expected
        self.epochs = epochs
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (Txid, (int(self), self.attempt, self.winners, self.incarnation, self.expected, self.epochs))

    @staticmethod
    def of(txid: int) -> Txid:
        """Return `txid` itself if it carries its commit, else the commit of a plain number."""
        return txid if isinstance(txid, Txid) else Txid(txid)

    @property
    def sentinel(self) -> Sentinel | None:
        """What `begin_commit` leaves in the store; None without a log."""
        return None if self.incarnation is None else Sentinel(self.incarnation, int(self), self.attempt)

    def for_partition(self, expected: Sentinel | None) -> Txid:
        """Return the same commit as seen by one partition, with the sentinel that must be found there."""
        return Txid(int(self), self.attempt, self.winners, self.incarnation, expected, self.epochs)


@dataclass(frozen=True)
class Snapshot:
    """A committed point of the log: reads at it see exactly the batches 1 … txid (R12)."""

    txid: int
    winners: Winners = EVERYTHING_WON
