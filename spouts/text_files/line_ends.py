"""Finding what a batch takes of a text file: a byte range that ends at a line end and fits the batch."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from spouts.text_files.positions import Position
from spouts.text_files.ranges import Range, bytes_before, line_end_after, opened, position_in, too_long
from trident.errors import ReplayMismatchError

__all__ = ["Found", "Limits", "Rest", "check_goes_on", "find_range"]

_WINDOW = 256 << 10


@dataclass(frozen=True)
class Limits:
    """The greatest number of bytes of one batch, and of one line without its end."""

    max_batch_bytes: int
    max_line_bytes: int


class Rest(Enum):
    """What follows the range that was found."""

    NOTHING = "the file is read to its end"
    MORE = "the batch is full, and the file has more"
    HELD = "a last line that is not known to be complete"
    NO_ROOM = "no line of the file fits what is left of the batch"


class Found(NamedTuple):
    """A range (None: nothing to read now) and what follows it, with the position that is then reached."""

    range: Range | None
    rest: Rest
    position: Position | None


def find_range(
    path: str,
    before: Position | None,
    room: int,
    alone: bool,
    limits: Limits,
    is_final: Callable[[os.stat_result], bool],
) -> Found:
    """Find what a batch takes of a file from where the batches before have come to.

    Parameters
    ----------
    room
        Bytes that the batch may still take. Where not one line fits, a batch that is empty (`alone`) takes one line.
    is_final
        Whether a file with this `stat` is complete, so that a last line without a line end is a line.

    Raises
    ------
    ReplayMismatchError
        The file is no longer the one that was read up to `before`.
    SpoutError
        It cannot be read, or has a line that is longer than allowed.
    OSError
        It cannot be opened.
    """
    with opened(path) as file:
        status = os.fstat(file)
        check_goes_on(path, file, status.st_size, before)
        start = 0 if before is None else before.offset
        if path.endswith(".gz"):
            return _find_whole(path, file, status, start, room, alone, is_final)
        start = _after_completion(file, start)
        size = status.st_size
        if start >= size:
            return Found(None, Rest.NOTHING, position_in(file, start) if start else None)
        if start + room < size:
            return _find_part(path, file, start, size, room, alone, limits, is_final(status))
        before_end = bytes_before(file, size)
        if before_end.endswith(b"\n") or is_final(status):
            position = Position(size, zlib.crc32(before_end))
            return Found(Range(path, start, size, position.crc), Rest.NOTHING, position)
        end = _line_end_before(file, start, size)
        if size - end > limits.max_line_bytes:
            raise too_long(path, end, limits.max_line_bytes)
        return _found(path, file, start, end, Rest.HELD)


def check_goes_on(path: str, file: int, size: int, before: Position | None) -> None:
    """Make sure that an open file is still the one that was read up to `before`; `ReplayMismatchError` if not."""
    if before is None:
        return
    if size < before.offset:
        raise ReplayMismatchError(
            f"the file {path} was read up to byte {before.offset} and has {size} bytes now: it was truncated or "
            "replaced. Its lines up to there are counted already; give new content a name of its own"
        )
    if zlib.crc32(bytes_before(file, before.offset)) != before.crc:
        raise ReplayMismatchError(
            f"the file {path} was read up to byte {before.offset}, and the bytes before that are others now: it was "
            "replaced. Give new content a name of its own"
        )


def _find_part(
    path: str, file: int, start: int, size: int, room: int, alone: bool, limits: Limits, final: bool
) -> Found:
    end = _line_end_before(file, start, start + room)
    if end == start:
        if not alone:
            return Found(None, Rest.NO_ROOM, None)
        stop = min(size, start + limits.max_line_bytes + 1)  # 1: the line end
        end = line_end_after(file, start, stop)
        if end == stop and os.pread(file, 1, end - 1) != b"\n":
            if end < size or end - start > limits.max_line_bytes:
                raise too_long(path, start, limits.max_line_bytes)
            if not final:
                return Found(None, Rest.HELD, None)
    return _found(path, file, start, end, Rest.MORE if end < size else Rest.NOTHING)


def _find_whole(
    path: str,
    file: int,
    status: os.stat_result,
    start: int,
    room: int,
    alone: bool,
    is_final: Callable[[os.stat_result], bool],
) -> Found:
    if start == status.st_size:
        return Found(None, Rest.NOTHING, None)
    if start:
        raise ReplayMismatchError(
            f"the compressed file {path} had {start} bytes when it was read and has {status.st_size} now; compressed "
            "files are read once, whole. Give what is new a name of its own"
        )
    if not is_final(status):
        return Found(None, Rest.HELD, None)
    if status.st_size > room and not alone:
        return Found(None, Rest.NO_ROOM, None)
    return _found(path, file, 0, status.st_size, Rest.NOTHING)


def _found(path: str, file: int, start: int, end: int, rest: Rest) -> Found:
    if start == end:
        return Found(None, rest, None)
    position = position_in(file, end)
    return Found(Range(path, start, end, position.crc), rest, position)


def _after_completion(file: int, start: int) -> int:
    # A last line that was taken without its end, and got the end afterwards: the end is no line of its own.
    if start and os.pread(file, 1, start - 1) != b"\n":
        following = os.pread(file, 2, start)
        if following[:1] == b"\n":
            return start + 1
        if following == b"\r\n":
            return start + 2
    return start


def _line_end_before(file: int, start: int, stop: int) -> int:
    """Return the position after the last line end within `start` to `stop`; `start` if there is none."""
    while stop > start:
        low = max(start, stop - _WINDOW)
        at = os.pread(file, stop - low, low).rfind(b"\n")
        if at >= 0:
            return low + at + 1
        stop = low
    return start
