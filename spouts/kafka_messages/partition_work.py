"""One partition that a task reads: what of it is done, and what was last committed."""

from __future__ import annotations

from typing import Any

from spouts.kafka.batch_ranges import Spot
from spouts.kafka.truncations import Place, placed
from spouts.kafka_messages.offset_notes import OffsetNotes
from spouts.kafka_messages.offset_window import OffsetWindow
from spouts.kafka_messages.own_partitions import Start

__all__ = ["PartitionWork"]


class PartitionWork:
    """The work on a partition.

    Attributes
    ----------
    window
        Which offsets are done.
    failures
        By offset how often a record failed that is not done.
    is_paused
        Whether the client was told to read nothing more of it for now.
    epoch
        The latest epoch of a leader that a record was read from, or of the one that said where reading begins.
    """

    def __init__(self, start: Start) -> None:
        self.window = OffsetWindow(start.offset, start.notes.done)
        self.failures = {offset: count for offset, count in start.notes.failures.items() if offset >= self.window.low}
        self.is_paused = False
        self.epoch = start.epoch
        self._notes = start.notes
        self._committed = self._state() if start.is_committed else None

    @property
    def place(self) -> Place:
        """What comes next from the broker."""
        return Place(self.window.position, self.epoch)

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
        return placed(spot, Place(low, self.epoch), text)

    def commit_again(self) -> None:
        """The last commit did not succeed."""
        self._committed = None

    def _state(self) -> tuple[int, str]:
        low = self.window.low
        notes = OffsetNotes(self._notes.topic_id, self._notes.partitions, self.window.done, self.failures)
        return low, notes.text(low)
