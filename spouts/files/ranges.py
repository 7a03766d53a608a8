"""Byte ranges of files, and how they are cut for tasks; how far each file was read, and whether it is still the same file."""

# Files are descriptors: there may be a thousand small files in a batch, and a file object costs more than reading one.

import os
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.errors import ReplayMismatchError, SourceAwayError, SpoutError
from trident.fields import Fields

_MIN_PART_BYTES = 1 << 20  # below this a Spark task costs more than what it would take over
_SEAL_AT = 384
_CHUNK = 256
_HEAD = struct.Struct("<I")
_CHECKED = 256


class FileRange(NamedTuple):
    """The bytes `start` to `end` of a file."""

    path: str
    start: int
    end: int
    crc: int  # shows whether the file is the same; see `FileFormat`
    is_guess: bool = False  # the file may go on there (see `tails.py`): the batch is not in the log yet

    def __str__(self) -> str:
        return f"defined as bytes {self.start} to {self.end}"


class Piece(NamedTuple):
    """What one task reads of a range: what begins in `start` to `end`, lines or row groups, the last one to its end."""

    range: FileRange
    start: int
    end: int


class opened:  # noqa: N801 - used as a function, and cheaper than one
    """A file opened to be read, as a descriptor."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> int:
        return self._file

    def __exit__(self, *raised: object) -> None:
        os.close(self._file)


def open_error(path: str, error: OSError, doing: str) -> SpoutError:
    what = f"cannot be read: {error.strerror or error}"
    if isinstance(error, FileNotFoundError):
        what = "is gone; put it back and start again"
    elif isinstance(error, PermissionError):
        what = f"may not be read by user id {os.geteuid()}; change its permissions, or leave it out"
    return SpoutError(f"{doing}: the file {path} {what}")


class FileEmitter(ABC):
    """The worker's side: reads the declared fields.

    `bad_lines`: the name of a field of type string that follows, for what cannot be read; None: there is none.
    `with_file`: whether the path follows, as `file: string`.
    """

    is_quick: ClassVar[bool] = True  # it never waits, so the loop may call it

    def __init__(self, declared: Fields, bad_lines: str | None = None, with_file: bool = False) -> None:
        self._bad_lines, self._with_file = bad_lines, with_file
        more = [f"{name}: string" for name in (bad_lines, "file" if with_file else None) if name is not None]
        self.fields = Fields(declared, *more) if more else declared
        self._wanted, self._schema = schema_of(declared), schema_of(self.fields)

    def emit(self, part: Iterable[Piece]) -> Iterator[Any]:
        """Read the pieces of files that make up a part, in tables of about a megabyte."""
        for piece in part:
            try:
                yield from self.read(piece)
            except OSError as error:
                raise open_error(piece.range.path, error, f"cannot read the batch {piece.range}") from error

    @abstractmethod
    def read(self, piece: Piece) -> Iterator[Any]:
        """Read a piece; `OSError` if it cannot be opened."""

    def _table(self, columns: list[pa.Array], path: str, rows: int) -> pa.Table:
        if self._with_file:
            columns.append(pa.repeat(pa.scalar(path.encode("utf-8", "replace").decode()), rows))
        return pa.Table.from_arrays(columns, schema=self._schema)


def cut(ranges: Sequence[FileRange], parallelism: int, is_whole: Callable[[str], bool]) -> list[tuple[Piece, ...]]:
    """Cut ranges into parts; not where a file `is_whole`."""
    lengths = [one.end - one.start for one in ranges]
    parts = cut_evenly(lengths, parallelism, is_whole=lambda at: is_whole(ranges[at].path))
    return [tuple(Piece(ranges[at], ranges[at].start + a, ranges[at].start + b) for at, a, b in part) for part in parts]


def cut_evenly(
    lengths: Sequence[int],
    parallelism: int,
    size: int | None = None,
    is_whole: Callable[[int], bool] = lambda at: False,
) -> list[list[tuple[int, int, int]]]:
    """Cut things of some lengths into at most `parallelism` parts of about equal length, each a number, start and end.

    At any place, because readers align to what begins in a piece; but not where a thing `is_whole`.

    `size`: the bytes that all of them have, if the lengths do not say it; few bytes are one part.
    """
    total = sum(lengths)
    count = max(1, min(parallelism, (total if size is None else size) // _MIN_PART_BYTES, total))
    if count == 1:
        return [[(at, 0, length) for at, length in enumerate(lengths) if length]] if total else []
    parts: list[list[tuple[int, int, int]]] = [[]]
    taken = 0
    for at, length in enumerate(lengths):
        start = 0
        while start < length:
            while taken >= total * len(parts) // count:
                parts.append([])
            end = length if is_whole(at) else min(length, start + total * len(parts) // count - taken)
            parts[-1].append((at, start, end))
            start, taken = end, taken + end - start
    return [part for part in parts if part]


def plain(path: str) -> str | bytes:
    """Return a path as text that can be logged, or as bytes if it is not UTF-8; `os.fsdecode` reads both."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return os.fsencode(path)
    return path


class Position(NamedTuple):
    """How far a file was read, and the checksum of the bytes before (see `bytes_before`). Offset 0: not at all."""

    offset: int
    crc: int


