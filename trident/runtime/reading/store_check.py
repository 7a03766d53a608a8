"""StoreCheck: do the stores of a state belong to the log that it is read by? Asked once a snapshot, not once a key."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from trident.coordination.log_state import LogState
from trident.errors import StateReadError
from trident.state.reader_check import check_reading
from trident.state.txid import Txid

__all__ = ["StoreCheck", "check_partitions"]

_AGAIN_S = 0.1
_ROUNDS = 3


class StoreCheck:
    """Compares the sentinels of a state's partitions with the log: for each snapshot, and again after a tenth of a second.

    Parameters
    ----------
    name
        The state's.
    partitions
        Its instances. Those without sentinels (a user's own kind of state) are not compared.
    log
        Gives what the log says now.
    clock
        Seconds, from any begin.
    """

    def __init__(
        self,
        name: str,
        partitions: Sequence[Any],
        log: Callable[[], LogState],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._partitions, self._log, self._clock = name, partitions, log, clock
        self._txid, self._until = -1, 0.0

    def after_reading(self, txid: int) -> None:
        """Compare, unless that was just done for the same snapshot.

        Called when the values have been read: a store that was replaced before or meanwhile is found then.

        Raises
        ------
        StateReadError
            They do not belong together; what was read is not to be used.
        """
        if txid != self._txid or self._clock() >= self._until:
            self.compare()
            self._txid, self._until = txid, self._clock() + _AGAIN_S

    def compare(self) -> None:
        """Compare now. What does not fit is looked at again: a start may be changing the store before the log says so."""
        for rounds_left in reversed(range(_ROUNDS)):
            try:
                check_partitions(self._name, self._partitions, self._commits)
                return
            except StateReadError:
                if not rounds_left:
                    raise

    def _commits(self) -> list[Txid]:
        """For each partition the commit that comes next, by the log of now."""
        log, name = self._log(), self._name
        # In this order: where a commit is just being recorded, the txid is the last to change.
        txid = log.txid
        expected = [log.expected(name, partition) for partition in range(len(self._partitions))]
        winners, epochs = log.winners_of(name), log.epochs
        return [Txid(txid + 1, 0, winners, log.incarnation, sentinel, epochs) for sentinel in expected]


def check_partitions(name: str, partitions: Sequence[Any], commits: Callable[[], Sequence[Txid]]) -> None:
    """Compare each partition's sentinel with what the log says; the log is read again where they do not fit at once.

    Parameters
    ----------
    commits
        Gives for each partition the commit that comes next, by the log of now.
    """
    before = commits()
    for partition, state in enumerate(partitions):
        if before[partition].incarnation is None or not hasattr(state, "read_sentinel"):
            continue
        found, place = state.read_sentinel(), getattr(state, "place", "")
        try:
            check_reading(name, partition, found, before[partition], before[partition], place)
        except StateReadError:
            check_reading(name, partition, found, before[partition], commits()[partition], place)
