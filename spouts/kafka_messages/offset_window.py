"""What of a partition is done, while records are acknowledged in any order: ranges of offsets, not single ones."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

__all__ = ["OffsetWindow"]


class OffsetWindow:
    """The offsets of a partition from the lowest that is not done to the one that comes next.

    Attributes
    ----------
    low
        The lowest offset that is not done: what may be committed.
    position
        The offset that comes next from the broker.

    Parameters
    ----------
    start
        Where reading begins.
    done
        Ranges behind it that are done already, each (first, end).
    """

    def __init__(self, start: int, done: Iterable[tuple[int, int]] = ()) -> None:
        self.low = self.position = start
        self._starts: list[int] = []
        self._ends: list[int] = []
        for first, end in done:
            self.finish(first, end)

    @property
    def gap(self) -> int:
        """How many offsets lie between the lowest that is not done and the next one to come."""
        return max(0, self.position - self.low)

    @property
    def done(self) -> list[tuple[int, int]]:
        """The ranges behind `low` that are done, each (first, end), in order; no two touch each other."""
        return list(zip(self._starts, self._ends, strict=True))

    def arrive(self, offset: int) -> bool:
        """Note that a record came; whether it is to be processed.

        Offsets in front of it that did not come are no records: they were compacted away, or belong to transactions.
        """
        if offset < self.position:
            return False
        self.skip_to(offset)
        self.position = offset + 1
        at = bisect_right(self._starts, offset) - 1
        return offset >= self.low and (at < 0 or offset >= self._ends[at])

    def skip_to(self, offset: int) -> None:
        """Note that there is nothing from the position up to an offset."""
        self.finish(self.position, offset)
        self.position = max(self.position, offset)

    def cut(self, offset: int) -> None:
        """Forget everything from an offset on: it is about other records than those that have these numbers now."""
        done = [(first, min(end, offset)) for first, end in self.done if first < offset]
        self.low, self.position = min(self.low, offset), offset
        self._starts, self._ends = [first for first, _ in done], [end for _, end in done]

    def finish(self, first: int, end: int) -> None:
        """Note that the offsets from `first` to before `end` are done."""
        first = max(first, self.low)
        if first >= end:
            return
        left, right = bisect_left(self._ends, first), bisect_right(self._starts, end)
        if left < right:  # they touch it or overlap with it
            first, end = min(first, self._starts[left]), max(end, self._ends[right - 1])
        self._starts[left:right], self._ends[left:right] = [first], [end]
        if self._starts[0] <= self.low:
            self.low = self._ends[0]
            del self._starts[0], self._ends[0]
