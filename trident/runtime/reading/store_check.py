"""StoreCheck: do the stores of a state belong to the log? Asked once per snapshot, not once per key."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from trident.coordination.log_state import LogState
from trident.errors import StateReadError
from trident.state.interfaces import State
from trident.state.reader_check import check_reading
from trident.state.txid import Txid

_AGAIN_S = 0.1
_ROUNDS = 3


class StoreCheck:
    """Compares the sentinels of a state's partitions with the log: for each snapshot, and again after a tenth of a second.

    `name`: the state's name.
    `partitions`: its instances. Instances without sentinels (a user's own state) are not compared.
    `log`: returns the state of the log now.
    `clock`: returns seconds, from any start.
    """

    def __init__(
        self,
        name: str,
        partitions: Sequence[State],
        log: Callable[[], LogState],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._partitions, self._log, self._clock = name, partitions, log, clock
        self._txid, self._until = -1, 0.0

    def after_reading(self, txid: int) -> None:
        """Compare, unless this was just done for the same snapshot.

        It is called after the values were read, so it finds a store that was replaced before or meanwhile.

        Raises `StateReadError`: they do not belong together; do not use what was read.
        """
        if txid != self._txid or self._clock() >= self._until:
            self.compare()
            self._txid, self._until = txid, self._clock() + _AGAIN_S

    def compare(self) -> None:
        """Compare now. A mismatch is looked at again, because a start may change the store before the log says so."""
        for rounds_left in reversed(range(_ROUNDS)):
            try:
                check_partitions(self._name, self._partitions, self._commits)
                return
            except StateReadError:
                if not rounds_left:
                    raise

    def _commits(self) -> list[Txid]:
        """Return for each partition the next commit, by the log of now."""
        log, name = self._log(), self._name
        # In this order, because the txid changes last while a commit is being recorded.
        txid = log.txid
        expected = [log.expected(name, partition) for partition in range(len(self._partitions))]
        winners, epochs = log.winners_of(name), log.epochs
        return [Txid(txid + 1, 0, winners, log.incarnation, sentinel, epochs) for sentinel in expected]


def check_partitions(name: str, partitions: Sequence[State], commits: Callable[[], Sequence[Txid]]) -> None:
    """Compare each partition's sentinel with the log; on a mismatch the log is read again.

    `commits`: returns for each partition the next commit, by the log of now.
    """
    before = commits()
    for partition, state in enumerate(partitions):
        check_partition(name, partition, state, before[partition], lambda at=partition: commits()[at])  # type: ignore[misc]


def check_partition(name: str, partition: int, state: State, before: Txid, again: Callable[[], Txid]) -> None:
    """Compare one partition's sentinel with the log; `before` and `again`: its next commit by the log, then and now."""
    if before.incarnation is None or not state.offers("read_sentinel"):
        return
    found, place = state.read_sentinel(), state.place
    try:
        check_reading(name, partition, found, before, before, place)
    except StateReadError:
        check_reading(name, partition, found, before, again(), place)
