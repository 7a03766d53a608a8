"""CSV lines as rows, by Arrow's parser."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import IO, Any, TextIO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from spouts.files.line_ends import RowFormat, RowParser
from spouts.files.line_reading import LineEmitter
from spouts.files.parsed_columns import is_extreme, may_be_small, refuse_bent_numbers
from spouts.files.ranges import Piece, check_unchanged, open_error, opened
from spouts.files.tails import Check, End
from trident.alignment import moments_as_text, read_decimals, read_formatted, read_moments
from trident.errors import BadDataError
from trident.fields import names_shown

_BLOCK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_ROWS = 10_000
_WIDTH = re.compile(r"Expected (\d+) columns, got (\d+)")
_COLUMN = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?")
_PARSE = re.compile(r"CSV parse error: (?:Row #\d+: )?")


@dataclass(frozen=True)
class CsvFormat(RowFormat):
    """How lines are written; see `CsvFileSpout`."""

    schema: pa.Schema
    header: bool | tuple[str, ...]
    delimiter: str
    quote: str | None
    escape: str | None
    null_values: tuple[str, ...]
    missing_columns: str
    timestamp_formats: tuple[str, ...]
    decimal_point: str

    @property
    def has_header(self) -> bool:  # type: ignore[override]
        return self.header is True

    def names(self, path: str, lines: Iterable[str]) -> list[str]:
        """Return the names of the columns of a file; `lines` begin with its first one, if that has them.

        Raises `BadDataError`: they do not have the fields.
        """
        if self.header is not True:
            return self.schema.names if self.header is False else list(self.header)
        try:
            names = next(csv.reader(lines, **self._dialect), [])
        except csv.Error as error:
            raise BadDataError(
                f"the header of {path} cannot be read ({str(error).partition(' - ')[0]}). If its lines end with \\r alone, "
                "which is not a line end here, convert it (tr '\\r' '\\n'), or give multiline=True, where it is one"
            ) from error
        names[:1] = [name.removeprefix("\ufeff") for name in names[:1]]
        self.check_names(path, names)
        return names

    def parser(self, path: str, header: Callable[[], bytes]) -> CsvParser:
        return CsvParser(self, self.names(path, [header().decode("utf-8", "replace")] if self.has_header else ()))

    @property
    def _dialect(self) -> dict[str, Any]:
        quoting = csv.QUOTE_NONE if self.quote is None else csv.QUOTE_MINIMAL
        return {
            "delimiter": self.delimiter, "quotechar": self.quote, "escapechar": self.escape, "quoting": quoting
        }  # fmt: skip

    def end_of(self, path: str, line: bytes, header: Callable[[], bytes] | None) -> End:
        """Say what a last line without a line end is: what is no row, but may be the beginning of one, is not whole."""
        if header is None and self.has_header:
            return End.MAYBE if b"\r" in line else End.OPEN  # \r: its reader refuses it
        try:
            parser = self.parser(path, header or bytes)
        except BadDataError:  # for the reader to say
            return End.MAYBE
        return End.OPEN if parser.is_cut(line) else End.MAYBE

    def whole_end(self, path: str, text: TextIO) -> Check:
        """Find out whether a file ends within quotes, or with too few columns."""
        row: list[str] = []
        width, number = 0 if self.header is True else len(self.header or self.schema.names), 0
        try:
            for number, row in enumerate(csv.reader(text, strict=True, **self._dialect), 1):
                width = width or len(row)
                if number % _ROWS == 0:
                    yield None
        except csv.Error as error:
            yield End.OPEN if "unexpected end of data" in str(error) else End.MAYBE
            return
        text.buffer.seek(-1, os.SEEK_END)
        is_header = self.has_header and number == 1 and text.buffer.read() != b"\n"
        yield End.OPEN if is_header or 0 < len(row) < width else End.MAYBE

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

    def parse_options(self, multiline: bool = False) -> pacsv.ParseOptions:
        return pacsv.ParseOptions(
            delimiter=self.delimiter,
            quote_char=self.quote or False,
            escape_char=self.escape or False,
            newlines_in_values=multiline,
        )

    def convert_options(self) -> pacsv.ConvertOptions:
        return pacsv.ConvertOptions(
            column_types=pa.schema([pa.field(one.name, _as_parsed(one.type)) for one in self.schema]),
            include_columns=self.schema.names,
            include_missing_columns=self.missing_columns == "null",
            null_values=list(self.null_values),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            decimal_point=self.decimal_point,
        )

    def check_numbers(
        self, table: pa.Table, bends: bool, read_again: Callable[[pacsv.ConvertOptions], pa.Table]
    ) -> None:
        """Refuse what Arrow reads as another number.

        `bends`: whether there may be such numbers, besides those that it takes for infinite; see `may_bend`.
        `read_again`: reads the same with other types.
        Raises `pa.ArrowInvalid`: it names the column and the value.
        """
        columns = zip(table.schema.names, table.columns, strict=True)
        doubted = [name for name, column in columns if _is_doubted(column, bends)]
        if not doubted:
            return
        convert = self.convert_options()
        convert.column_types = {
            one.name: pa.string() if one.name in doubted else _as_parsed(one.type) for one in self.schema
        }
        texts = read_again(convert)
        for name in doubted:
            refuse_bent_numbers(texts[name], table[name], name)

    def _with_points(self, texts: Any) -> Any:
        """Return texts of numbers with points as decimal points; those with two kinds of points as they are: no numbers."""
        if self.decimal_point == ".":
            return texts
        return pc.replace_substring(pc.replace_substring(texts, ".", "?"), self.decimal_point, ".")

    def typed_table(self, table: pa.Table | pa.RecordBatch) -> pa.Table:
        """Return what Arrow has read with its decimals, moments and dates, which were texts."""

        def column_of(one: pa.Field) -> Any:
            column = table.column(one.name)
            if pa.types.is_decimal(one.type):
                return read_decimals(self._with_points(column), one.type, f"column {one.name!r}")
            if self.timestamp_formats and pa.types.is_timestamp(one.type):
                return read_formatted(column, self.timestamp_formats, one.type, f"column {one.name!r}")
            return read_moments(column, one.type, f"column {one.name!r}")

        return pa.Table.from_arrays([column_of(one) for one in self.schema], schema=self.schema)


def _as_parsed(type_: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow's parser reads a column."""
    return pa.string() if pa.types.is_decimal(type_) else moments_as_text(type_)


