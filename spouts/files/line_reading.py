"""From byte ranges to blocks of text that end at line ends, checked, unpacked, as UTF-8; and from lines to tables."""

import gzip
import logging
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spouts.files.line_ends import BOM, SHOWN, LineFiles, RowFormat, line_end_after, too_long, unpacked
from spouts.files.ranges import FileEmitter, Piece, check_unchanged, opened
from trident.errors import BadDataError, ReplayMismatchError, SpoutError
from trident.fields import Fields

_log = logging.getLogger(__name__)
_BLOCK = 1_000_000
_TABLE = 1 << 20
_FEW_BYTES = 16 << 10
_NEWLINE = ord("\n")
_warned: set[str] = set()

DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)
"""What reading a compressed file raises if it is not one, or not whole."""


class TextBlock(NamedTuple):
    """A block as it is in the file from `offset` on, and as UTF-8 in which every line ends with a newline."""

    path: str
    offset: int
    block: bytes
    text: bytes
    is_first: bool  # whether it is the beginning of the file


def read_texts(piece: Piece, files: LineFiles) -> Iterator[TextBlock]:
    path = piece.range.path
    with opened(path) as file:
        check_unchanged(file, piece.range, files.is_whole(path))
        blocks = _gz_blocks if path.endswith(".gz") else _plain_blocks
        for at, block in blocks(file, piece, files.max_line_bytes):
            offset = len(BOM) if at == 0 and files.encoding == "utf-8" and block.startswith(BOM) else at
            if len(block) > offset - at:
                yield _text_of(path, offset, block[offset - at :], at == 0, files)


def _plain_blocks(file: int, piece: Piece, longest: int) -> Iterator[tuple[int, bytes]]:
    """Give what begins in a piece, in blocks that end at line ends (but the last), with the offset of each."""
    range_ = piece.range
    at = piece.start if piece.start == range_.start else line_end_after(file, piece.start - 1, piece.end)
    end = range_.end if piece.end == range_.end else line_end_after(file, piece.end - 1, range_.end)
    if at >= piece.end:
        return  # the line that begins before this piece ends after it

    def read(start: int, stop: int) -> bytes:
        data = b""
        while len(data) < stop - start:  # one call gives 2 GiB at most, and some file systems less than is asked for
            more = os.pread(file, stop - start - len(data), start + len(data))
            if not more:
                raise ReplayMismatchError(
                    f"the batch was {range_} of {range_.path}, which ended at byte {start + len(data)} while it was read: it "
                    "was truncated. Put the file back as it was and start again"
                )
            data += more
        return data

    while at < end:
        stop = min(end, at + _BLOCK)
        block = read(at, stop)
        if not block.endswith(b"\n"):  # the rest of the line, as far as it may go on
            block += read(stop, line_end_after(file, stop, min(end, stop + longest + 1)))
        yield at, block
        at += len(block)


