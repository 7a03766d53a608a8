"""What a kind of file tells the coordinator: where a batch may end, and whether a file is still the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from spouts.files.positions import Position
from spouts.files.ranges import FileRange

__all__ = ["FileCut", "FileFormat", "Rest"]


class Rest(Enum):
    """What follows the range that was found."""

    NOTHING = "the file is read to its end"
    MORE = "the batch is full, and the file has more"
    HELD = "an end that is not known to be complete"
    NO_ROOM = "nothing of the file fits what is left of the batch"


class FileCut(NamedTuple):
    """What a batch takes of a file.

    Attributes
    ----------
    range
        None: nothing to read now.
    rest, position
        What follows it, and the position that is then reached.
    weight
        What it takes of the room of the batch; None: its bytes.
    """

    range: FileRange | None
    rest: Rest
    position: Position | None
    weight: int | None = None


class FileFormat(Protocol):
    """A kind of file. Only the file system is asked, in the driver."""

    def find(
        self, path: str, before: Position | None, room: int, alone: bool, is_final: Callable[[os.stat_result], bool]
    ) -> FileCut:
        """Find what a batch takes of a file from where the batches before have come to.

        Parameters
        ----------
        room
            What the batch may still take. Where not the least fits, a batch that is empty (`alone`) takes that.
        is_final
            Whether a file with this `stat` is complete.

        Raises
        ------
        ReplayMismatchError
            The file is no longer the one that was read up to `before`.
        SpoutError
            It cannot be read.
        OSError
            It cannot be opened.
        """

    def check_same(self, path: str, size: int, position: Position) -> None:
        """Make sure that a file that was read to its end is still the same; `ReplayMismatchError` if not."""

    def position_at(self, path: str, offset: int) -> Position:
        """Return the position of a file that was read up to `offset`."""

    def is_whole(self, path: str) -> bool:
        """Whether a range of the file cannot be cut for tasks."""

    def size(self, path: str, start: int, end: int) -> int | None:
        """Say about how many bytes a range has in memory; None if that is not known."""
