"""CSV lines as rows, by Arrow's parser."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import chain, count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from spouts.files.line_ends import BOM, RowFormat, utf8_blocks
from spouts.files.line_reading import DAMAGED, LineEmitter
from spouts.files.parsed_columns import CACHED, bad_ones, is_zero, may_be_hexadecimal, may_be_small, refuse_bent_numbers
from spouts.files.ranges import Piece, check_unchanged, opened
from spouts.files.tails import STEP, Check, End
from trident.alignment import moments_as_text, read_decimals, read_formatted, read_moments
from trident.errors import BadDataError
from trident.fields import names_shown

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
        columns = self._names(path, header() if self.has_header else b"")
        if columns not in self.by_columns:
            self.by_columns[columns] = replace(self, columns=columns)
        return self.by_columns[columns]

    def _names(self, path: str, header: bytes) -> tuple[str, ...]:
        """Return the columns of a file by its header; `BadDataError` if they lack a field."""
        if self.header is not True:
            return tuple(self.schema.names) if self.header is False else self.header
        try:
            marks: Any = {"delimiter": self.delimiter, "quotechar": self.quote, "escapechar": self.escape}
            marks["quoting"] = csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE
            reader = csv.reader([header.decode("utf-8", "replace"), ""], **marks)
            names = next(reader)
            if reader.line_num > 1:
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

    def parse(self, text: bytes) -> pa.Table:
        # An escaped line end would take an empty line along, which is no row: so line by line.
        if self.escape and f"{self.escape}\n\n".encode() in text:
            raise pa.ArrowInvalid("it is not complete: its line end is escaped")
        self.grammar.end_of_rows(text)  # which checks it
        return self.read(text)

    def read(self, text: bytes) -> pa.Table:
        """Make a table of whole rows whose quotes are checked; `pa.ArrowException` if one is none."""
        if not text.strip(b"\r\n"):
            return self.schema.empty_table()
        if text.startswith(BOM):  # of a value: Arrow drops one at the beginning of whatever it is given
            text = BOM + text
        read = pacsv.ReadOptions(column_names=self.unique_names, use_threads=False, block_size=len(text) + 1)

        def read_as(convert: pacsv.ConvertOptions) -> pa.Table:
            return pacsv.read_csv(pa.py_buffer(text), read, self.parse_options, convert)

        return self._typed_table(read_as(self.convert), text, read_as)

    def is_row(self, line: bytes) -> bool:
        return line != b"\n"

    def is_open(self, line: bytes) -> bool:
        """Whether a quoted value that begins in this line goes on after it: then it swallows a second line."""
        return not self.grammar.rows.fullmatch(line)

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

    def whole_end(self, blocks: Iterable[bytes], longest: int) -> Check:
        """Find out whether a file ends within quotes, or with too few columns."""
        width, rows, rest, pieces = 0 if self.has_header else len(self._names("", b"")), b"", b"", 0
        try:
            for found, rest in self.grammar.cut(blocks, longest):
                width, rows, pieces = width or self.grammar.width(found), found or rows, pieces + bool(found)
                if len(found) + len(rest) >= STEP:
                    yield None
        except pa.ArrowInvalid:
            yield End.MAYBE
            return
        last = rows[self.grammar.end_of_rows(rows.removesuffix(b"\n").removesuffix(b"\r") + self.delimiter.encode()) :]
        is_header = self.has_header and pieces == 1 and last == rows and not rows.endswith(b"\n")
        yield End.OPEN if rest or is_header or 0 < self.grammar.width(last) < width else End.MAYBE

    @cached_property
    def convert(self) -> pacsv.ConvertOptions:
        return self._convert_options(())

    @cached_property
    def grammar(self) -> CsvGrammar:
        return CsvGrammar(self.delimiter, self.quote, self.escape)

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
                one.name: pa.string()
                if one.name in as_text or pa.types.is_decimal(one.type)
                else moments_as_text(one.type)
                for one in self.schema
            },
            include_columns=self.schema.names,
            include_missing_columns=self.missing_columns == "null",
            null_values=list(self.null_values),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            decimal_point=self.decimal_point,
        )

    def _typed_table(self, table: pa.Table, text: bytes, read_again: Read) -> pa.Table:
        """Return what Arrow has read of a text with its decimals, moments and dates, which were texts.

        `read_again`: reads with other types.
        Raises `pa.ArrowInvalid`: it has read another number; it names the column and the value.
        """
        columns = zip(table.schema.names, table.columns, strict=True)
        if doubted := [name for name, column in columns if _is_doubted(column, text)]:
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


def _is_doubted(column: pa.ChunkedArray, text: bytes) -> bool:
    """Whether Arrow may have read a number of a column as another one: a hexadecimal one, or one that is too near to 0."""
    if not pa.types.is_floating(column.type):
        return pa.types.is_integer(column.type) and may_be_hexadecimal(text)
    is_infinite, is_0 = (pc.any(test(column)).as_py() for test in (pc.is_inf, is_zero))
    return bool(is_infinite or (is_0 and may_be_small(text)))


class CsvGrammar:
    """Where rows and values end. A quoted value ends at a quote that is neither doubled nor escaped, and may not go on then."""

    def __init__(self, delimiter: str, quote: str | None, escape: str | None) -> None:
        self._delimiter, self._quote, self._escape = (one.encode() for one in (delimiter, quote or "", escape or ""))
        end, mark, escape = (re.escape(one or "") for one in (delimiter, quote, escape))
        escaped = f"{escape}." if escape else "(?!)"
        quoted = f"{mark}[^{mark}{escape}]*+(?:(?:{mark}{mark}|{escaped})[^{mark}{escape}]*+)*+{mark}"
        bare = f"[^{end}{escape}\r\n]*+(?:{escaped}[^{end}{escape}\r\n]*+)*+"
        value = f"(?:{quoted}|(?!{mark}){bare})" if mark else bare
        row = f"(?:{value}{end})*+{value}(?:\r?\n|\r(?=.))"  # behind the last \r a \n may follow
        plain = f"(?>[^{mark}{escape}]*\n)|" if mark or escape else ""  # lines without marks, which takes less time
        # What is read here as three values by Arrow, Spark and Python: a row up to a value that goes on.
        behind_quote = f"(?:{value}{end})*+{quoted}[^{end}\r\n]" if mark else "(?!)"
        self._value, self.row, self.rows, self._behind_quote = (
            re.compile(one.encode(), re.S) for one in (f"{value}{end}", row, f"(?:{plain}{row})*+", behind_quote)
        )

    def width(self, text: bytes) -> int:
        """Return how many values the first row of a text has; 0 if that is an empty line."""
        count = at = 0
        while match := self._value.match(text, at):
            count, at = count + 1, match.end()
        return count + 1 if text[:1] not in (b"", b"\r", b"\n") else 0

    def cut(self, blocks: Iterable[bytes], longest: int) -> Iterator[tuple[bytes, bytes]]:
        """Give the rows of a text piece by piece, each time with what follows them that is no whole row yet.

        Raises `pa.ArrowInvalid`: a value goes on after its quote, or a row is longer than `longest`.
        """
        rest, held = b"", list[bytes]()
        for block in chain(blocks, [b""]):
            held.append(block)
            if block and sum(map(len, held)) < len(rest):
                continue  # a row is read again only when twice as much of it is there
            text, held = b"".join((rest, *held)), []
            end = self.end_of_rows(text)
            rest = text[end:]
            if len(rest) > longest:
                raise pa.ArrowInvalid(f"a row is longer than {longest} bytes")
            # The last row may have no line end; if it has one, that is within quotes, or escaped, or a \r.
            if not block and self.rows.fullmatch(rest[:-1] + rest[-1:].strip(b"\r\n") + b"\n"):
                rest = b""
            yield text.removesuffix(rest), rest

    def end_of_rows(self, text: bytes) -> int:
        """Return where the last whole row of a text ends; `pa.ArrowInvalid` if a value goes on after its quote."""
        end, mark, plain = len(text), self._quote, text
        for escaped in (self._escape, mark or self._delimiter, self._delimiter, b"\n", b"\r") if self._escape else ():
            plain = plain.replace(self._escape + escaped, b"..")
        if (is_open := self._is_open(plain)) is None:
            end = self.rows.match(text).end()  # type: ignore[union-attr]  # of no rows, too
            if self._behind_quote.match(text, end):
                raise pa.ArrowInvalid(_BEHIND_QUOTE)
            return end
        while end >= 0:
            quote = plain.rfind(mark, 0, end) if mark else -1
            line_end = max(plain.rfind(b"\n", quote + 1, end), plain.rfind(b"\r", quote + 1, min(end, len(text) - 1)))
            if line_end >= 0 and not is_open:
                return line_end + 1
            end, is_open = quote, not is_open
        return 0

    def _is_open(self, text: bytes) -> bool | None:
        """Whether a text without escapes ends within quotes; None if not all of them are beside a delimiter or a line end."""
        mark, end, seen = self._quote, self._delimiter, 0
        if not mark or mark not in text:
            return False
        for start in range(0, len(text), CACHED):
            around = (text[start - 1 : start] or b"\n") + text[start : start + CACHED + 1]
            data = np.frombuffer(around if start + CACHED < len(text) else around + b"\n", np.uint8)
            at = np.flatnonzero(data[1:-1] == ord(mark))
            for beside in (data.take(at[seen % 2 :: 2]), data[2:].take(at[(seen + 1) % 2 :: 2])):
                is_beside = (beside == ord(mark)) | (beside == ord(end)) | (beside == _NEWLINE) | (beside == _RETURN)
                if not is_beside.all():
                    return None
            seen += len(at)
        return seen % 2 == 1


class WholeCsvEmitter(LineEmitter):
    """Reads whole files, whose quoted values may have line ends, as a stream: memory is bounded by the longest row."""

    _rows: CsvFormat

    def read(self, piece: Piece) -> Iterator[pa.Table]:
        path = piece.range.path
        with opened(path) as file:
            check_unchanged(file, piece.range, whole=True)
        try:
            for table in self._tables(path):
                yield self._table(list(table.columns), path, table.num_rows)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise BadDataError(
                f"the CSV file {path} cannot be read: {error}. Fix it, change the fields, or raise "
                f"max_line_bytes={self._files.max_line_bytes} if a row is longer"
            ) from error
        except DAMAGED as error:
            raise BadDataError(f"the compressed file {path} is damaged or not complete: {error}") from error
        with opened(path) as file:  # cut meanwhile, it would have looked shorter
            check_unchanged(file, piece.range, whole=True)

    def _tables(self, path: str) -> Iterator[pa.Table]:
        grammar, rows, line, rest = self._rows.grammar, None, 1, b""
        for text, rest in grammar.cut(utf8_blocks(path, self._files, STEP), self._files.max_line_bytes):
            at = 0
            if rows is None and (text or not rest):  # the beginning of the file, or there is nothing
                first = grammar.row.match(text)  # None: it has no line end
                at = 0 if not self._rows.has_header else first.end() if first else len(text)
                rows = self._rows.of_file(path, partial(bytes, text[:at]))
            if rows is not None and len(text) > at:
                yield _read(rows, text[at:], line + text.count(b"\n", 0, at))
            line += text.count(b"\n")
        if rest:
            raise pa.ArrowInvalid(f"a quoted value does not end (line {line})")


def _read(rows: CsvFormat, text: bytes, line: int) -> pa.Table:
    """Read rows, of which the first begins in a line; `pa.ArrowInvalid` names the line of one that is none."""
    try:
        return rows.read(text)
    except pa.ArrowException as error:
        found = [match[0] for match in rows.grammar.row.finditer(text)]
        found.append(text[sum(map(len, found)) :])  # the last one may have no line end
        bad = bad_ones(lambda some: rows.read(b"".join(some)), found)
        at, cause = next(bad, (0, error))
        line += b"".join(found[:at]).count(b"\n")
        raise pa.ArrowInvalid(f"{rows.describe(cause)} (line {line})") from error
