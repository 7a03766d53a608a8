"""Finding what a batch takes of a text file: a byte range that ends at a line end and fits the batch."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from spouts.files.file_format import FileCut, Rest
from spouts.files.positions import Position, bytes_before, check_goes_on, position_at, position_in
from spouts.files.ranges import FileRange, opened
from trident.errors import ReplayMismatchError, SpoutError

_WINDOW = 256 << 10


@dataclass(frozen=True)
class LineFiles:
    """Files of lines, for the coordinator: ranges end at line ends, and files may grow.

    `max_line_bytes`: the greatest length of a line without its end.
    `whole`: whether each file is read whole, as `.gz` files always are: one range, and it must not grow.
    """

    max_line_bytes: int
    whole: bool = False

    def is_whole(self, path: str) -> bool:
        return self.whole or path.endswith(".gz")

    def size(self, path: str, start: int, end: int) -> int | None:
        """Say how many bytes a range has; None if they are compressed, because what they unpack to is then unknown."""
        return None if path.endswith(".gz") else end - start

    def check_same(self, path: str, size: int, position: Position) -> None:
        """Make sure that a file that was read to its end has not been replaced by one of the same size."""
        with opened(path) as file:
            check_goes_on(path, file, size, position)

    def position_at(self, path: str, offset: int) -> Position:
        return position_at(path, offset)

    def find(
        self, path: str, before: Position | None, room: int, alone: bool, is_final: Callable[[os.stat_result], bool]
    ) -> FileCut:
        with opened(path) as file:
            status = os.fstat(file)
            check_goes_on(path, file, status.st_size, before)
            start = 0 if before is None else before.offset
            if self.is_whole(path):
                return _find_whole(path, file, status, start, room, alone, is_final)
            start = _after_completion(file, start)
            size = status.st_size
            if start >= size:
                return FileCut(None, Rest.NOTHING, position_in(file, start) if start else None)
            if start + room < size:
                return _find_part(path, file, start, size, room, alone, self.max_line_bytes, is_final(status))
            before_end = bytes_before(file, size)
            if before_end.endswith(b"\n") or is_final(status):
                position = Position(size, zlib.crc32(before_end))
                return FileCut(FileRange(path, start, size, position.crc), Rest.NOTHING, position)
            end = _line_end_before(file, start, size)
            if size - end > self.max_line_bytes:
                raise too_long(path, end, self.max_line_bytes)
            return _found(path, file, start, end, Rest.HELD)


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


def _find_part(
    path: str, file: int, start: int, size: int, room: int, alone: bool, max_line_bytes: int, final: bool
) -> FileCut:
    end = _line_end_before(file, start, start + room)
    if end == start:
        if not alone:
            return FileCut(None, Rest.NO_ROOM, None)
        stop = min(size, start + max_line_bytes + 1)  # 1: the line end
        end = line_end_after(file, start, stop)
        if end == stop and os.pread(file, 1, end - 1) != b"\n":
            if end < size or end - start > max_line_bytes:
                raise too_long(path, start, max_line_bytes)
            if not final:
                return FileCut(None, Rest.HELD, None)
    return _found(path, file, start, end, Rest.MORE if end < size else Rest.NOTHING)


def _find_whole(
    path: str,
    file: int,
    status: os.stat_result,
    start: int,
    room: int,
    alone: bool,
    is_final: Callable[[os.stat_result], bool],
) -> FileCut:
    if start == status.st_size:
        return FileCut(None, Rest.NOTHING, None)
    if start:
        raise ReplayMismatchError(
            f"the file {path} had {start} bytes when it was read and has {status.st_size} now; "
            "such files are read once, whole, and do not grow. Give what is new a name of its own"
        )
    if not is_final(status):
        return FileCut(None, Rest.HELD, None)
    if status.st_size > room and not alone:
        return FileCut(None, Rest.NO_ROOM, None)
    return _found(path, file, 0, status.st_size, Rest.NOTHING)


def _found(path: str, file: int, start: int, end: int, rest: Rest) -> FileCut:
    if start == end:
        return FileCut(None, rest, None)
    position = position_in(file, end)
    return FileCut(FileRange(path, start, end, position.crc), rest, position)


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
