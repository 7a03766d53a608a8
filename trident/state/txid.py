"""What a commit knows: the txid, its attempt, who won the txids before, and the sentinel that must be found.

`Txid` is an `int`, so `State.begin_commit(txid)` keeps Trident's signature and any wrapper that forwards it forwards
everything. A plain `int` works as well: attempt 0, every earlier attempt counts as the winner, no sentinel check;
this is Storm's three-field rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trident.state.winners import EVERYTHING_WON, Epochs, Winners

RETRY_BITS = 20
"""An attempt is `epoch << RETRY_BITS | retry`, so no two epochs have an attempt in common."""


EMPTIED = "(emptied)"
"""The incarnation in the sentinel of a partition that is being emptied: what is there must go, whatever it is."""


def epoch_of(attempt: int) -> int:
    """Return the epoch of the driver that made an attempt."""
    return attempt >> RETRY_BITS


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
