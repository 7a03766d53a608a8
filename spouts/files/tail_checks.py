"""Whether a file of lines is still the one that was read: by its size, and the bytes before the position reached."""

from __future__ import annotations

import os
import zlib

from spouts.files.positions import Position
from spouts.files.ranges import FileRange, open_error, opened
from trident.errors import ReplayMismatchError

__all__ = ["bytes_before", "check_goes_on", "check_unchanged", "position_at", "position_in"]

_CHECKED = 256


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


def position_in(file: int, offset: int) -> Position:
    """Return the position of an open file that was read up to `offset`."""
    return Position(offset, zlib.crc32(bytes_before(file, offset)))


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


def check_unchanged(file: int, range_: FileRange, whole: bool) -> None:
    """Make sure that a range that was defined before still holds what it held; `ReplayMismatchError` if not.

    A file that is read `whole` may not have grown either.
    """
    path, start, end, crc = range_
    size = os.fstat(file).st_size
    if size < end or (whole and size != end):
        found = "it was truncated or replaced"
    elif zlib.crc32(bytes_before(file, end)) != crc:
        found = f"the bytes before {end} are others: it was replaced"
    else:
        return
    raise ReplayMismatchError(
        f"the batch was defined as bytes {start} to {end} of {path}, which has {size} bytes now, and {found}. "
        "Put the file back as it was and start again"
    )
