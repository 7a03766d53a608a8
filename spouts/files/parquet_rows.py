"""Row groups of Parquet files as tables: the columns that are asked for, checked and in the declared types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from spouts.files.column_types import read_schema, reads_as
from spouts.files.ranges import FileRange, Piece, open_error
from spouts.files.row_groups import Footer
from spouts.rows.driver_rows import ddl_of
from trident.arrow import schema_of
from trident.errors import BadDataError, ReplayMismatchError
from trident.fields import Fields

__all__ = ["ROWS", "ParquetEmitter", "ParquetOptions", "columns_as", "columns_in", "parquet_file"]

ROWS = 131_072
_BUFFER = 1 << 20


@dataclass(frozen=True)
class ParquetOptions:
    """What is read; see `ParquetFileSpout`. `all_fields` are those of the spout, with the path."""

    fields: Fields
    all_fields: Fields
    missing_columns: str


class ParquetEmitter:
    """Reads the pieces of files that make up a part."""

    is_quick = True  # it never waits, so the loop may call it

    def __init__(self, options: ParquetOptions) -> None:
        self._options = options
        self._wanted, self._schema = schema_of(options.fields), schema_of(options.all_fields)

    def emit(self, part: Iterable[Piece]) -> Iterator[pa.Table]:
        """Give the rows of a part, in tables of at most 131,072 rows."""
        for piece in part:
            range_ = piece.range
            try:
                with pa.OSFile(range_.path) as source:
                    yield from self._rows(piece, source)
            except (OSError, pa.ArrowException) as error:  # Arrow raises either for a damaged file
                if isinstance(error, OSError) and error.errno is not None:
                    doing = f"cannot read the batch defined as bytes {range_.start} to {range_.end}"
                    raise open_error(range_.path, error, doing) from error
                raise BadDataError(
                    f"the Parquet file {range_.path} cannot be read: {str(error).strip(' .')}. Put an undamaged file there, or "
                    "declare other types, and start again"
                ) from error

    def _rows(self, piece: Piece, source: pa.NativeFile) -> Iterator[pa.Table]:
        path = piece.range.path
        footer = _checked(piece.range, source)
        groups = footer.groups(piece.start, piece.end)
        if not groups:
            return
        file = parquet_file(source, footer, reads_ahead=False)
        names = columns_in(f"the Parquet file {path}", read_schema(file), self._wanted, self._options.missing_columns)
        for batch in file.iter_batches(ROWS, row_groups=groups, columns=names, use_threads=False):
            yield self._finished(path, batch)

    def _finished(self, path: str, batch: pa.RecordBatch) -> pa.Table:
        columns = columns_as(batch, self._wanted)
        if len(self._schema) > len(self._wanted):
            columns.append(pa.repeat(pa.scalar(path.encode("utf-8", "replace").decode()), len(batch)))
        return pa.Table.from_arrays(columns, schema=self._schema)


def parquet_file(source: pa.NativeFile, footer: Footer, reads_ahead: bool) -> pq.ParquetFile:
    """Open a file whose footer was read. `reads_ahead`: whole row groups at once, for stores where each read takes long."""
    return pq.ParquetFile(
        source,
        metadata=footer.metadata,
        coerce_int96_timestamp_unit="us",
        buffer_size=_BUFFER,
        pre_buffer=reads_ahead,
    )


def columns_in(what: str, schema: pa.Schema, wanted: pa.Schema, missing: str) -> list[str]:
    """Return the names of the wanted columns that a file has; `BadDataError` if one has another type, or is not there.

    Parameters
    ----------
    what
        The file, for messages.
    missing
        What it means if the file does not have a column: `"error"`, or `"null"`.
    """
    found = []
    for field in wanted:
        at = schema.get_field_index(field.name)
        if at < 0:
            if missing == "null" and field.name not in schema.names:
                continue
            raise BadDataError(
                f"{what} has no column {field.name!r}, or has it more than once; it has {schema.names}. Leave the field "
                "out, or give missing_columns='null' to have null there"
            )
        if not reads_as(schema.field(at).type, field.type):
            raise BadDataError(
                f"column {field.name!r} of {what} is of type {schema.field(at).type}, and the field is declared as "
                f"{ddl_of(field.type, field.name)}. Declare it as what it is, or leave it out"
            )
        found.append(field.name)
    return found


def columns_as(batch: pa.RecordBatch, wanted: pa.Schema) -> list[pa.Array]:
    """Return the wanted columns in their types; null where the batch does not have one."""
    columns: list[pa.Array] = []
    for field in wanted:
        at = batch.schema.get_field_index(field.name)
        column = pa.nulls(len(batch), field.type) if at < 0 else batch.column(at)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return columns


def _checked(range_: FileRange, source: pa.NativeFile) -> Footer:
    """Read the footer through the same descriptor as the rows; `ReplayMismatchError` if it is another one."""
    size = source.size()

    def read_at(length: int, at: int) -> bytes:
        return bytes(source.read_at(length, at))

    footer = Footer.read(range_.path, size, read_at)
    if footer is None or footer.crc != range_.crc:
        raise ReplayMismatchError(
            f"the batch was defined as bytes {range_.start} to {range_.end} of the Parquet file {range_.path}, which has "
            f"{size} bytes now and another footer: it was replaced. Put the file back as it was and start again"
        )
    return footer
