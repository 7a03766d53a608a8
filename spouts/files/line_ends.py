"""Files of lines, and what a batch takes of one: a byte range that ends at a line end and fits the batch."""

from __future__ import annotations

import codecs
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, TextIO

import pyarrow as pa

from spouts.files.file_coordinator import FileCut, FileFormat, Rest
from spouts.files.ranges import FileRange, Position, bytes_before, check_goes_on, opened, position_in
from spouts.files.tails import Check, End, Tail, gz_end
from trident.errors import BadDataError, ReplayMismatchError, SpoutError
from trident.setting_types import NumberBounds

_WINDOW = 256 << 10
SHOWN = 200
LineLimit = Annotated[int, NumberBounds(int, "a whole number", 1, 512 << 20)]


class RowParser(ABC):
    """Reads the lines of one file, which are rows."""

    @abstractmethod
    def parse(self, text: bytes) -> pa.Table:
        """Make a table of lines, each with its line end; `pa.ArrowException` if one of them is no row."""

    @abstractmethod
    def is_row(self, line: bytes) -> bool:
        """Whether a line stands for a row; an empty one does not."""

    def is_open(self, line: bytes) -> bool:
        """Whether a row that begins in this line goes on after it. By default that is no row, or fewer rows than lines."""
        return False

    @abstractmethod
    def describe(self, error: Exception) -> str:
        """Say what is wrong with a line, by the names of the fields."""


class RowFormat(ABC):
    """A format whose rows are lines."""

    has_header = False
    """Whether the first line of a file is no row."""

    @abstractmethod
    def parser(self, path: str, header: Callable[[], bytes]) -> RowParser:
        """Return the parser of a file. `header` reads its first line."""

    @abstractmethod
    def end_of(self, path: str, line: bytes, header: Callable[[], bytes] | None) -> End:
        """Say what a last line without a line end is; `header` reads the first line, None: it is the first one itself."""

    def whole_end(self, path: str, text: TextIO) -> Check:
        """Find out what the end of a file is whose rows may have several lines."""
        yield End.MAYBE


