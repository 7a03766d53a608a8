"""From byte ranges to blocks of text that end at line ends, checked, unpacked, as UTF-8; and from lines to tables.

A bad line is named, or returned as text.
"""

from __future__ import annotations

import gzip
import logging
import os
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spouts.files.file_settings import FileEmitter
from spouts.files.line_ends import SHOWN, LineFiles, RowFormat, RowParser, line_end_after, too_long
from spouts.files.ranges import Piece, check_unchanged, open_error, opened
from trident.errors import BadDataError, ReplayMismatchError, SpoutError
from trident.fields import Fields

_log = logging.getLogger(__name__)
_BLOCK = 1_000_000
_TABLE = 1 << 20
_FEW_BYTES = 16 << 10
_BOM = b"\xef\xbb\xbf"
_NEWLINE = ord("\n")
_warned: set[str] = set()

Block = tuple[int, bytes]


class TextBlock(NamedTuple):
    """A block, as it is in the file from `offset` on, and as UTF-8 in which every line ends with a newline.

    `is_first` says whether it is the beginning of the file.
    """

    path: str
    offset: int
    block: bytes
    text: bytes
    is_first: bool


def read_texts(pieces: Iterable[Piece], files: LineFiles) -> Iterator[TextBlock]:
    for piece in pieces:
        range_ = piece.range
        try:
            with opened(range_.path) as file:
                check_unchanged(file, range_, files.is_whole(range_.path))
                blocks = _gz_blocks if range_.path.endswith(".gz") else _plain_blocks
                for offset, block in blocks(file, piece, files.max_line_bytes):
                    is_first = offset == 0
                    if is_first and files.encoding == "utf-8" and block.startswith(_BOM):
                        offset, block = len(_BOM), block[len(_BOM) :]
                    if block:
                        yield _text_of(range_.path, offset, block, is_first, files)
        except OSError as error:
            doing = f"cannot read the batch defined as bytes {range_.start} to {range_.end}"
            raise open_error(range_.path, error, doing) from error


def _plain_blocks(file: int, piece: Piece, longest: int) -> Iterator[Block]:
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
                    f"the batch was defined as bytes {range_.start} to {range_.end} of {range_.path}, which ended at byte "
                    f"{start + len(data)} while it was read: it was truncated. Put the file back as it was and start again"
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


def _gz_blocks(file: int, piece: Piece, longest: int) -> Iterator[Block]:
    """As `_plain_blocks`, of a compressed file."""
    path, at = piece.range.path, 0
    with os.fdopen(file, "rb", buffering=0, closefd=False) as raw, gzip.GzipFile(fileobj=raw) as unpacked:
        try:
            while block := unpacked.read(_BLOCK):
                if not block.endswith(b"\n"):
                    block += unpacked.readline(longest + 1)
                yield at, block
                at += len(block)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise SpoutError(
                f"the compressed file {path} is damaged or not complete: {error} (at byte {raw.tell()} of "
                f"{piece.range.end}, {unpacked.tell()} bytes unpacked). Put a complete file there and start again"
            ) from error


def _text_of(path: str, offset: int, block: bytes, is_first: bool, files: LineFiles) -> TextBlock:
    if len(block) > files.max_line_bytes:
        ends = line_ends(block)
        lengths = np.diff(ends, prepend=-1)  # with the line end
        if int(lengths.max()) > files.max_line_bytes + 1:
            longest = int(lengths.argmax())
            raise too_long(path, offset + int(ends[longest] - lengths[longest]) + 1, files.max_line_bytes)
    text = block if block.endswith(b"\n") else block + b"\n"
    text = _as_utf8(path, offset, text, files)
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
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


# ---- lines that are texts -----------------------------------------------------------------------------------------------


class TextEmitter(FileEmitter):
    """Emits lines; see `TextFileSpout`."""

    def __init__(self, files: LineFiles, fields: Fields) -> None:
        super().__init__(fields)
        self._files = files

    def emit(self, part: Iterable[Piece]) -> Iterator[pa.Table]:
        texts: list[TextBlock] = []
        size = 0
        for text in read_texts(part, self._files):
            texts.append(text)
            size += len(text.text)
            if size >= _TABLE:
                yield self._table_of(texts)
                texts, size = [], 0
        if texts:
            yield self._table_of(texts)

    def _table_of(self, texts: list[TextBlock]) -> pa.Table:
        text = texts[0].text if len(texts) == 1 else b"".join([one.text for one in texts])
        # For a few lines a Python object each costs less than numpy needs to begin.
        lines = (
            _lines_as_array(text) if len(text) > _FEW_BYTES else pa.array(text[:-1].decode().split("\n"), pa.string())
        )
        columns: list[pa.Array[Any]] = [lines]
        if len(self.fields) > 1:
            columns += _sources(texts)
        return pa.Table.from_arrays(columns, schema=self._schema)


def _lines_as_array(text: bytes) -> pa.StringArray:
    """Return lines as an Arrow array, without a Python object for each."""
    ends = line_ends(text)
    count = len(ends)
    # Line ends are dropped from the data, so each line moves to the front by the number of lines before it.
    offsets = np.zeros(count + 1, np.int32)
    np.subtract(ends, np.arange(count), out=offsets[1:], casting="unsafe")
    data = text.replace(b"\n", b"")
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))


