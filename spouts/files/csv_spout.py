"""CsvFileSpout: the rows of CSV files, each exactly once, from files that are there, that come and that grow.

Definitions are as in `TextFileSpout`: byte ranges that end at line ends, or whole files with `multiline`.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import IO, Unpack, cast

import pyarrow as pa
import pyarrow.csv as pacsv

from spouts.files.csv_lines import CsvFormat, may_bend
from spouts.files.file_listing import Paths
from spouts.files.file_settings import FileSettings, FileSpout
from spouts.files.line_ends import LineFiles
from spouts.files.line_reading import LineEmitter
from spouts.files.ranges import Piece, check_unchanged, open_error, opened
from trident.arrow import schema_of
from trident.errors import BadDataError, TopologyError
from trident.fields import Fields, FieldsLike, is_nested

_BLOCK = 1 << 20


class CsvFileSpout(FileSpout):
    r"""Emits each row of CSV files once. Transactional.

    Parameters
    ----------
    paths
        A directory, a glob, a file, or a list of them. All workers must see the files under the same absolute paths.
    fields
        The columns to read, with their types.
    header
        True: the first line of each file names its columns, of which the fields are taken, in any order. False: there is no
        such line, and the columns are the fields. A list of names: there is no such line, and these are the columns.
    delimiter, quote, escape
        One character each; quote and escape may be None. Two quotes within a quoted value stand for one.
    null_values
        What stands for null where it is not quoted; so by default `a,,b` has a null, and `a,"",b` an empty string.
    missing_columns
        What to do if a header lacks a field: `"error"`, or `"null"`.
    timestamp_formats
        Formats as in `%d.%m.%Y %H:%M`, tried in order, for timestamps; default: ISO 8601. A `timestamp` needs an offset in its
        text (`%z`), a `timestamp_ntz` none.
    decimal_point
        Of numbers.
    multiline
        Quoted values may have line ends in them. A file is then one range: read by one task, in one batch, when it has not
        changed for `tail` seconds, and must not change afterwards.
    bad_lines
        The name of a further field of type string: a line that cannot be read gives its text there, and null in all other
        fields. Without it such a line raises `SpoutError`.
    with_file
        Emit `file: string`, the path, after all other fields.
    encoding, errors, max_line_bytes
        As for `TextFileSpout`, but `errors` is `"strict"` by default. With `multiline`, `max_line_bytes` is for a row.
    files
        The settings of all spouts of files: `max_batch_bytes`, `pattern` (default `*.csv` and `*.csv.gz`), `recursive`,
        `follow`, `tail`, `allow_empty`; see `FileSettings`.
    """

    def __init__(
        self,
        paths: Paths,
        fields: FieldsLike,
        *,
        header: bool | Sequence[str] = True,
        delimiter: str = ",",
        quote: str | None = '"',
        escape: str | None = None,
        null_values: Sequence[str] = ("",),
        missing_columns: str = "error",
        timestamp_formats: Sequence[str] = (),
        decimal_point: str = ".",
        multiline: bool = False,
        bad_lines: str | None = None,
        with_file: bool = False,
        encoding: str = "utf-8",
        errors: str = "strict",
        max_line_bytes: int = 64 << 20,
        **files: Unpack[FileSettings],
    ) -> None:
        if missing_columns not in ("error", "null"):
            raise ValueError(f'missing_columns is {missing_columns!r}; it must be "error" or "null"')
        if multiline and (bad_lines is not None or errors != "strict"):
            raise ValueError(
                "multiline=True does not go with bad_lines or errors='replace': where a row has several lines, "
                "the end of a bad one is not known"
            )
        _check_marks(delimiter=delimiter, quote=quote, escape=escape, decimal_point=decimal_point)
        super().__init__("CSV", paths, ("*.csv", "*.csv.gz"), **files)
        declared = _flat_fields(Fields(fields))
        names = header if isinstance(header, bool) else tuple(header)
        csv = CsvFormat(
            schema_of(declared), names, delimiter, quote, escape, tuple(null_values), missing_columns,
            tuple(timestamp_formats), decimal_point,
        )  # fmt: skip
        if not isinstance(header, bool):
            csv.check_names("header=", list(header))
        lines = LineFiles(encoding, errors, max_line_bytes, multiline, csv)
        kind = WholeCsvEmitter if multiline else LineEmitter
        self._read_as(lines, kind(csv, lines, declared, bad_lines, with_file))


def _check_marks(**marks: str | None) -> None:
    for name, mark in marks.items():
        if mark is not None and (len(mark) != 1 or not mark.isascii() or mark in "\r\n"):
            raise ValueError(f"{name} is {mark!r}; it must be one ASCII character, and not a line end")


def _flat_fields(fields: Fields) -> Fields:
    for name in fields.names:
        type_ = fields.type_of(name)
        if type_ is not None and is_nested(type_):
            raise TopologyError(
                f"field {name!r} is of type {type_}, which CSV cannot hold; declare it as string and parse the value"
            )
    return fields


# CSV files whose quoted values may have line ends: each is read whole, by one task.


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
            names = self._names(path, first)
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
                    yield self._format.typed(batch)
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

    def _names(self, path: str, data: IO[bytes]) -> list[str]:
        with io.TextIOWrapper(data, self._files.encoding, "replace", newline="") as lines:
            return self._format.names(path, lines)


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