def _is_doubted(column: pa.ChunkedArray, bends: bool) -> bool:
    if not pa.types.is_floating(column.type):
        return bends and pa.types.is_integer(column.type)
    return bool(pc.any(is_extreme(column) if bends else pc.is_inf(column)).as_py())


def may_bend(text: bytes) -> bool:
    """Whether there may be a number in a text that is hexadecimal, or too near to 0 for a float."""
    return b"0x" in text or b"0X" in text or may_be_small(text)


class CsvParser(RowParser):
    """Reads the lines of a file whose columns are known."""

    def __init__(self, format_: CsvFormat, names: Sequence[str]) -> None:
        self._format, self._schema = format_, format_.schema
        self._named = list(names)
        # Columns that are no fields may have any names, even equal ones.
        fresh = (f"\0{number}" for number in count())
        self._names = [name if name in self._schema.names else next(fresh) for name in names]
        self._parse, self._convert = format_.parse_options(), format_.convert_options()
        self._closed = _closed_line(format_.delimiter, format_.quote)

    def parse(self, text: bytes) -> pa.Table:
        if not text.strip(b"\n"):
            return self._schema.empty_table()
        if text.startswith(_BOM):  # of a value: Arrow drops one at the beginning of whatever it is given
            text = _BOM + text
        table = self._read(text, self._convert)
        self._format.check_numbers(table, may_bend(text), lambda convert: self._read(text, convert))
        return self._format.typed_table(table)

    def _read(self, text: bytes, convert: pacsv.ConvertOptions) -> pa.Table:
        read = pacsv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(text) + 1)
        return pacsv.read_csv(pa.py_buffer(text), read, self._parse, convert)

    def is_row(self, line: bytes) -> bool:
        return line != b"\n"

    def is_open(self, line: bytes) -> bool:
        """Whether a quoted value that begins in this line goes on after it: then it swallows a second line."""
        marks = [one.encode() for one in (self._format.quote, self._format.escape) if one is not None]
        if not any(mark in line for mark in marks) or (self._format.escape is None and self._closed.fullmatch(line)):
            return False
        try:
            return int(self.parse(line + line).num_rows) != 2
        except pa.ArrowException:
            return True

    def is_cut(self, line: bytes) -> bool:
        """Whether a line is no row, and may become one if more is added: its last value is not whole, or values are missing."""
        try:
            rows = int(self.parse(line).num_rows)
        except pa.ArrowException as error:
            if width := _WIDTH.search(str(error)):
                return int(width[2]) < int(width[1])
            column = _COLUMN.search(str(error))
            is_last = column is not None and int(column[1]) == len(self._named) - 1
            return is_last or str(error).startswith(f"column {self._named[-1]!r}: ")  # of moments
        return rows == 0 or (rows == 1 and self.is_open(line))

    def describe(self, error: Exception) -> str:
        text = str(error)
        match = _COLUMN.search(text)
        if match is None:
            return _PARSE.sub("", text).partition("\n")[0]
        at = int(match[1])
        return f"column {self._named[at]!r}: {_COLUMN.sub('', text)}"


