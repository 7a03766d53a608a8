"""Counters of operations. What is counted while a batch is processed comes back with the batch.

A counter has no value of its own: `counting` collects what the calling thread counts meanwhile, so attempts that run side
by side do not mix, and what a failed attempt counted is dropped with it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass


class _Here(threading.local):
    counts: dict[str, int] | None = None  # what this thread collects; None: it does not collect


_here = _Here()


@dataclass(frozen=True)
class Counter:
    """A number that an operation adds to; made by `TridentOperationContext.register_counter`.

    Attributes
    ----------
    name
        Operation and counter: `Parse/skipped`.
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
    """Count in this thread what was collected apart."""
    if _here.counts is not None:
        add_counts(_here.counts, counts)


_REMARK = "\0"


def remark(step: str, kind: str, text: str) -> None:
    """Have the driver say something of a step, once in a run for each kind; it comes back as counts do."""
    count_again({_REMARK.join(("", step, kind, text)): 1})


def take_remarks(counts: dict[str, int]) -> list[tuple[str, str, str]]:
    """Take the remarks out of what was counted: step, kind and text of each."""
    found = [name for name in counts if name.startswith(_REMARK)]
    for name in found:
        del counts[name]
    return [(step, kind, text) for _, step, kind, text in (name.split(_REMARK, 3) for name in found)]


def add_counts(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + count
