"""One partition that a task reads: how much of it is done, and what was last committed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any

from spouts.kafka.batch_ranges import Spot
from spouts.kafka.lost_records import LogPosition, placed
from spouts.kafka.offset_notes import OffsetNotes
from spouts.kafka.own_partitions import Start


class PartitionWork:
    """The work on a partition.

    `window`: which offsets are done.
    `failures`: by offset how often a record failed that is not done.
    `is_paused`: whether the client was asked to read nothing more of it for now.
    `epoch`: the latest epoch of a leader that a record was read from, or of the one that said where reading begins.
    """

    def __init__(self, start: Start) -> None:
        self.window = OffsetWindow(start.offset, start.notes.done)
        self.failures = {offset: count for offset, count in start.notes.failures.items() if offset >= self.window.low}
        self.is_paused = False
        self.epoch = start.epoch
        self._notes = start.notes
        self._committed = self._state() if start.is_committed else None

    @property
    def place(self) -> LogPosition:
        """What comes next from the broker."""
        return LogPosition(self.window.position, self.epoch)

    def arrive(self, offset: int, epoch: int | None) -> bool:
        """Note that a record came; whether it is to be processed."""
        if epoch is not None and epoch > self.epoch:
            self.epoch = epoch
        return self.window.arrive(offset)

    def finish(self, offset: int) -> None:
        """Note that a record is done."""
        self.window.finish(offset, offset + 1)
        self.failures.pop(offset, None)

    def move(self, start: Start) -> None:
        """Go on at another offset: what is between is gone, or what was read from there on is."""
        self.epoch = start.epoch
        if start.offset > self.window.position:
            self.window.skip_to(start.offset)
        else:
            self.window.cut(start.offset)
            self.failures = {offset: count for offset, count in self.failures.items() if offset < start.offset}

    def to_commit(self, spot: Spot) -> Any | None:
        """Return what to commit, None if that was committed already."""
        state = self._state()
        if state == self._committed:
            return None
        self._committed = state
        low, text = state
        return placed(spot, LogPosition(low, self.epoch), text)

    def commit_again(self) -> None:
        """The last commit did not succeed."""
        self._committed = None

    def _state(self) -> tuple[int, str]:
        low = self.window.low
        notes = OffsetNotes(self._notes.topic_id, self._notes.partitions, self.window.done, self.failures)
        return low, notes.text(low)


# What of a partition is done, while records are acknowledged in any order: ranges of offsets, not single ones.


class OffsetWindow:
    """The offsets of a partition from the lowest that is not done to the one that comes next.

    `low`: the lowest offset that is not done: what may be committed.
    `position`: the offset that comes next from the broker.
    `start`: where reading begins.
    `done`: ranges behind it that are done already, each (first, end).
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
