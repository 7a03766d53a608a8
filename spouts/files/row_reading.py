"""Lines that are rows: tables from blocks of text; a bad line is named, or returned as text."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spouts.files.file_settings import FileEmitter
from spouts.files.line_ends import LineFiles, RowFormat, RowParser
from spouts.files.ranges import Piece, opened
from spouts.files.text_blocks import TextBlock, line_ends, read_texts
from trident.errors import BadDataError
from trident.fields import Fields

_BLOCK = 1 << 20
_NEWLINE = ord("\n")
_SHOWN = 200


class _Bad(NamedTuple):
    """A line that is no row; `number` counts from 0 within the block."""

    number: int
    line: bytes
    cause: str


class LineEmitter(FileEmitter):
    """Emits lines as rows: the declared fields, then the field for lines that cannot be read, then the path's."""

    def __init__(
        self, format_: RowFormat, files: LineFiles, fields: Fields, bad_lines: str | None, with_file: bool
    ) -> None:
        super().__init__(fields, bad_lines, with_file)
        self._format, self._files = format_, files

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
        table = _parsed(body, parser)
        # A lone \r ends a row where it is not quoted, so with one the number of rows proves nothing.
        if isinstance(table, pa.Table) and b"\r" not in body:
            if table.num_rows:
                yield self._finished(table, text.path, None)
            return
        for found in _recovered(_lines(body), 0, parser):
            if isinstance(found, pa.Table):
                yield self._finished(found, text.path, None)
                continue
            if self._bad_lines is None:
                raise self._error(text, found, is_after_header)
            nulls = [pa.nulls(1, one.type) for one in self._wanted]
            yield self._finished(pa.table(nulls, schema=self._wanted), text.path, found.line)

    def _finished(self, table: pa.Table, path: str, bad: bytes | None) -> pa.Table:
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
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]}… ({len(shown)} characters)"
        where = f"line {_line_number(text.path, offset)} of {text.path} (at byte {offset})"
        return BadDataError(
            f"{where} is not a row: {bad.cause}. It is: {shown!r}. "
            "Fix it so that the file keeps its length, change the fields, or give bad_lines='bad_line', which puts the text "
            "of such lines into a field of that name (start once with allow_changed_topology=True)"
        )


def _parsed(body: bytes, parser: RowParser) -> pa.Table | str:
    """Parse lines; return what is wrong if not every line is a row."""
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


def _recovered(lines: list[bytes], at: int, parser: RowParser) -> Iterator[pa.Table | _Bad]:
    """Parse by halves down to the lines that are no rows, in the order of the file."""
    found = _parsed(b"".join(lines), parser)
    if isinstance(found, pa.Table) and (len(lines) == 1 or not any(b"\r" in line for line in lines)):
        if found.num_rows:
            yield found
    elif len(lines) == 1:
        yield _Bad(at, lines[0].rstrip(b"\n"), str(found))
    else:
        half = len(lines) // 2
        yield from _recovered(lines[:half], at, parser)
        yield from _recovered(lines[half:], at + half, parser)


def _lines(body: bytes) -> list[bytes]:
    return [line + b"\n" for line in body.split(b"\n")[:-1]]


def _line_number(path: str, offset: int) -> int:
    """Count the lines of a file before a byte, which only an error is worth."""
    count, left = 1, offset
    with gzip.open(path) if path.endswith(".gz") else Path(path).open("rb") as file:
        while left > 0 and (data := file.read(min(left, _BLOCK))):
            count, left = count + data.count(b"\n"), left - len(data)
    return count