def _sources(texts: list[TextBlock]) -> list[pa.Array[Any]]:
    starts = [np.concatenate(([0], line_ends(one.block)[:-1] + 1)) + one.offset for one in texts]
    paths = pa.array([one.path.encode("utf-8", "replace").decode() for one in texts], pa.string())
    return [
        paths.take(np.repeat(np.arange(len(texts)), [len(one) for one in starts])),
        pa.array(np.concatenate(starts)),
    ]


# ---- lines that are rows ------------------------------------------------------------------------------------------------


class _Bad(NamedTuple):
    """A line that is no row; `number` counts from 0 within the block."""

    number: int
    line: bytes
    cause: str


class LineEmitter(FileEmitter):
    """Emits lines as rows: the declared fields, then the field for lines that cannot be read, then the path's."""

    def __init__(
        self, files: LineFiles, format_: RowFormat, fields: Fields, bad_lines: str | None, with_file: bool
    ) -> None:
        super().__init__(fields, bad_lines, with_file)
        self._files, self._format = files, format_

    def emit(self, part: Iterable[Piece]) -> Iterator[pa.Table]:
        path, parser = None, None
        for text in read_texts(part, self._files):
            if parser is None or text.path != path:
                path, parser = text.path, self._format.parser(text.path, partial(self._header, text))
            skipped = text.text.find(b"\n") + 1 if text.is_first and self._format.has_header else 0
            body = text.text[skipped:] if skipped else text.text
            if body:
                yield from self._tables(text, body, bool(skipped), parser)

    def _tables(self, text: TextBlock, body: bytes, is_after_header: bool, parser: RowParser) -> Iterator[pa.Table]:
        table = _parse_rows(body, parser)
        # A lone \r ends a row where it is not quoted, so with one the number of rows proves nothing.
        if isinstance(table, pa.Table) and b"\r" not in body:
            if table.num_rows:
                yield self._complete_table(table, text.path, None)
            return
        for found in _parse_by_halves(_lines(body), 0, parser):
            if isinstance(found, pa.Table):
                yield self._complete_table(found, text.path, None)
                continue
            if self._bad_lines is None:
                raise self._error(text, found, is_after_header)
            nulls = [pa.nulls(1, one.type) for one in self._wanted]
            yield self._complete_table(pa.table(nulls, schema=self._wanted), text.path, found.line)

    def _complete_table(self, table: pa.Table, path: str, bad: bytes | None) -> pa.Table:
        columns = list(table.columns)
        if self._bad_lines is not None:
            line = None if bad is None else bad.decode("utf-8", "replace")
            columns.append(pa.repeat(pa.scalar(line, pa.string()), table.num_rows))
        return self._table(columns, path, table.num_rows)

    def _header(self, text: TextBlock) -> bytes:
        if text.is_first:
            return text.text[: text.text.find(b"\n")]
        with opened(text.path) as file:
            return self._files.first_line(file, self._files.max_line_bytes)

    def _error(self, text: TextBlock, bad: _Bad, is_after_header: bool) -> BadDataError:
        number = bad.number + is_after_header
        offset = text.offset + (int(line_ends(text.block)[number - 1]) + 1 if number else 0)
        shown = bad.line.decode("utf-8", "replace")
        if len(shown) > SHOWN:
            shown = f"{shown[:SHOWN]}… ({len(shown)} characters)"
        where = f"line {_line_number(text.path, offset)} of {text.path} (at byte {offset})"
        return BadDataError(
            f"{where} is not a row: {bad.cause}. It is: {shown!r}. "
            "Fix it so that the file keeps its length, change the fields, or give bad_lines='bad_line', which puts the text "
            "of such lines into a field of that name"
        )


def _parse_rows(body: bytes, parser: RowParser) -> pa.Table | str:
    try:
        table = parser.parse(body)
    except pa.ArrowException as error:
        return parser.describe(error)
    rows = int(np.count_nonzero(np.frombuffer(body, np.uint8) == _NEWLINE))  # faster than bytes.count
    if table.num_rows != rows:
        rows = sum(map(parser.is_row, _lines(body)))
    if table.num_rows < rows:
        return "it is not complete: a value goes on in the next line"
    if table.num_rows > rows:
        return "it is more than one row" + (": \\r alone ends one, too" if b"\r" in body else "")
    last = body[body.rfind(b"\n", 0, -1) + 1 :]
    if parser.is_open(last):
        return "it is not complete: a quoted value does not end in this line"
    return table


def _parse_by_halves(lines: list[bytes], at: int, parser: RowParser) -> Iterator[pa.Table | _Bad]:
    """Parse by halves down to the lines that are no rows, in the order of the file."""
    found = _parse_rows(b"".join(lines), parser)
    if isinstance(found, pa.Table) and (len(lines) == 1 or not any(b"\r" in line for line in lines)):
        if found.num_rows:
            yield found
    elif len(lines) == 1:
        yield _Bad(at, lines[0].rstrip(b"\n"), str(found))
    else:
        half = len(lines) // 2
        yield from _parse_by_halves(lines[:half], at, parser)
        yield from _parse_by_halves(lines[half:], at + half, parser)


def _lines(body: bytes) -> list[bytes]:
    return [line + b"\n" for line in body.split(b"\n")[:-1]]


def _line_number(path: str, offset: int) -> int:
    """Count the lines of a file before a byte, which only an error is worth."""
    count, left = 1, offset
    with gzip.open(path) if path.endswith(".gz") else Path(path).open("rb") as file:
        while left > 0 and (data := file.read(min(left, _BLOCK))):
            count, left = count + data.count(b"\n"), left - len(data)
    return count
