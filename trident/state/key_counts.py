"""How many keys a commit read, found in a memory, and wrote: counted by the maps, in the thread that commits.

As with the counters of operations, `counting_keys` collects what the calling thread counts meanwhile. Outside of it, when a
user or a DRPC request reads a state, nothing is counted.
"""

from __future__ import annotations

import threading
from operator import add
from typing import NamedTuple


class KeyCounts(NamedTuple):
    """Keys of one state in one batch.

    Attributes
    ----------
    read
        Keys that the store was asked for.
    cached
        Keys that a memory or a cache in front of the store answered, so that the store was not asked.
    written
        Keys that were put into the store, removed ones included.
    """

    read: int = 0
    cached: int = 0
    written: int = 0


NO_KEYS = KeyCounts()


def add_keys(total: dict[str, KeyCounts], state: str, counts: KeyCounts) -> None:
    """Add what a partition of a state, or a query of it, read and wrote."""
    before = total.get(state)
    total[state] = counts if before is None else KeyCounts(*map(add, before, counts))


class _Here(threading.local):
    keys: counting_keys | None = None  # what this thread collects; None: it does not collect


_here = _Here()


class counting_keys:  # noqa: N801 - used as a function
    """Collect the keys that this thread counts; `counts` has the sums."""

    __slots__ = ("_asked", "_before", "_cached", "_written")

    def __init__(self) -> None:
        self._asked = self._cached = self._written = 0

    def __enter__(self) -> counting_keys:
        self._before, _here.keys = _here.keys, self
        return self

    def __exit__(self, *raised: object) -> None:
        _here.keys = self._before

    def add(self, asked: int, cached: int, written: int) -> None:
        self._asked += asked
        self._cached += cached
        self._written += written

    @property
    def counts(self) -> KeyCounts:
        # A map counts what it asks for, a memory below it what it answers itself; so neither needs to know of the other.
        return KeyCounts(max(0, self._asked - self._cached), self._cached, self._written)


def count_keys(asked: int = 0, cached: int = 0, written: int = 0) -> None:
    """Count keys that a map asks for or writes, or that a memory in front of the store answers itself."""
    if _here.keys is not None:
        _here.keys.add(asked, cached, written)
