"""Files of lines, and what a batch takes of one: a byte range that ends at a line end and fits the batch."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Annotated, cast

import pyarrow as pa

from spouts.files.file_coordinator import FileCut, FileFormat, Look, Rest
from spouts.files.ranges import FileRange, Position, bytes_before, check_goes_on, position_in
from spouts.files.tails import STEP, Check, End, gz_end
from trident.errors import BadDataError, ReplayMismatchError, SpoutError
from trident.setting_types import NumberBounds

_WINDOW = 256 << 10
BOM = b"\xef\xbb\xbf"
SHOWN = 200
LineLimit = Annotated[int, NumberBounds(int, "a whole number", 1, 512 << 20)]


class RowFormat(ABC):
    """A format whose rows are lines."""

    has_header = False  # whether the first line of a file is no row

    def of_file(self, path: str, header: Callable[[], bytes]) -> RowFormat:
        """Return the format of one file, which alone can read lines; `header` reads the first line of the file."""
        return self

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

    @abstractmethod
    def end_of(self, line: bytes) -> End:
        """Say what a last line without a line end is, which it has here."""

    def whole_end(self, blocks: Iterable[bytes], longest: int) -> Check:
        """Find out what the end of a file is whose rows may have several lines, from its text in blocks of a step each."""
        yield End.MAYBE


class LineFiles(FileFormat):
    """Files of lines: for the coordinator, whose ranges end at line ends; and how their bytes become text.

    `whole`: whether each file is read whole, as `.gz` files always are: one range, and it must not grow.
    `rows`: what lines are; None: any text.
    """

    def __init__(
        self, encoding: str, errors: str, max_line_bytes: int, whole: bool = False, rows: RowFormat | None = None
    ) -> None:
        self.encoding, self.errors, self.max_line_bytes = _checked_encoding(encoding), errors, max_line_bytes
        self.whole, self.rows = whole, rows

    def is_whole(self, path: str) -> bool:
        return self.whole or path.endswith(".gz")

    def position_at(self, path: str, file: int, offset: int) -> Position:
        return position_in(file, offset)

    def goes_on(self, path: str, file: int, end: int) -> bool:
        return os.fstat(file).st_size > end and (self.is_whole(path) or _after_completion(file, end) == end)

    def first_line(self, file: int, stop: int) -> bytes:
        """Return the first line of an open file, up to `stop`, as UTF-8 without its end."""
        first = os.pread(file, line_end_after(file, 0, stop), 0).decode(self.encoding, "replace")
        return first.removeprefix("\ufeff").rstrip("\r\n").encode()

    def find(self, look: Look) -> FileCut:
        file, start = look.file, look.before.offset
        check_goes_on(look.path, file, look.size, look.before)
        if self.is_whole(look.path):
            return self._find_whole(look)
        if start and look.size > start:
            start = _after_completion(file, start)
            if _is_within_line(file, start):
                if os.pread(file, 2, start) != b"\r":
                    raise self._goes_on(look, start)
                look.tail.hold(start)  # the other half of the line end is due
                return FileCut(None, Rest.HELD)
        if start >= look.size:
            return _cut(look, start, start, Rest.NOTHING)
        if start + look.room < look.size:
            return self._find_part(look, start)
        if (last := bytes_before(file, look.size)).endswith(b"\n"):
            return FileCut(FileRange(look.path, start, look.size, zlib.crc32(last)), Rest.NOTHING)
        return self._find_tail(look, start, _line_end_before(file, start, look.size))

    def _find_part(self, look: Look, start: int) -> FileCut:
        end = _line_end_before(look.file, start, start + look.room)
        if end == start:
            if not look.alone:
                return FileCut(None, Rest.MORE)
            stop = min(look.size, start + self.max_line_bytes + 1)  # 1: the line end
            end = line_end_after(look.file, start, stop)
            if end == stop and _is_within_line(look.file, end):
                if end < look.size:
                    raise too_long(look.path, start, self.max_line_bytes)
                return self._find_tail(look, start, start)
        return _cut(look, start, end, Rest.MORE if end < look.size else Rest.NOTHING)

    def _find_tail(self, look: Look, start: int, end: int) -> FileCut:
        """Find what to take up to `end`, behind which there is no line end, or with what is there."""
        if look.size - end > self.max_line_bytes:
            raise too_long(look.path, end, self.max_line_bytes)
        is_read, is_guess = look.tail.may_be_read(end, lambda: self._end_of(look, end))
        if not is_read:
            return _cut(look, start, end, Rest.HELD)
        return _cut(look, start, look.size, Rest.NOTHING, is_guess)

    def _end_of(self, look: Look, start: int) -> End:
        line = os.pread(look.file, look.size - start, start)
        decoder = codecs.getincrementaldecoder(self.encoding)("replace")
        text = decoder.decode(line)
        if start == 0 and self.encoding == "utf-8":
            text = text.removeprefix("\ufeff")
        if decoder.getstate()[0] or not text:
            return End.OPEN
        if self.rows is None:
            return End.MAYBE
        line = text.removesuffix("\r").encode() + b"\n"
        if start == 0 and self.rows.has_header:
            return End.MAYBE if b"\r" in line else End.OPEN  # \r: its reader refuses it
        try:
            return self.rows.of_file(look.path, partial(self.first_line, look.file, start)).end_of(line)
        except BadDataError:  # of the header, for the reader to say
            return End.MAYBE

    def _find_whole(self, look: Look) -> FileCut:
        path, start, size = look.path, look.before.offset, look.size
        if start == size:
            return FileCut(None, Rest.NOTHING)
        if start:
            if not path.endswith(".gz") and _is_within_line(look.file, start):
                raise self._goes_on(look, start)
            raise ReplayMismatchError(
                f"the file {path} had {start} bytes when it was read and has {size} now; "
                "such files are read once, whole, and do not grow. Give what is new a name of its own"
            )
        if not look.tail.may_be_read_whole(lambda: self._check_whole(path)):
            return FileCut(None, Rest.HELD)
        if size > look.room and not look.alone:
            return FileCut(None, Rest.MORE)
        return _cut(look, 0, size, Rest.NOTHING, is_guess=look.tail.rule.follows)

    def _check_whole(self, path: str) -> Check:
        if path.endswith(".gz"):
            yield from gz_end(path)
        elif self.rows is not None:
            yield from self.rows.whole_end(utf8_blocks(path, self, STEP, "replace"), self.max_line_bytes)

    def _goes_on(self, look: Look, start: int) -> BadDataError:
        begin = _line_end_before(look.file, max(0, start - self.max_line_bytes - 1), start)
        first = os.pread(look.file, start - begin, begin)[-SHOWN:]
        rest = os.pread(look.file, SHOWN, start).partition(b"\n")[0]
        first_shown, rest_shown = (repr(text.decode("utf-8", "replace")) for text in (first, rest))
        way = (
            f"put what follows byte {start} into a file of its own (with the header, if the files have one)"
            if self.whole
            else f"insert a line end at byte {start}"
        )
        return BadDataError(
            f"the file {look.path} goes on in the middle of a line that was given already: {first_shown} (bytes {begin} to "
            f"{start}) had no line end, and the file did not change for a while; now {rest_shown} follows. If the first part "
            f"was a whole line, {way}, and start again. If not, a half of a line is in the states: give tail='hold', so that "
            "no line is read without its end, and start once with a new log_dir and state_recovery='discard_totals', which "
            "counts again all that the sources have"
        )


def unpacked(path: str) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.endswith(".gz") else Path(path).open("rb")


def utf8_blocks(path: str, files: LineFiles, size: int, errors: str = "strict") -> Iterator[bytes]:
    """Give the text of a whole file as UTF-8, without a mark, in blocks of about a size."""
    with unpacked(path) as data:
        if files.encoding == "utf-8":
            yield data.read(size).removeprefix(BOM)
            yield from iter(partial(data.read, size), b"")
        else:
            text = io.TextIOWrapper(data, files.encoding, errors, newline="")
            yield from map(str.encode, iter(partial(text.read, size), ""))


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


def _cut(look: Look, start: int, end: int, rest: Rest, is_guess: bool = False) -> FileCut:
    return FileCut(FileRange(look.path, start, end, position_in(look.file, end).crc, is_guess), rest)


def _is_within_line(file: int, start: int) -> bool:
    """Whether no line end is before a position."""
    return os.pread(file, 1, start - 1) != b"\n"


def _after_completion(file: int, start: int) -> int:
    """Return where what is new begins; the end of a line that was taken without it is no line of its own."""
    following = os.pread(file, 2, start)
    if _is_within_line(file, start) and (following[:1] == b"\n" or following == b"\r\n"):
        return start + (1 if following[:1] == b"\n" else 2)
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
