"""What a commit knows: its txid and attempt, who won before, the sentinel that must be found; and the names of its facts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

RETRY_BITS = 20  # an attempt is `epoch << RETRY_BITS | retry`, so no two epochs have an attempt in common
EMPTIED = "(emptied)"  # the incarnation in the sentinel of a partition that is being emptied: what is there must go

# Among the facts of a state in the log.
FORMER = "former"  # the former types of its values, as in `Winners.types`
CHANGES = "changes"  # the batch after which its store has each change
KEPT = "kept"  # the options that keep something of its past, as they were last given
STORED_UNDER = "stored_under"  # the name under which its store knows it, where it is called otherwise now
CALLED = "called"  # what it was called last, before its name was changed
LIMITS = "limits"  # by the names of aggregates how many values each remembers of a key, where it drops others
SERIALIZER = "serializer"  # what its values are written with, where the store does not decide that itself
TOTAL_KEY = "snapshot_key"  # under which the single value of a state without keys is, where the state has a choice
MISSED = "missed"  # the first batch that its streams had while it was not declared
# No part of what it means:
BESIDE_MEANING = (FORMER, CHANGES, KEPT, STORED_UNDER, CALLED, LIMITS, SERIALIZER, TOTAL_KEY, MISSED)


def epoch_of(attempt: int) -> int:
    return attempt >> RETRY_BITS


def renamed_facts(facts: Mapping[str, Any], old: str) -> dict[str, Any]:
    return {STORED_UNDER: old, **facts, CALLED: old}


@dataclass(frozen=True)
class Winners:
    """Which attempt of each committed txid won, as ranges: `(first txid, attempt)`, ascending.

    The winner of txid t is the attempt of the last range that starts at or before t. The list grows with failures, not with
    batches. Txids up to `adopted` were written by a lost or foreign log: each value is valid as it is.

    `types` has the former types of one state's values, oldest first: `(attempt, type, names)`, of what earlier attempts
    wrote.
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
        """Answer `won` for each of many values (int64, shape (n,)), as bool, shape (n,)."""
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

    A driver is among them once its start has compared log and stores: an attempt of any other epoch says the log was rolled
    back.
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


class Sentinel(NamedTuple):
    """The last commit that touched one partition of a state, as the store itself records it (R8, R9).

    Two sentinels are equal if they are of the same commit: incarnation, txid and attempt. The rest are notes on it.

    Attributes
    ----------
    place
        The state that keeps its values there, as `topology/state`; "" if nothing says it.
    sealed
        False from the begin of a commit until the store has acknowledged all of it. A store that commits a batch as one
        transaction never shows False.
    run
        Which run of its task wrote the record; "" if the driver did. Of two runs of one attempt only the first may write.
    """

    incarnation: str
    txid: int
    attempt: int
    place: str = ""
    sealed: bool = True
    run: str = ""

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, tuple) and self[:3] == other[:3])

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:3])

    @property
    def version(self) -> int:
        """A number that rises with every legal move of the sentinel; for stores that fence by a single version.

        txid and attempt never fall along a legal history and one of them rises with each move, so their sum does.
        """
        return self.txid + self.attempt

    def __str__(self) -> str:
        return f"batch {self.txid} attempt {self.attempt} of incarnation {self.incarnation}"


class Txid(int):
    """The txid of a commit together with what the value rules need to know about it.

    It is an `int`, so `State.begin_commit(txid)` keeps Trident's signature, and any wrapper that forwards it forwards
    everything. A plain `int` works as well: attempt 0, every earlier attempt counts as the winner, no sentinel check; Storm's
    rule.

    Attributes
    ----------
    attempt
        Which try this is; only ever grows, across restarts.
    winners
        The winning attempts of all earlier txids.
    incarnation
        The identity of the log; None for a commit without a log (no sentinel is written then).
    expected
        The sentinel that the log says this partition has (its last committed touch); None if it was never touched.
    epochs
        The epochs of the drivers that may have written before; None: of any.
    run
        The id of the run of the task that commits; "" in the driver, which runs a commit once.
    """

    attempt: int
    winners: Winners
    incarnation: str | None
    expected: Sentinel | None
    epochs: Epochs | None
    run: str

    def __new__(
        cls,
        txid: int,
        attempt: int = 0,
        winners: Winners = EVERYTHING_WON,
        incarnation: str | None = None,
        expected: Sentinel | None = None,
        epochs: Epochs | None = None,
        run: str = "",
    ) -> Txid:
        self = super().__new__(cls, txid)
        self.attempt, self.winners, self.incarnation, self.expected = attempt, winners, incarnation, expected
        self.epochs, self.run = epochs, run
        return self

    @staticmethod
    def of(txid: int) -> Txid:
        """Return `txid` itself if it carries its commit, else the commit of a plain number."""
        return txid if isinstance(txid, Txid) else Txid(txid)

    @property
    def sentinel(self) -> Sentinel | None:
        """What `begin_commit` leaves in the store; None without a log."""
        return self.sentinel_at("")

    def sentinel_at(self, place: str, sealed: bool = True) -> Sentinel | None:
        """Return `sentinel` with its notes."""
        if self.incarnation is None:
            return None
        return Sentinel(self.incarnation, int(self), self.attempt, place, sealed, self.run)

    def for_partition(self, expected: Sentinel | None) -> Txid:
        """Return the same commit as seen by one partition, with the sentinel that must be found there."""
        return Txid(int(self), **{**vars(self), "expected": expected})

    def of_run(self, run: str) -> Txid:
        """Return the same commit as made by one run of a task."""
        return Txid(int(self), **{**vars(self), "run": run})


@dataclass(frozen=True)
class Snapshot:
    """A committed point of the log: reads at it see exactly the batches 1 … txid (R12)."""

    txid: int
    winners: Winners = EVERYTHING_WON