class LineFiles(FileFormat):
    """Files of lines: for the coordinator, whose ranges end at line ends where files may grow; and how their bytes become text.

    `encoding`, `errors`: see `TextFileSpout`.
    `max_line_bytes`: the greatest length of a line without its end.
    `whole`: whether each file is read whole, as `.gz` files always are: one range, and it must not grow.
    `rows`: what lines are; None: any text.

    Raises `ValueError`: an option is wrong.
    """

    def __init__(
        self, encoding: str, errors: str, max_line_bytes: int, whole: bool = False, rows: RowFormat | None = None
    ) -> None:
        self.encoding, self.errors, self.max_line_bytes = _checked_encoding(encoding), errors, max_line_bytes
        self.whole, self.rows = whole, rows

    def is_whole(self, path: str) -> bool:
        return self.whole or path.endswith(".gz")

    def size(self, path: str, start: int, end: int) -> int | None:
        """Say how many bytes a range has; None if they are compressed, because what they unpack to is then unknown."""
        return None if path.endswith(".gz") else end - start

    def position_at(self, path: str, offset: int) -> Position:
        with opened(path) as file:
            return position_in(file, offset)

    def goes_on(self, path: str, end: int) -> bool:
        with opened(path) as file:
            return os.fstat(file).st_size > end and (self.is_whole(path) or _after_completion(file, end) == end)

    def find(self, path: str, before: Position | None, room: int, alone: bool, tail: Tail) -> FileCut:
        with opened(path) as file:
            status = os.fstat(file)
            tail.sees(status)
            check_goes_on(path, file, status.st_size, before)
            start, size = 0 if before is None else before.offset, status.st_size
            if self.is_whole(path):
                return self._find_whole(path, file, size, start, room, alone, tail)
            if start and size > start:
                start = _after_completion(file, start)
                if _is_within_line(file, start):
                    if os.pread(file, 2, start) != b"\r":
                        raise self._goes_on(path, file, start)
                    tail.hold(start)  # the other half of the line end is due
                    return FileCut(None, Rest.HELD, None)
            if start >= size:
                return FileCut(None, Rest.NOTHING, position_in(file, start) if start else None)
            if start + room < size:
                return self._find_part(path, file, start, size, room, alone, tail)
            before_end = bytes_before(file, size)
            if before_end.endswith(b"\n"):
                position = Position(size, zlib.crc32(before_end))
                return FileCut(FileRange(path, start, size, position.crc), Rest.NOTHING, position)
            return self._find_tail(path, file, start, _line_end_before(file, start, size), size, tail)

    def _find_part(self, path: str, file: int, start: int, size: int, room: int, alone: bool, tail: Tail) -> FileCut:
        end = _line_end_before(file, start, start + room)
        if end == start:
            if not alone:
                return FileCut(None, Rest.NO_ROOM, None)
            stop = min(size, start + self.max_line_bytes + 1)  # 1: the line end
            end = line_end_after(file, start, stop)
            if end == stop and os.pread(file, 1, end - 1) != b"\n":
                if end < size:
                    raise too_long(path, start, self.max_line_bytes)
                return self._find_tail(path, file, start, start, size, tail)
        return _file_cut(path, file, start, end, Rest.MORE if end < size else Rest.NOTHING)

    def _find_tail(self, path: str, file: int, start: int, end: int, size: int, tail: Tail) -> FileCut:
        """Find what to take up to `end`, behind which there is no line end, or with what is there."""
        if size - end > self.max_line_bytes:
            raise too_long(path, end, self.max_line_bytes)
        is_read, is_guess = tail.may_be_read(end, lambda: self._end_of(path, file, end, size))
        if not is_read:
            return _file_cut(path, file, start, end, Rest.HELD)
        return _file_cut(path, file, start, size, Rest.NOTHING)._replace(is_guess=is_guess)

    def _end_of(self, path: str, file: int, start: int, size: int) -> End:
        line = os.pread(file, size - start, start)
        decoder = codecs.getincrementaldecoder(self.encoding)("replace")
        text = decoder.decode(line)
        if start == 0 and self.encoding == "utf-8":
            text = text.removeprefix("\ufeff")
        if decoder.getstate()[0] or not text:
            return End.OPEN
        if self.rows is None:
            return End.MAYBE

        header = partial(self.first_line, file, start) if start else None
        return self.rows.end_of(path, text.removesuffix("\r").encode() + b"\n", header)

    def first_line(self, file: int, stop: int) -> bytes:
        """Return the first line of an open file, up to `stop`, as UTF-8 without its end."""
        first = os.pread(file, line_end_after(file, 0, stop), 0).decode(self.encoding, "replace")
        return first.removeprefix("\ufeff").rstrip("\r\n").encode()

    def _find_whole(self, path: str, file: int, size: int, start: int, room: int, alone: bool, tail: Tail) -> FileCut:
        if start == size:
            return FileCut(None, Rest.NOTHING, None)
        if start:
            if not path.endswith(".gz") and _is_within_line(file, start):
                raise self._goes_on(path, file, start)
            raise ReplayMismatchError(
                f"the file {path} had {start} bytes when it was read and has {size} now; "
                "such files are read once, whole, and do not grow. Give what is new a name of its own"
            )
        if not tail.may_be_read_whole(lambda: self._check_whole(path)):
            return FileCut(None, Rest.HELD, None)
        if size > room and not alone:
            return FileCut(None, Rest.NO_ROOM, None)
        return _file_cut(path, file, 0, size, Rest.NOTHING)._replace(is_guess=tail.may_grow)

    def _check_whole(self, path: str) -> Check:
        if path.endswith(".gz"):
            yield from gz_end(path)
        elif self.rows is not None:
            with Path(path).open(encoding=self.encoding, errors="replace", newline="") as text:
                yield from self.rows.whole_end(path, text)

    def _goes_on(self, path: str, file: int, start: int) -> BadDataError:
        begin = _line_end_before(file, max(0, start - self.max_line_bytes - 1), start)
        first = os.pread(file, start - begin, begin)[-SHOWN:]
        rest = os.pread(file, SHOWN, start).partition(b"\n")[0]
        way = (
            f"put what follows byte {start} into a file of its own (with the header, if the files have one)"
            if self.whole
            else f"insert a line end at byte {start}"
        )
        return BadDataError(
            f"the file {path} goes on in the middle of a line that was given already: {_quote(first)} (bytes {begin} to "
            f"{start}) had no line end, and the file did not change for a while; now {_quote(rest)} follows. If the first part "
            f"was a whole line, {way}, and start again. If not, a half of a line is in the states: give tail='hold', so that "
            "no line is read without its end, and start once with a new log_dir and state_recovery='discard_totals', which "
            "counts again all that the sources have"
        )


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
    return SpoutError(
        f"the line at byte {offset} of {path} is longer than max_line_bytes={limit}. "
        "Raise max_line_bytes, or leave the file out if it is not a text file"
    )


def _file_cut(path: str, file: int, start: int, end: int, rest: Rest) -> FileCut:
    if start == end:
        return FileCut(None, rest, None)
    position = position_in(file, end)
    return FileCut(FileRange(path, start, end, position.crc), rest, position)


def _is_within_line(file: int, start: int) -> bool:
    """Whether no line end is before a position."""
    return os.pread(file, 1, start - 1) != b"\n"


def _after_completion(file: int, start: int) -> int:
    """Return where what is new begins; the end of a line that was taken without it is no line of its own."""
    following = os.pread(file, 2, start)
    if _is_within_line(file, start) and (following[:1] == b"\n" or following == b"\r\n"):
        return start + (1 if following[:1] == b"\n" else 2)
    return start


def _quote(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))


def _line_end_before(file: int, start: int, stop: int) -> int:
    """Return the position after the last line end within `start` to `stop`; `start` if there is none."""
    while stop > start:
        low = max(start, stop - _WINDOW)
        at = os.pread(file, stop - low, low).rfind(b"\n")
        if at >= 0:
            return low + at + 1
        stop = low
    return start


def _checked_encoding(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        raise ValueError(f"encoding {encoding!r} is not known") from None
    ascii_ = bytes(range(128))
    try:
        is_superset = ascii_.decode(name) == ascii_.decode("ascii")
    except (UnicodeDecodeError, LookupError):  # LookupError: an encoding from bytes to bytes
        is_superset = False
    if not is_superset:
        raise ValueError(
            f"encoding {encoding!r} does not write ASCII as ASCII, so line ends cannot be found in its bytes; "
            "convert the files to UTF-8 first"
        )
    return "utf-8" if name == "utf-8-sig" else name
