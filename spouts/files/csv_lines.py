"""CSV lines as rows, by Arrow's parser."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from spouts.files.line_ends import RowFormat
from spouts.files.line_reading import DAMAGED, LineEmitter, unpacked
from spouts.files.parsed_columns import is_extreme, may_be_small, refuse_bent_numbers
from spouts.files.ranges import Piece, check_unchanged, opened
from spouts.files.tails import Check, End
from trident.alignment import moments_as_text, read_decimals, read_formatted, read_moments
from trident.errors import BadDataError
from trident.fields import names_shown

_BLOCK = 1 << 20
_CHECKED = 1 << 17  # bytes: more would not stay in the cache of a core
_BOM = b"\xef\xbb\xbf"
_ROWS = 10_000
_NEWLINE, _RETURN = b"\n\r"
_WIDTH = re.compile(r"Expected (\d+) columns, got (\d+)")
_COLUMN = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?")
_PARSE = re.compile(r"CSV parse error: (?:Row #\d+: )?")
_BEHIND_QUOTE = "a value goes on after the quote that ends it; if quotes are written as \\\", give escape='\\\\'"

Read = Callable[[pacsv.ConvertOptions], pa.Table]


@dataclass(frozen=True)
class CsvFormat(RowFormat):
    """How lines are written; see `CsvFileSpout`. It reads lines where the `columns` are known."""

    schema: pa.Schema
    header: bool | tuple[str, ...]
    delimiter: str
    quote: str | None
    escape: str | None
    null_values: tuple[str, ...]
    missing_columns: str
    timestamp_formats: tuple[str, ...]
    decimal_point: str
    multiline: bool
    columns: tuple[str, ...] = ()
    by_columns: dict[tuple[str, ...], CsvFormat] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without what was made of it: options of Arrow's that were pickled call None at a line that is no row.
        return CsvFormat, tuple(vars(self)[one.name] for one in fields(self)[:-1])

    @property
    def has_header(self) -> bool:  # type: ignore[override]
        return self.header is True

    def of_file(self, path: str, header: Callable[[], bytes]) -> CsvFormat:
        lines = [header().decode("utf-8", "replace"), ""] if self.has_header else []
        columns = self.names(path, lines)
        if columns not in self.by_columns:
            self.by_columns[columns] = replace(self, columns=columns)
        return self.by_columns[columns]

    def names(self, path: str, lines: Iterable[str]) -> tuple[str, ...]:
        """Return the columns of a file, whose `lines` begin with its header; `BadDataError` if they lack a field."""
        if self.header is not True:
            return tuple(self.schema.names) if self.header is False else self.header
        try:
            reader = csv.reader(lines, **self.dialect)
            names = next(reader, [])
            if reader.line_num > 1 and not self.multiline:
                raise csv.Error("a quoted name goes on in the next line")
        except csv.Error as error:
            raise BadDataError(
                f"the header of {path} cannot be read ({str(error).partition(' - ')[0]}). If its lines end with \\r alone, "
                "which is not a line end here, convert it (tr '\\r' '\\n'), or give multiline=True, where it is one"
            ) from error
        names[:1] = [name.removeprefix("\ufeff") for name in names[:1]]
        self.check_names(path, names)
        return tuple(names)

    def check_names(self, path: str, names: Sequence[str]) -> None:
        for name in self.schema.names:
            if names.count(name) > 1:
                raise BadDataError(
                    f"the header of {path} has the column {name!r} {names.count(name)} times: {list(names)}"
                )
            if name not in names and self.missing_columns == "error":
                raise BadDataError(
                    f"the header of {path} has no column {name!r}: {names_shown(names, name)}. Name the fields as the "
                    "header does (the order does not matter), give header=False if the first line is a row, or "
                    "missing_columns='null' to have null there"
                )

    @property
    def dialect(self) -> dict[str, Any]:
        quoting = csv.QUOTE_NONE if self.quote is None else csv.QUOTE_MINIMAL
        return {
            "delimiter": self.delimiter, "quotechar": self.quote, "escapechar": self.escape, "quoting": quoting
        }  # fmt: skip

    def parse(self, text: bytes) -> pa.Table:
        if not text.strip(b"\n"):
            return self.schema.empty_table()
        # An escaped line end would take an empty line along, which is no row: so line by line.
        if self.escape and f"{self.escape}\n\n".encode() in text:
            raise pa.ArrowInvalid("it is not complete: its line end is escaped")
        blocks = (text[at : at + _CHECKED] for at in range(0, len(text), _CHECKED))
        if self.may_go_on_behind_quotes(blocks) and self._behind_quote.match(text):
            raise pa.ArrowInvalid(_BEHIND_QUOTE)
        if text.startswith(_BOM):  # of a value: Arrow drops one at the beginning of whatever it is given
            text = _BOM + text
        read = pacsv.ReadOptions(column_names=self.unique_names, use_threads=False, block_size=len(text) + 1)

        def read_as(convert: pacsv.ConvertOptions) -> pa.Table:
            return pacsv.read_csv(pa.py_buffer(text), read, self.parse_options, convert)

        return self.typed_table(read_as(self.convert), may_bend(text), read_as)

    def is_row(self, line: bytes) -> bool:
        return line != b"\n"

    def is_open(self, line: bytes) -> bool:
        """Whether a quoted value that begins in this line goes on after it: then it swallows a second line."""
        marks = [one.encode() for one in (self.quote, self.escape) if one is not None]
        if not any(mark in line for mark in marks) or (self.escape is None and self._closed_line.fullmatch(line)):
            return False
        try:
            return int(self.parse(line + line).num_rows) != 2
        except pa.ArrowException:
            return True

    def describe(self, error: Exception) -> str:
        if match := _COLUMN.search(str(error)):
            return f"column {self.columns[int(match[1])]!r}: {_COLUMN.sub('', str(error))}"
        return _PARSE.sub("", str(error)).partition("\n")[0]

    def end_of(self, line: bytes) -> End:
        """Say that a line is not whole if it is no row, and may become one: its last value is cut, or values are missing."""
        try:
            rows = int(self.parse(line).num_rows)
            is_cut = rows == 0 or (rows == 1 and self.is_open(line))
        except pa.ArrowException as error:
            if width := _WIDTH.search(str(error)):
                is_cut = int(width[2]) < int(width[1])
            else:
                is_cut = self.describe(error).startswith(tuple(f"column {name!r}: " for name in self.columns[-1:]))
        return End.OPEN if is_cut else End.MAYBE

    def whole_end(self, text: TextIO) -> Check:
        """Find out whether a file ends within quotes, or with too few columns."""
        row: list[str] = []
        width, number = 0 if self.has_header else len(self.names("", ())), 0
        try:
            for number, row in enumerate(csv.reader(text, strict=True, **self.dialect), 1):
                width = width or len(row)
                if number % _ROWS == 0:
                    yield None
        except csv.Error as error:
            yield End.OPEN if "unexpected end of data" in str(error) else End.MAYBE
            return
        text.buffer.seek(-1, os.SEEK_END)
        is_header = self.has_header and number == 1 and text.buffer.read() != b"\n"
        yield End.OPEN if is_header or 0 < len(row) < width else End.MAYBE

    @cached_property
    def convert(self) -> pacsv.ConvertOptions:
        return self._convert_options(())

    @cached_property
    def _closed_line(self) -> re.Pattern[bytes]:
        """Match lines in which quotes are only around values, or doubled within: this is cheaper than a trial."""
        mark, end = re.escape(self.quote or '"'), re.escape(self.delimiter)
        value = f"(?:{mark}[^{mark}]*(?:{mark}{mark}[^{mark}]*)*{mark}|[^{mark}{end}]*)"
        return re.compile(f"{value}(?:{end}{value})*\n".encode())

    @cached_property
    def _behind_quote(self) -> re.Pattern[bytes]:
        """Match a text up to a value that goes on after its closing quote: Arrow, Spark and Python read three values."""
        mark, end = re.escape(self.quote or ""), re.escape(self.delimiter)
        escape = re.escape(self.escape or "")
        escaped = f"{escape}." if escape else "(?!)"
        quoted = f"{mark}[^{mark}{escape}]*+(?:(?:{mark}{mark}|{escaped})[^{mark}{escape}]*+)*+{mark}"
        bare = f"(?!{mark})[^{end}{escape}\n]*+(?:{escaped}[^{end}{escape}\n]*+)*+"
        return re.compile(f"(?:(?:{quoted}\\r?|{bare})[{end}\n])*+{quoted}[^{end}\\r\n]".encode(), re.S)

    def may_go_on_behind_quotes(self, blocks: Iterable[bytes]) -> bool:
        """Whether quotes do not open and close in turns, each beside a delimiter, a line end or another quote."""
        if self.quote is None:
            return False
        mark, end, escape = (mark.encode() for mark in (self.quote, self.delimiter, self.escape or ""))
        seen, before = 0, b"\n"
        for block in chain(blocks, [b"\n"]):
            text = before + block
            for escaped in (escape, mark, end, b"\n") if escape else ():
                text = text.replace(escape + escaped, b"..")
            before = text[-2:]  # what follows the last byte comes with the next block
            if mark not in text:
                continue
            data = np.frombuffer(text, np.uint8)
            at = np.flatnonzero(data[1:-1] == ord(mark))
            opens, closes = data.take(at[seen % 2 :: 2]), data[2:].take(at[(seen + 1) % 2 :: 2])
            is_beside = [(one == ord(mark)) | (one == ord(end)) | (one == _NEWLINE) for one in (opens, closes)]
            if not (is_beside[0].all() and (is_beside[1] | (closes == _RETURN)).all()):
                return True
            seen += len(at)
        return seen % 2 == 1

    @cached_property
    def unique_names(self) -> list[str]:
        if not self.columns:  # Arrow would take the first row that it sees for names
            raise pa.ArrowInvalid("the header of its file is an empty line, so it has no columns")
        # Columns that are no fields may have any names, even equal ones.
        fresh = (f"\0{number}" for number in count())
        return [name if name in self.schema.names else next(fresh) for name in self.columns]

    @cached_property
    def parse_options(self) -> pacsv.ParseOptions:
        marks = {"quote_char": self.quote or False, "escape_char": self.escape or False}
        return pacsv.ParseOptions(delimiter=self.delimiter, newlines_in_values=self.multiline, **marks)

    def _convert_options(self, as_text: Sequence[str]) -> pacsv.ConvertOptions:
        return pacsv.ConvertOptions(
            column_types={
                one.name: pa.string() if one.name in as_text else _as_parsed(one.type) for one in self.schema
            },
            include_columns=self.schema.names,
            include_missing_columns=self.missing_columns == "null",
            null_values=list(self.null_values),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            decimal_point=self.decimal_point,
        )

    def typed_table(self, table: pa.Table, bends: bool, read_again: Read) -> pa.Table:
        """Return what Arrow has read with its decimals, moments and dates, which were texts.

        `bends`: whether there may be numbers that Arrow reads as others; see `may_bend`. `read_again`: reads with other types.
        Raises `pa.ArrowInvalid`: it has read another number; it names the column and the value.
        """
        columns = zip(table.schema.names, table.columns, strict=True)
        if doubted := [name for name, column in columns if _is_doubted(column, bends)]:
            texts = read_again(self._convert_options(doubted))
            for name in doubted:
                refuse_bent_numbers(texts[name], table[name], name)

        def column_of(one: pa.Field) -> Any:
            column = table.column(one.name)
            if pa.types.is_decimal(one.type):
                if self.decimal_point != ".":  # a text with two kinds of points must stay one that is no number
                    column = pc.replace_substring(pc.replace_substring(column, ".", "?"), self.decimal_point, ".")
                return read_decimals(column, one.type, f"column {one.name!r}")
            if self.timestamp_formats and pa.types.is_timestamp(one.type):
                return read_formatted(column, self.timestamp_formats, one.type, f"column {one.name!r}")
            return read_moments(column, one.type, f"column {one.name!r}")

        return pa.Table.from_arrays([column_of(one) for one in self.schema], schema=self.schema)


def _as_parsed(type_: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_decimal(type_) else moments_as_text(type_)


def _is_doubted(column: pa.ChunkedArray, bends: bool) -> bool:
    if not pa.types.is_floating(column.type):
        return bends and pa.types.is_integer(column.type)
    return bool(pc.any(is_extreme(column) if bends else pc.is_inf(column)).as_py())


def may_bend(text: bytes) -> bool:
    """Whether there may be a number in a text that is hexadecimal, or too near to 0 for a float."""
    return b"0x" in text or b"0X" in text or may_be_small(text)


class WholeCsvEmitter(LineEmitter):
    """Reads whole files, whose quoted values may have line ends, as a stream: memory is bounded by the longest row."""

    _rows: CsvFormat

    def read(self, piece: Piece) -> Iterator[pa.Table]:
        path = piece.range.path
        self._check(piece)
        try:
            for table in self._rows_of(path):
                yield self._table(list(table.columns), path, table.num_rows)
        except pa.ArrowException as error:
            raise BadDataError(
                f"the CSV file {path} cannot be read: {error}. Fix it, change the fields, or raise "
                f"max_line_bytes={self._files.max_line_bytes} if a row is longer"
            ) from error
        except DAMAGED as error:
            raise BadDataError(f"the compressed file {path} is damaged or not complete: {error}") from error
        self._check(piece)  # cut meanwhile, it would have looked shorter

    def _check(self, piece: Piece) -> None:
        with opened(piece.range.path) as file:
            check_unchanged(file, piece.range, whole=True)

    def _rows_of(self, path: str) -> Iterator[pa.Table]:
        with unpacked(path) as data, io.TextIOWrapper(data, self._files.of_texts, "replace", newline="") as lines:
            rows = replace(self._rows, columns=self._rows.names(path, lines))
            if rows.has_header and not next(lines, ""):
                return  # Arrow refuses a header without a line end that it is to skip
        longest = min(self._files.max_line_bytes, 1 << 30)
        block = longest if path.endswith(".gz") else min(longest, Path(path).stat().st_size)
        read = pacsv.ReadOptions(
            column_names=rows.unique_names,
            skip_rows_after_names=int(rows.has_header),
            use_threads=False,
            block_size=block + 1,
            encoding=self._files.encoding,
        )

        def batches(convert: pacsv.ConvertOptions) -> Iterator[pa.RecordBatch]:
            with unpacked(path) as data:
                yield from pacsv.open_csv(data, read, rows.parse_options, convert)

        with unpacked(path) as data:
            bends = _may_bend(data)
        self._check_quotes(rows, path)
        for at, batch in enumerate(batches(rows.convert)):

            def again(convert: pacsv.ConvertOptions, at: int = at) -> pa.Table:
                return pa.Table.from_batches(islice(batches(convert), at, at + 1))

            yield rows.typed_table(pa.Table.from_batches([batch]), bends, again)

    def _check_quotes(self, rows: CsvFormat, path: str) -> None:
        with unpacked(path) as data:
            if not rows.may_go_on_behind_quotes(iter(partial(data.read, _CHECKED), b"")):
                return
        with unpacked(path) as data, io.TextIOWrapper(data, self._files.of_texts, "replace", newline="") as lines:
            try:
                deque(csv.reader(lines, strict=True, **rows.dialect), maxlen=0)
            except csv.Error as error:
                if "expected after" in str(error):
                    raise pa.ArrowInvalid(_BEHIND_QUOTE) from error


def _may_bend(data: IO[bytes]) -> bool:
    before = b""
    while block := data.read(_BLOCK):
        if may_bend(before + block):
            return True
        before = block[-32:]  # a number may go on in the next one
    return False
