"""What is counted while a batch is processed and committed: counters of operations, and keys that maps read and write.

`counting` collects what the calling thread counts meanwhile, and comes back with the batch: attempts side by side do not mix,
and what a failed attempt counted is dropped with it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from operator import add
from typing import NamedTuple


class _Here(threading.local):
    """What this thread collects; None: it does not."""

    counts: dict[str, int] | None = None
    keys: counting_keys | None = None


_here = _Here()


@dataclass(frozen=True)
class Counter:
    """A number that an operation adds to; made by `TridentOperationContext.register_counter`.

    `name`: operation and counter: `Parse/skipped`.
    """

    name: str

    def incr(self, by: int = 1) -> None:
        """Add to it. It counts only in the thread that called the operation, and only within a batch, not in `prepare`."""
        count_again({self.name: by})


class counting:  # noqa: N801 - used as a function
    """Collect what this thread counts, by name."""

    __slots__ = ("_before",)

    def __enter__(self) -> dict[str, int]:
        self._before = _here.counts
        counts: dict[str, int] = {}
        _here.counts = counts
        return counts

    def __exit__(self, *raised: object) -> None:
        _here.counts = self._before


def count_again(counts: Mapping[str, int]) -> None:
    if _here.counts is not None:
        add_counts(_here.counts, counts)


_REMARK = "\0"


def remark(step: str, kind: str, text: str) -> None:
    """Have the driver say something of a step, once in a run for each kind; it comes back as counts do."""
    count_again({_REMARK.join(("", step, kind, text)): 1})


def take_remarks(counts: dict[str, int]) -> list[tuple[str, str, str]]:
    found = [name for name in counts if name.startswith(_REMARK)]
    for name in found:
        del counts[name]
    return [(step, kind, text) for _, step, kind, text in (name.split(_REMARK, 3) for name in found)]


def add_counts(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + count


class KeyCounts(NamedTuple):
    """Keys of one state in a batch that its store was asked for, that a cache answered, and that were put or removed."""

    read: int = 0
    cached: int = 0
    written: int = 0


NO_KEYS = KeyCounts()


def add_keys(total: dict[str, KeyCounts], state: str, counts: KeyCounts) -> None:
    before = total.get(state)
    total[state] = counts if before is None else KeyCounts(*map(add, before, counts))


class counting_keys:  # noqa: N801 - used as a function
    """Collect the keys that this thread counts; `counts` has the sums."""

    _asked = _cached = _written = 0
    _before: counting_keys | None

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
