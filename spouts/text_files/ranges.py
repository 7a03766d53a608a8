"""Byte ranges of text files: what they are, checked before they are read, cut for tasks."""

# Files are descriptors: there may be a thousand small files in a batch, and a file object costs more than reading one.

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from spouts.text_files.positions import Position
from trident.errors import ReplayMismatchError, SpoutError

__all__ = [
    "Piece",
    "Range",
    "bytes_before",
    "check_unchanged",
    "cut",
    "line_end_after",
    "open_error",
    "opened",
    "position_at",
    "position_in",
    "too_long",
]

_MIN_PART_BYTES = 1 << 20  # below this a Spark task costs more than what it would take over
_WINDOW = 256 << 10
_CHECKED = 256


class Range(NamedTuple):
    """The bytes `start` to `end` of a file; `crc` is of the bytes just before `end`. A `.gz` file is one range."""

    path: str
    start: int
    end: int
    crc: int

    @property
    def whole(self) -> bool:
        """Whether it cannot be cut, being compressed."""
        return self.path.endswith(".gz")


class Piece(NamedTuple):
    """What one task reads of a range: the lines that begin in `start` to `end`, the last one to its end."""

    range: Range
    start: int
    end: int


class opened:  # noqa: N801 - used as a function
    """A file opened to be read, as a descriptor."""

    __slots__ = ("_file",)

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> int:
        return self._file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


def bytes_before(file: int, end: int) -> bytes:
    """Return the (at most 256) bytes before a position; their checksum tells whether the file is the same."""
    return os.pread(file, min(end, _CHECKED), max(0, end - _CHECKED))


def position_at(path: str, offset: int) -> Position:
    """Return the position of a file that was read up to `offset`."""
    try:
        with opened(path) as file:
            return position_in(file, offset)
    except OSError as error:
        raise open_error(path, error, "cannot go on after a batch") from error


def open_error(path: str, error: OSError, doing: str) -> SpoutError:
    """Say why a file cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return SpoutError(f"{doing}: the file {path} is gone; put it back and start again")
    if isinstance(error, PermissionError):
        return SpoutError(
            f"{doing}: the file {path} may not be read by user id {os.geteuid()}; "
            "change its permissions, or leave it out"
        )
    return SpoutError(f"{doing}: the file {path} cannot be read: {error.strerror or error}")


def position_in(file: int, offset: int) -> Position:
    """Return the position of an open file that was read up to `offset`."""
    return Position(offset, zlib.crc32(bytes_before(file, offset)))


def line_end_after(file: int, start: int, stop: int) -> int:
    """Return the position after the first line end within `start` to `stop`; `stop` if there is none."""
    while start < stop:
        data = os.pread(file, min(_WINDOW, stop - start), start)
        if not data:
            return stop
        at = data.find(b"\n")
        if at >= 0:
            return start + at + 1
        start += len(data)
    return stop


def too_long(path: str, offset: int, limit: int) -> SpoutError:
    """Say that a line exceeds the limit."""
    return SpoutError(
        f"the line at byte {offset} of {path} is longer than max_line_bytes={limit}. "
        "Raise max_line_bytes, or leave the file out if it is no text file"
    )


def check_unchanged(file: int, range_: Range) -> None:
    """Make sure that a range that was defined before still holds what it held; `ReplayMismatchError` if not."""
    path, start, end, crc = range_
    size = os.fstat(file).st_size
    if size < end or (range_.whole and size != end):
        found = "it was truncated or replaced"
    elif zlib.crc32(bytes_before(file, end)) != crc:
        found = f"the bytes before {end} are others: it was replaced"
    else:
        return
    raise ReplayMismatchError(
        f"the batch was defined as bytes {start} to {end} of {path}, which has {size} bytes now, and {found}. "
        "Put the file back as it was and start again"
    )


def cut(ranges: Sequence[Range], parallelism: int) -> list[tuple[Piece, ...]]:
    """Cut ranges into parts of about equal bytes, not more than `parallelism`; at any byte, readers align to lines."""
    total = sum(one.end - one.start for one in ranges)
    count = max(1, min(parallelism, total // _MIN_PART_BYTES))
    parts: list[list[Piece]] = [[]]
    taken = 0
    for one in ranges:
        at = one.start
        while at < one.end:
            while taken >= total * len(parts) // count:
                parts.append([])
            room = one.end - at if one.whole else total * len(parts) // count - taken
            end = min(one.end, at + room)
            parts[-1].append(Piece(one, at, end))
            taken += end - at
            at = end
    return [tuple(part) for part in parts if part]