def _gz_blocks(file: int, piece: Piece, longest: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    with os.fdopen(file, "rb", buffering=0, closefd=False) as raw, gzip.GzipFile(fileobj=raw) as data:
        try:
            while block := data.read(_BLOCK):
                if not block.endswith(b"\n"):
                    block += data.readline(longest + 1)
                yield at, block
                at += len(block)
        except DAMAGED as error:
            raise SpoutError(
                f"the compressed file {piece.range.path} is damaged or not complete: {error} (at byte {raw.tell()} of "
                f"{piece.range.end}, {data.tell()} bytes unpacked). Put a complete file there and start again"
            ) from error


def _text_of(path: str, offset: int, block: bytes, is_first: bool, files: LineFiles) -> TextBlock:
    if len(block) > files.max_line_bytes:
        ends = line_ends(block)
        lengths = np.diff(ends, prepend=-1)  # with the line end
        if int(lengths.max()) > files.max_line_bytes + 1:
            longest = int(lengths.argmax())
            raise too_long(path, offset + int(ends[longest] - lengths[longest]) + 1, files.max_line_bytes)
    text = _as_utf8(path, offset, block if block.endswith(b"\n") else block + b"\n", files)
    if b"\r" in text:  # much faster to look for than both bytes
        text = text.replace(b"\r\n", b"\n")
    return TextBlock(path, offset, block, text, is_first)


def line_ends(text: bytes) -> npt.NDArray[np.int64]:
    """Return the positions of the line ends; a last line without one ends with the text."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
    return ends if text.endswith(b"\n") else np.append(ends, len(text))


def _as_utf8(path: str, offset: int, text: bytes, files: LineFiles) -> bytes:
    """Return the text as valid UTF-8; `errors` says what becomes of bytes that are no text in the encoding."""
    if files.encoding == "utf-8" and (text.isascii() or _is_utf8(text)):
        return text
    try:
        return text.decode(files.encoding).encode()
    except UnicodeDecodeError as error:
        at = offset + error.start
        if files.errors == "strict":
            raise SpoutError(
                f"byte {at} of {path} is not {files.encoding} text ({error.reason}). Give the right encoding, or "
                'errors="replace" to have U+FFFD in its place'
            ) from error
    # Line by line: the decoder of some encodings takes a line end for a part of a broken character.
    mended = "\n".join([line.decode(files.encoding, "replace") for line in text.split(b"\n")])
    if path not in _warned:
        _warned.add(path)
        _log.warning(
            "%s is not all %s text: the first broken byte seen is byte %d; %d characters around there are U+FFFD now",
            path, files.encoding, at, mended.count("\ufffd"),
        )  # fmt: skip
    return mended.encode()


def _is_utf8(text: bytes) -> bool:
    # Arrow validates without making a copy of the text, which decoding would.
    whole = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, len(text)], np.int32)), pa.py_buffer(text))
    with suppress(pa.ArrowInvalid):
        whole.validate(full=True)
        return True
    return False


class TextEmitter(FileEmitter):
    """Emits lines; see `TextFileSpout`."""

    def __init__(self, files: LineFiles, fields: Fields) -> None:
        super().__init__(fields)
        self._files = files

    def read(self, piece: Piece) -> Iterator[TextBlock]:
        return read_texts(piece, self._files)

    def emit(self, part: Iterable[Piece]) -> Iterator[pa.Table]:
        texts: list[TextBlock] = []
        size = 0
        for text in super().emit(part):
            texts.append(text)
            size += len(text.text)
            if size >= _TABLE:
                yield self._table_of(texts)
                texts, size = [], 0
        if texts:
            yield self._table_of(texts)

    def _table_of(self, texts: list[TextBlock]) -> pa.Table:
        columns = [_lines_as_array(texts[0].text if len(texts) == 1 else b"".join([one.text for one in texts]))]
        if len(self.fields) > 1:
            starts = [np.concatenate(([0], line_ends(one.block)[:-1] + 1)) + one.offset for one in texts]
            paths = pa.array([one.path.encode("utf-8", "replace").decode() for one in texts], pa.string())
            columns.append(paths.take(np.repeat(np.arange(len(texts)), list(map(len, starts)))))
            columns.append(pa.array(np.concatenate(starts)))
        return pa.Table.from_arrays(columns, schema=self._schema)


def _lines_as_array(text: bytes) -> pa.Array:
    """Return lines as an Arrow array, without a Python object for each."""
    if len(text) <= _FEW_BYTES:  # for a few lines such objects cost less than numpy needs to begin
        return pa.array(text[:-1].decode().split("\n"), pa.string())
    ends = line_ends(text)
    count = len(ends)
    # Line ends are dropped from the data, so each line moves to the front by the number of lines before it.
    offsets = np.zeros(count + 1, np.int32)
    np.subtract(ends, np.arange(count), out=offsets[1:], casting="unsafe")
    data = text.replace(b"\n", b"")
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))


class _Bad(NamedTuple):
    """A line that is no row; `number` counts from 0 within the block."""

    number: int
    text: str
    cause: str


class LineEmitter(FileEmitter):
    """Emits lines as rows: the declared fields, then the field for lines that cannot be read, then the path's."""

    def __init__(
        self, files: LineFiles, rows: RowFormat, fields: Fields, bad_lines: str | None, with_file: bool
    ) -> None:
        super().__init__(fields, bad_lines, with_file)
        self._files, self._rows = files, rows

    def read(self, piece: Piece) -> Iterator[pa.Table]:
        rows = None
        for text in read_texts(piece, self._files):
            rows = rows or self._rows.of_file(text.path, partial(self._header, text))
            skipped = text.text.find(b"\n") + 1 if text.is_first and rows.has_header else 0
            body = text.text[skipped:] if skipped else text.text
            for found in _parse(body, rows) if body else ():
                if isinstance(found, pa.Table):
                    columns, count, line = list(found.columns), found.num_rows, None
                elif self._bad_lines is None:
                    raise self._error(text, found, bool(skipped))
                else:
                    columns, count, line = [pa.nulls(1, one.type) for one in self._wanted], 1, found.text
                if self._bad_lines is not None:
                    columns.append(pa.repeat(pa.scalar(line, pa.string()), count))
                yield self._table(columns, text.path, count)

    def _header(self, text: TextBlock) -> bytes:
        if text.is_first:
            return text.text[: text.text.find(b"\n")]
        with opened(text.path) as file:
            return self._files.first_line(file, self._files.max_line_bytes)

    def _error(self, text: TextBlock, bad: _Bad, is_after_header: bool) -> BadDataError:
        number = bad.number + is_after_header
        offset = text.offset + (int(line_ends(text.block)[number - 1]) + 1 if number else 0)
        shown = bad.text if len(bad.text) <= SHOWN else f"{bad.text[:SHOWN]}… ({len(bad.text)} characters)"
        where = f"line {_line_number(text.path, offset)} of {text.path} (at byte {offset})"
        return BadDataError(
            f"{where} is not a row: {bad.cause}. It is: {shown!r}. "
            "Fix it so that the file keeps its length, change the fields, or give bad_lines='bad_line', which puts the text "
            "of such lines into a field of that name"
        )


def _parse(body: bytes, rows: RowFormat, at: int = 0) -> Iterator[pa.Table | _Bad]:
    """Parse lines, by halves down to those that are no rows, in the order of the file; `at` is the number of the first."""
    found, middle = _parse_rows(body, rows), body.rfind(b"\n", 0, len(body) // 2) + 1 or body.find(b"\n") + 1
    # A lone \r ends a row where it is not quoted, so with one the number of rows proves nothing.
    if isinstance(found, pa.Table) and (b"\r" not in body or middle == len(body)):
        if found.num_rows:
            yield found
    elif isinstance(found, str) and middle == len(body):
        yield _Bad(at, body.rstrip(b"\n").decode("utf-8", "replace"), found)
    else:
        yield from _parse(body[:middle], rows, at)
        yield from _parse(body[middle:], rows, at + body.count(b"\n", 0, middle))


def _parse_rows(body: bytes, rows: RowFormat) -> pa.Table | str:
    """Return the rows of lines, or what is wrong with one of them."""
    try:
        table = rows.parse(body)
    except pa.ArrowException as error:
        return rows.describe(error)
    lines = int(np.count_nonzero(np.frombuffer(body, np.uint8) == _NEWLINE))  # faster than bytes.count
    if table.num_rows != lines:
        lines = sum(rows.is_row(line + b"\n") for line in body.split(b"\n")[:-1])
    if table.num_rows < lines:
        return "it is not complete: a value goes on in the next line"
    if table.num_rows > lines:
        return "it is more than one row" + (": \\r alone ends one, too" if b"\r" in body else "")
    if body.endswith(b"\n\n"):  # an open value takes empty lines along, which are no rows
        body = body.rstrip(b"\n") + b"\n"
    is_open = rows.is_open(body[body.rfind(b"\n", 0, -1) + 1 :])
    return "it is not complete: a quoted value does not end in this line" if is_open else table


def _line_number(path: str, offset: int) -> int:
    """Count the lines of a file before a byte, which only an error is worth."""
    count, left = 1, offset
    with unpacked(path) as file:
        while left > 0 and (data := file.read(min(left, _BLOCK))):
            count, left = count + data.count(b"\n"), left - len(data)
    return count
