"""Data files of a Delta table as tables of rows: Delta's types as Spark's, partition columns filled in; the workers' side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from spouts.delta.table_log import LoggedFile, TablePlace, not_read
from spouts.files.parquet_spout import Footer, read_groups
from trident.arrow import schema_of
from trident.errors import ReplayMismatchError, SpoutError
from trident.fields import Fields, type_of_json

CHANGE_FIELDS = Fields("_change_type: string, _commit_version: bigint, _commit_timestamp: timestamp")
_TYPE = CHANGE_FIELDS.names[0]


class FilePiece(NamedTuple):
    """What one task reads of a file: the row groups that begin in the bytes `start` to `end`."""

    file: LoggedFile
    version: int
    timestamp_ms: int
    start: int
    end: int


@dataclass(frozen=True)
class DeltaEmitter:
    """Reads pieces of files, in tables of at most 131,072 rows."""

    place: TablePlace
    fields: Fields
    with_changes: bool

    is_quick = True  # of a local table; one in an object store waits for no longer than a read

    def emit(self, part: Sequence[FilePiece]) -> Iterator[pa.Table]:
        for piece in part:
            what = f"the file {piece.file.path} of version {piece.version} of the Delta table {self.place.name}"
            try:
                with self.place.open(piece.file.path) as source:
                    yield from self._rows(what, piece, source)
            except FileNotFoundError as error:
                raise SpoutError(
                    f"{what} is gone: it was removed from the table, and VACUUM deleted it. Restore it and start again; or "
                    "begin with a new log_dir, a later starting_version (or 'earliest', the table as it is) and empty states. "
                    "A longer delta.deletedFileRetentionDuration leaves a stream more time"
                ) from error
            except (OSError, pa.ArrowException) as error:
                raise not_read(f"{what} cannot be read", error) from error

    def _rows(self, what: str, piece: FilePiece, source: pa.NativeFile) -> Iterator[pa.Table]:
        size, footer = source.size(), Footer.of(what, source)
        if footer is None or piece.file.size not in (-1, size):
            raise ReplayMismatchError(
                f"{what} has {size} bytes now, and had {piece.file.size} when it was written: it was replaced. Restore it "
                "and start again"
            )
        own = [one for one in schema_of(self.fields) if one.name not in piece.file.values]
        if self.with_changes and not piece.file.change:
            own.append(pa.field(_TYPE, pa.string()))
        wanted = pa.schema(own)  # the columns that the file itself has to have
        # A column that was added later is null.
        found = read_groups(what, source, footer, piece, wanted, "null", reads_ahead=not self.place.is_local)
        for columns, rows in found:
            yield self._table(piece, dict(zip(wanted.names, columns, strict=True)), rows)

    def _table(self, piece: FilePiece, columns: dict[str, pa.Array], rows: int) -> pa.Table:
        schema = schema_of(self.fields)
        for name, text in piece.file.values.items():
            if name in schema.names:
                columns[name] = pa.repeat(partition_value(text, schema.field(name).type, name), rows)
        if self.with_changes:
            schema = schema_of(Fields(self.fields, CHANGE_FIELDS))
            said = (piece.file.change, piece.version, piece.timestamp_ms * 1000)
            for name, value in zip(CHANGE_FIELDS.names, said, strict=True):
                if name not in columns:
                    columns[name] = pa.repeat(pa.scalar(value, schema.field(name).type), rows)
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


_ESCAPED = re.compile(r"(?:\\u00[0-9A-Fa-f]{2})+")
_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint", "void": "string"}


def fields_of_table(schema: Mapping[str, Any]) -> Fields:
    """Return the fields of the schema of a Delta table."""
    types = [type_of_json(one["type"], lambda name: _NAMES.get(name, name)) for one in schema["fields"]]
    return Fields.of([one["name"] for one in schema["fields"]], types)


def partition_value(text: str | None, type_: pa.DataType, column: str) -> pa.Scalar:
    """Return the value of a partition column. Nothing is null, as Delta's protocol has it; a time without an offset is UTC."""
    if not text:
        return pa.scalar(None, type_)
    if pa.types.is_binary(type_):  # delta-rs escapes each byte, Spark takes them for UTF-8
        escaped = _ESCAPED.fullmatch(text)
        return pa.scalar(bytes.fromhex(text.replace("\\u00", "")) if escaped else text.encode(), type_)
    try:
        if isinstance(type_, pa.TimestampType) and type_.tz is not None:
            plain = text.removesuffix("Z").removesuffix("+00:00").replace("T", " ")
            return pa.scalar(plain).cast(pa.timestamp("us")).cast(type_)
        return pa.scalar(text).cast(type_)
    except (pa.ArrowException, ValueError) as error:
        raise SpoutError(
            f"the value {text!r} of partition column {column!r} is not of type {type_}: {error}"
        ) from error
