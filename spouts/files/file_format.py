"""What the coordinator has to know of a kind of file: where a batch may end, and whether a file is still the same.

How many bytes of files are still to be read, counted along with the definitions: no file is asked for it.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import NamedTuple, Protocol

from spouts.files.positions import Position
from spouts.files.ranges import FileRange
from spouts.files.tails import Tail
from trident.spout.interfaces import Definition


class Rest(Enum):
    """What follows the range that was found."""

    NOTHING = "the file is read to its end"
    MORE = "the batch is full, and the file has more"
    HELD = "an end that may not be whole"
    NO_ROOM = "nothing of the file fits what is left of the batch"


class FileCut(NamedTuple):
    """What a batch takes of a file.

    `range`: None: nothing to read now.
    `rest`, `position`: what follows it, and the position that is then reached.
    `weight`: what it takes of the room of the batch; None: its bytes.
    `is_guess`: whether the range may turn out to end too early, because its file goes on.
    """

    range: FileRange | None
    rest: Rest
    position: Position | None
    weight: int | None = None
    is_guess: bool = False


class FileFormat(Protocol):
    """A kind of file. Only the file system is asked, in the driver."""

    def find(self, path: str, before: Position | None, room: int, alone: bool, tail: Tail) -> FileCut:
        """Find what a batch takes of a file from where the batches before have come to.

        `room`: what the batch may still take. Where not the least fits, a batch that is empty (`alone`) takes that.
        `tail`: what is known of its end; it is told how the file is now.
        Raises `ReplayMismatchError`: the file is no longer the one that was read up to `before`.
        Raises `SpoutError`: it cannot be read, or goes on in the middle of a line that was given.
        Raises `OSError`: it cannot be opened.
        """

    def check_same(self, path: str, size: int, position: Position) -> None:
        """Make sure that a file that was read to its end is still the same; `ReplayMismatchError` if not."""

    def goes_on(self, path: str, end: int) -> bool:
        """Whether a range up to `end`, which was a guess, has turned out to end too early."""

    def position_at(self, path: str, offset: int) -> Position:
        """Return the position of a file that was read up to `offset`."""

    def is_whole(self, path: str) -> bool:
        """Whether a range of the file cannot be cut for tasks."""

    def size(self, path: str, start: int, end: int) -> int | None:
        """Say about how many bytes a range has in memory; None if that is not known."""


_KEPT = 100  # more than there are batches in flight


class BytesAhead:
    """What was listed and not defined yet, and what each of the last batches has."""

    def __init__(self) -> None:
        self._listed = 0
        self._defined = 0
        self._up_to: dict[tuple[str, int], int] = {}

    def listed(self, size: int) -> None:
        """The files were listed, and have so many bytes that are in no batch yet."""
        self._listed = size

    def defined(self, definition: Definition, is_all: bool) -> None:
        """A batch was defined; `is_all`: nothing that was listed is left, though a file may have grown since."""
        size = sum(int(end) - int(start) for _, start, end, _ in definition["ranges"])
        self._listed = 0 if is_all else max(0, self._listed - size)
        self._defined += size
        self._up_to[_end_of(definition)] = self._defined
        if len(self._up_to) > _KEPT:
            del self._up_to[next(iter(self._up_to))]

    def after(self, definition: Definition) -> int:
        """Return the bytes that are in no batch up to this one, as far as the files were listed."""
        return self._listed + self._defined - self._up_to.get(_end_of(definition), 0)


def _end_of(definition: Definition) -> tuple[str, int]:
    path, _, end, _ = definition["ranges"][-1]
    return os.fsdecode(definition["base"]) + os.fsdecode(path), int(end)
