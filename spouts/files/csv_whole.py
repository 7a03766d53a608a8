"""CSV files whose quoted values may have line ends: each is read whole, by one task."""

from __future__ import annotations

import codecs
import csv
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, cast

import pyarrow as pa
import pyarrow.csv as pacsv

from spouts.byte_ranges.ranges import Piece, open_error, opened
from spouts.files.csv_lines import CsvFormat
from spouts.files.row_reading import RowOptions
from spouts.text_files.tail_checks import check_unchanged
from trident.arrow import schema_of
from trident.errors import BadDataError

__all__ = ["WholeCsvEmitter"]


class WholeCsvEmitter:
    """Reads whole files as a stream, so that memory is bounded by the longest row."""

    is_quick = True  # it never waits, so the loop may call it

    def __init__(self, format_: CsvFormat, options: RowOptions) -> None:
        self._format, self._options = format_, options
        self._schema = schema_of(options.emitted_fields)

    def emit(self, part: Iterable[Piece]) -> Iterator[pa.Table]:
        """Give the rows of files."""
        for piece in part:
            path = piece.range.path
            try:
                with opened(path) as file:
                    check_unchanged(file, piece.range, whole=True)
                    for batch in self._batches(path, file):
                        columns = list(batch.columns)
                        if self._options.file_field is not None:
                            columns.append(pa.repeat(pa.scalar(path.encode("utf-8", "replace").decode()), len(batch)))
                        yield pa.Table.from_arrays(columns, schema=self._schema)
                    check_unchanged(file, piece.range, whole=True)  # cut meanwhile, it would have looked shorter
            except OSError as error:
                raise open_error(path, error, "cannot read the batch defined as a whole file") from error

    def _batches(self, path: str, file: int) -> Iterator[pa.RecordBatch]:
        with _stream(path, file) as first:
            names = self._names(path, first)
        longest = min(self._options.text.files.max_line_bytes, 1 << 30)
        size = longest if path.endswith(".gz") else min(longest, os.fstat(file).st_size)
        with _stream(path, file) as data:
            read = pacsv.ReadOptions(
                column_names=names,
                skip_rows_after_names=int(self._format.has_header),
                use_threads=False,
                block_size=size + 1,
                encoding=self._options.text.encoding,
            )
            try:
                yield from pacsv.open_csv(data, read, self._format.parse_options(True), self._format.convert_options())
            except pa.ArrowException as error:
                raise BadDataError(
                    f"the CSV file {path} cannot be read: {error}. Mend it, change the fields, or raise "
                    f"max_line_bytes={longest} if a row is longer"
                ) from error
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise BadDataError(f"the compressed file {path} is damaged or not complete: {error}") from error

    def _names(self, path: str, data: IO[bytes]) -> list[str]:
        if self._format.header is not True:
            return self._format.schema.names if self._format.header is False else list(self._format.header)
        dialect = {"quoting": csv.QUOTE_NONE} if self._format.quote is None else {"quotechar": self._format.quote}
        lines = codecs.getreader(self._options.text.encoding)(data, "replace")
        rows = csv.reader(lines, delimiter=self._format.delimiter, escapechar=self._format.escape, **dialect)
        names = next(rows, [])
        names[:1] = [name.removeprefix(codecs.BOM_UTF8.decode()) for name in names[:1]]
        self._format.check_names(path, names)
        return names


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
