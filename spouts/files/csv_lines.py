"""CSV lines as rows, by Arrow's parser."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from trident.errors import BadDataError
from trident.moment_columns import moments_as_text, read_formatted, read_moments

_COLUMN = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?")
_PARSE = re.compile(r"CSV parse error: (?:Row #\d+: )?")


@dataclass(frozen=True)
class CsvFormat:
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
    def has_header(self) -> bool:
        """Whether the first line of a file names the columns."""
        return self.header is True

    def parser(self, path: str, header: Callable[[], bytes]) -> CsvParser:
        """Return the parser of a file; `BadDataError` if its header does not have the fields."""
        if self.header is True:
            return CsvParser(self, self.names_in(path, header()))
        return CsvParser(self, self.schema.names if self.header is False else list(self.header))

    def names_in(self, path: str, header: bytes) -> list[str]:
        """Return the names that a header has."""
        line = header.decode("utf-8", "replace")
        names = next(
            csv.reader(
                [line], delimiter=self.delimiter, quotechar=self.quote, escapechar=self.escape,
                quoting=csv.QUOTE_NONE if self.quote is None else csv.QUOTE_MINIMAL,
            ),
            [],
        )  # fmt: skip
        self.check_names(path, names)
        return names

    def check_names(self, path: str, names: Sequence[str]) -> None:
        """Refuse a header that does not have a field, or has it twice."""
        for name in self.schema.names:
            if names.count(name) > 1:
                raise BadDataError(
                    f"the header of {path} has the column {name!r} {names.count(name)} times: {list(names)}"
                )
            if name not in names and self.missing_columns == "error":
                raise BadDataError(
                    f"the header of {path} has no column {name!r}: {list(names)}. Name the fields as the header does (the "
                    "order does not matter), give header=False if the first line is a row, or missing_columns='null' to "
                    "have null there"
                )

    def parse_options(self, multiline: bool = False) -> pacsv.ParseOptions:
        """Return Arrow's options for how values are written."""
        return pacsv.ParseOptions(
            delimiter=self.delimiter,
            quote_char=self.quote or False,
            escape_char=self.escape or False,
            newlines_in_values=multiline,
        )

    def convert_options(self) -> pacsv.ConvertOptions:
        """Return Arrow's options for what values mean."""
        return pacsv.ConvertOptions(
            column_types=pa.schema([pa.field(one.name, moments_as_text(one.type)) for one in self.schema]),
            include_columns=self.schema.names,
            include_missing_columns=self.missing_columns == "null",
            null_values=list(self.null_values),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            decimal_point=self.decimal_point,
        )

    def typed(self, table: pa.Table | pa.RecordBatch) -> pa.Table:
        """Return what Arrow has read with its moments and dates, which were texts."""

        def column_of(one: pa.Field) -> Any:
            column = table.column(one.name)
            if self.timestamp_formats and pa.types.is_timestamp(one.type):
                return read_formatted(column, self.timestamp_formats, one.type, f"column {one.name!r}")
            return read_moments(column, one.type, f"column {one.name!r}")

        return pa.Table.from_arrays([column_of(one) for one in self.schema], schema=self.schema)


class CsvParser:
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
        read = pacsv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(text) + 1)
        if not text.strip(b"\n"):
            return self._schema.empty_table()
        return self._format.typed(pacsv.read_csv(pa.py_buffer(text), read, self._parse, self._convert))

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

    def describe(self, error: Exception) -> str:
        """Say what is wrong with a line, by the name of the column."""
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