UNREAD = Position(0, 0)


class Positions(dict[str, Position]):
    """How far each file was read; paths that were never read have no entry, and are `UNREAD`.

    A file that was read to its end may still grow, be replaced or be removed, and new files may sort anywhere, so each has an
    entry of its own, in the order in which they changed; a later one of a path overrides an earlier one. The older ones are in
    immutable chunks, which every definition repeats; so its work does not grow with the number of files.
    """

    def __init__(self, packed: Sequence[bytes] = ()) -> None:
        self._sealed, self._tail = list(packed[:-1]), dict[str, Position]()
        self._sealed_entries, every = 0, dict[str, Position]()
        for chunk in packed:
            self._sealed_entries += len(self._tail)
            self._tail = _unpack(chunk)
            every |= self._tail
        super().__init__((path, position) for path, position in every.items() if position.offset)

    def set(self, path: str, position: Position) -> None:
        if position.offset:
            self[path] = position
        else:
            self.pop(path, None)
        self._tail.pop(path, None)  # to the end of the tail: what changes often is sealed last
        self._tail[path] = position

    def forget(self, path: str) -> None:
        self.set(path, UNREAD)

    def to_chunks(self) -> list[bytes]:
        """Return the table as chunks of bytes; `Positions(chunks)` is an equal table."""
        if self._sealed_entries + len(self._tail) > 2 * len(self) + 2 * _CHUNK:
            self._sealed, self._sealed_entries, self._tail = [], 0, dict(self)
        while len(self._tail) >= _SEAL_AT:
            oldest = dict(islice(self._tail.items(), _CHUNK))
            self._sealed.append(_pack(oldest))
            self._sealed_entries += len(oldest)
            for path in oldest:
                del self._tail[path]
        return [*self._sealed, _pack(self._tail)] if self._tail else list(self._sealed)


def _pack(entries: dict[str, Position]) -> bytes:
    paths = b"\0".join(os.fsencode(path) for path in entries)
    numbers = np.array(list(entries.values()), dtype="<u8")
    # Byte planes: the high bytes of sizes are alike, so they vanish when the low ones do not stand between them.
    planes = numbers.view(np.uint8).T[:12].tobytes()  # a checksum has four bytes
    return _HEAD.pack(len(entries)) + zlib.compress(planes + paths, 6)


def _unpack(chunk: bytes) -> dict[str, Position]:
    try:
        (count,) = _HEAD.unpack_from(chunk)
        data = zlib.decompress(memoryview(chunk)[_HEAD.size :])
        numbers = np.zeros((count, 16), np.uint8)
        numbers[:, :12] = np.frombuffer(data[: 12 * count], np.uint8).reshape(12, count).T
        paths, positions = data[12 * count :].split(b"\0"), numbers.view("<u8").tolist()
        return {os.fsdecode(path): Position(*one) for path, one in zip(paths, positions, strict=True)}
    except (struct.error, zlib.error, ValueError) as error:
        raise SpoutError(
            f"the file positions in the definition of the batch before cannot be read ({error}); "
            "the log is damaged or was written by another spout. Give the topology a log_dir of its own"
        ) from error


def bytes_before(file: int, end: int) -> bytes:
    """Return the (at most 256) bytes before a position; their checksum shows whether the file is the same."""
    return os.pread(file, min(end, _CHECKED), max(0, end - _CHECKED))


def position_in(file: int, offset: int) -> Position:
    return Position(offset, zlib.crc32(bytes_before(file, offset)))


def check_goes_on(path: str, file: int, size: int, before: Position) -> None:
    """Make sure that an open file is still the one that was read up to `before`; `ReplayMismatchError` if not."""
    if size < before.offset:
        raise ReplayMismatchError(
            f"the file {path} was read up to byte {before.offset} and has {size} bytes now: it was truncated or "
            "replaced. Its lines up to there are counted already; give new content a name of its own"
        )
    if before.offset and position_in(file, before.offset) != before:
        raise ReplayMismatchError(
            f"the file {path} was read up to byte {before.offset}, and the bytes before that are different now: it was "
            "replaced. Give new content a name of its own"
        )


def went_on(path: str, end: int) -> SourceAwayError:
    """Say that a range was defined too early; it is not in the log, and is defined again."""
    return SourceAwayError(
        f"the file {path} goes on after byte {end}, where it seemed to be complete; it is read again"
    )


def check_unchanged(file: int, range_: FileRange, whole: bool) -> None:
    """Make sure that a range still holds what it held, and a `whole` file nothing more; `ReplayMismatchError` if not."""
    path, _, end, crc, is_guess = range_
    size = os.fstat(file).st_size
    if is_guess and whole and size > end:
        raise went_on(path, end)
    found = "it was truncated or replaced" if size < end or (whole and size != end) else None
    if found is None and zlib.crc32(bytes_before(file, end)) != crc:
        found = f"the bytes before {end} are different: it was replaced"
    if found is not None:
        raise ReplayMismatchError(
            f"the batch was {range_} of {path}, which has {size} bytes now, and {found}. "
            "Put the file back as it was and start again"
        )
