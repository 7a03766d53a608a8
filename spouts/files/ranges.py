"""Byte ranges of files: what they are, and how they are cut for tasks."""

# Files are descriptors: there may be a thousand small files in a batch, and a file object costs more than reading one.

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trident.errors import SpoutError

_MIN_PART_BYTES = 1 << 20  # below this a Spark task costs more than what it would take over


class FileRange(NamedTuple):
    """The bytes `start` to `end` of a file; `crc` shows whether the file is the same (see `FileFormat`).

    `is_guess`: whether the file may still go on there (see `tails.py`), so that the batch is not in the log yet.
    """

    path: str
    start: int
    end: int
    crc: int
    is_guess: bool = False


class Piece(NamedTuple):
    """What one task reads of a range: what begins in `start` to `end`, lines or row groups, the last one to its end."""

    range: FileRange
    start: int
    end: int


class opened:  # noqa: N801 - used as a function
    """A file opened to be read, as a descriptor."""

    __slots__ = ("_file",)

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> int:
        return self._file

    def __exit__(self, *raised: object) -> None:
        os.close(self._file)


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


def cut(ranges: Sequence[FileRange], parallelism: int, is_whole: Callable[[str], bool]) -> list[tuple[Piece, ...]]:
    """Cut ranges into parts of about equal bytes, not more than `parallelism`.

    At any byte, because readers align to what begins in a piece; but not where a file `is_whole`.
    """
    total = sum(one.end - one.start for one in ranges)
    count = max(1, min(parallelism, total // _MIN_PART_BYTES))
    parts: list[list[Piece]] = [[]]
    taken = 0
    for one in ranges:
        at = one.start
        while at < one.end:
            while taken >= total * len(parts) // count:
                parts.append([])
            room = one.end - at if is_whole(one.path) else total * len(parts) // count - taken
            end = min(one.end, at + room)
            parts[-1].append(Piece(one, at, end))
            taken += end - at
            at = end
    return [tuple(part) for part in parts if part]


def plain(path: str) -> str | bytes:
    """Return a path as text that can be logged, or as bytes if it is not UTF-8; `os.fsdecode` reads both."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return os.fsencode(path)
    return path
