"""The log of a driver, simulated: what a commit knows of attempts, winners and sentinels.

Updaters that a test can distinguish: sums, and lists of everything that was applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trident.state.txid import Sentinel, Snapshot, Txid
from trident.state.winners import Winners
from trident.testing.backend.store_under_test import INCARNATION

_EPOCH = 1 << 20


class Log:
    """Which batches are committed, and by whom.

    `committed`: the last committed txid; 0 before the first.
    `attempt`: the attempt that runs now.
    `winners`: who won the committed txids.
    """

    def __init__(self) -> None:
        self.committed, self.attempt, self.winners = 0, _EPOCH, Winners()
        self._expected: dict[int, Sentinel] = {}

    def next(self, partition: int = 0) -> Txid:
        return Txid(self.committed + 1, self.attempt, self.winners, INCARNATION, self._expected.get(partition))

    def fail(self, takeover: bool = False) -> None:
        """The attempt failed: the next one runs, in the same driver or (`takeover`) in another."""
        self.attempt = (self.attempt // _EPOCH + 1) * _EPOCH if takeover else self.attempt + 1

    def record(self, partitions: Iterable[int] = (0,)) -> None:
        self.committed += 1
        self.winners = self.winners.with_winner(self.committed, self.attempt)
        for partition in partitions:
            self._expected[partition] = Sentinel(INCARNATION, self.committed, self.attempt)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.committed, self.winners)


class Add:
    """Adds a number to the stored one."""

    def __init__(self, number: int) -> None:
        self.number = number

    def update(self, stored: int | None) -> int:
        return (stored or 0) + self.number


class Append:
    """Appends to the stored list, in place, which an updater should not do but can. A doubled or lost update shows."""

    def __init__(self, item: object) -> None:
        self.item = item

    def update(self, stored: list[Any] | None) -> list[Any]:
        items = [] if stored is None else stored
        items.append(self.item)
        return items