def _closed_line(delimiter: str, quote: str | None) -> re.Pattern[bytes]:
    """Match lines in which quotes are only around values, or doubled within: this is cheaper than a trial."""
    mark, end = re.escape(quote or '"'), re.escape(delimiter)
    value = f"(?:{mark}[^{mark}]*(?:{mark}{mark}[^{mark}]*)*{mark}|[^{mark}{end}]*)"
    return re.compile(f"{value}(?:{end}{value})*\n".encode())


# ---- files whose quoted values may have line ends: each is read whole, by one task -----------------------------------------


class WholeCsvEmitter(LineEmitter):
    """Reads whole files as a stream, so that memory is bounded by the longest row. A bad row is an error."""

    _format: CsvFormat

    def emit(self, part: Iterable[Piece]) -> Iterator[pa.Table]:
        for piece in part:
            path = piece.range.path
            try:
                with opened(path) as file:
                    check_unchanged(file, piece.range, whole=True)
                    for batch in self._batches(path, file):
                        yield self._table(list(batch.columns), path, len(batch))
                    check_unchanged(file, piece.range, whole=True)  # cut meanwhile, it would have looked shorter
            except OSError as error:
                raise open_error(path, error, "cannot read the batch defined as a whole file") from error

    def _batches(self, path: str, file: int) -> Iterator[pa.RecordBatch]:
        with _stream(path, file) as first:
            names, has_rows = self._names(path, first)
        if not has_rows:  # Arrow refuses a header without a line end that it is to skip
            return
        longest = min(self._files.max_line_bytes, 1 << 30)
        size = longest if path.endswith(".gz") else min(longest, os.fstat(file).st_size)
        with _stream(path, file) as data:
            read = pacsv.ReadOptions(
                column_names=names,
                skip_rows_after_names=int(self._format.has_header),
                use_threads=False,
                block_size=size + 1,
                encoding=self._files.encoding,
            )
            try:
                with opened(path) as other, _stream(path, other) as text:  # streams of one opened file share its place
                    bends = _may_bend(text)
                for at, batch in enumerate(self._open(data, read, self._format.convert_options())):

                    def again(convert: pacsv.ConvertOptions, at: int = at) -> pa.Table:
                        with opened(path) as other, _stream(path, other) as text:
                            return pa.Table.from_batches([next(islice(self._open(text, read, convert), at, None))])

                    self._format.check_numbers(pa.Table.from_batches([batch]), bends, again)
                    yield self._format.typed_table(batch)
            except pa.ArrowException as error:
                raise BadDataError(
                    f"the CSV file {path} cannot be read: {error}. Fix it, change the fields, or raise "
                    f"max_line_bytes={longest} if a row is longer"
                ) from error
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise BadDataError(f"the compressed file {path} is damaged or not complete: {error}") from error

    def _open(
        self, data: IO[bytes], read: pacsv.ReadOptions, convert: pacsv.ConvertOptions
    ) -> Iterator[pa.RecordBatch]:
        return iter(pacsv.open_csv(data, read, self._format.parse_options(True), convert))

    def _names(self, path: str, data: IO[bytes]) -> tuple[list[str], bool]:
        """Return the names of the columns, and whether anything is behind a header."""
        with io.TextIOWrapper(data, self._files.encoding, "replace", newline="") as lines:
            names = self._format.names(path, lines)
            return names, not self._format.has_header or bool(next(lines, ""))


def _may_bend(data: IO[bytes]) -> bool:
    before = b""
    while block := data.read(_BLOCK):
        if may_bend(before + block):
            return True
        before = block[-32:]  # a number may go on in the next one
    return False


@contextmanager
def _stream(path: str, file: int) -> Iterator[IO[bytes]]:
    copy = os.dup(file)
    os.lseek(copy, 0, os.SEEK_SET)
    with os.fdopen(copy, "rb") as raw:
        if path.endswith(".gz"):
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield cast("IO[bytes]", unpacked)
        else:
            yield raw
