"""DeltaSpout: a Delta table as a stream, version by version, through delta-rs; no JVM. Its workers read data files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Literal

import pyarrow as pa

from spouts.delta.table_log import TableLog, not_read
from spouts.delta.version_batches import ChangeRules, DeltaCoordinator, FilePiece, fields_of_table
from spouts.files.parquet_spout import Footer, read_groups, typed_as
from trident.arrow import schema_of
from trident.errors import ConfigError, ReplayMismatchError, SpoutError
from trident.fields import Fields, FieldsLike
from trident.setting_types import Limit, Whole, check_arguments
from trident.spout.interfaces import OnNewLog, SpoutType

_CHANGE_FIELDS = Fields("_change_type: string, _commit_version: bigint, _commit_timestamp: timestamp")
_TYPE = _CHANGE_FIELDS.names[0]
_ESCAPED = re.compile(r"(?:\\u00[0-9A-Fa-f]{2})+")


class DeltaSpout:
    """Emits what is appended to a Delta table, or all changes of it, each once. Transactional.

    Parameters
    ----------
    table
        A folder, or the URL of an object store. All workers must see it under the same name.
    fields
        The columns to read; others are not read from the files. A type that is not declared comes from the table. None:
        all columns that the table has now.
    mode
        `"append"`: the rows of files that are added. `"changes"`: the change data feed, with `_change_type` (`insert`,
        `update_preimage`, `update_postimage`, `delete`), `_commit_version` and `_commit_timestamp` after the fields.
    starting_version
        Where the stream begins if its topology has no log yet. `"earliest"`: with the whole table as it is then (as
        inserts), followed by what comes after it. `"latest"`: with the next version. A number: with that version.
    on_removal
        With `mode="append"`, what to do about a version that removes rows (an update, a delete, a merge, an overwrite):
        `"error"`; `"skip"`, nothing of it is read; `"added_files"`, all files that it wrote are read, copied rows too.
    max_batch_bytes, max_batch_files
        The greatest number of packed bytes and of files of one batch. A larger file makes a batch of its own.
    storage_options
        Options of the object store, as delta-rs takes them.
    """

    spout_type = SpoutType.TRANSACTIONAL

    @check_arguments
    def __init__(
        self,
        table: str | PathLike[str],
        fields: FieldsLike | None = None,
        *,
        mode: Literal["append", "changes"] = "append",
        starting_version: Whole | Literal["earliest", "latest"] = "earliest",
        on_removal: Literal["error", "skip", "added_files"] = "error",
        max_batch_bytes: Limit = 64 << 20,
        max_batch_files: Limit = 1000,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        if not fspath(table):
            raise ConfigError("table='' of DeltaSpout: give the folder or the URL of the table")
        self._log = TableLog(fspath(table), storage_options)
        self._fields = self._typed_fields(None if fields is None else Fields(fields))
        self._rules = ChangeRules(self._log.name, self._fields, mode, on_removal)
        self._limits, self._start = (max_batch_bytes, max_batch_files), starting_version
        self.on_new_log: OnNewLog = "elsewhere" if starting_version == "latest" else "start"
        self._with_changes = mode == "changes"
        self._output = Fields(self._fields, _CHANGE_FIELDS) if self._with_changes else self._fields

    def get_output_fields(self) -> Fields:
        return self._output

    def get_coordinator(self, conf: Mapping[str, Any]) -> DeltaCoordinator:
        """Open the driver's side; `SpoutError` if there is no such table."""
        self._log.table()
        return DeltaCoordinator(self._log, self._rules, self._limits, self._start)

    def get_emitter(self, conf: Mapping[str, Any]) -> DeltaEmitter:
        """Return the worker's side."""
        return DeltaEmitter(self._log, self._fields, self._with_changes)

    def _typed_fields(self, fields: Fields | None) -> Fields:
        if fields is not None and None not in fields.types:
            schema_of(fields)
            return fields
        _, metadata = self._log.metadata()
        there = fields_of_table(metadata.schema)
        if fields is None:
            return there
        return typed_as(fields, there.names, there.type_of, f"the Delta table {self._log.name}")


@dataclass(frozen=True)
class DeltaEmitter:
    """Reads pieces of files, in tables of at most 131,072 rows."""

    log: TableLog
    fields: Fields
    with_changes: bool

    is_quick = True  # of a local table; one in an object store waits for no longer than a read

    def emit(self, part: Sequence[FilePiece]) -> Iterator[pa.Table]:
        for piece in part:
            what = f"the file {piece.file.path} of version {piece.version} of the Delta table {self.log.name}"
            try:
                with self.log.open(piece.file.path) as source:
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
        size, footer = source.size(), Footer.of(what, source.size(), source.read_at)
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
        found = read_groups(what, source, footer, piece, wanted, "null", reads_ahead=not self.log.is_local)
        for columns, rows in found:
            yield self._table(piece, dict(zip(wanted.names, columns, strict=True)), rows)

    def _table(self, piece: FilePiece, columns: dict[str, pa.Array], rows: int) -> pa.Table:
        schema = schema_of(self.fields)
        for name, text in piece.file.values.items():
            if name in schema.names:
                columns[name] = pa.repeat(_partition_value(text, schema.field(name).type, name), rows)
        if self.with_changes:
            schema = schema_of(Fields(self.fields, _CHANGE_FIELDS))
            said = (piece.file.change, piece.version, piece.timestamp_ms * 1000)
            for name, value in zip(_CHANGE_FIELDS.names, said, strict=True):
                if name not in columns:
                    columns[name] = pa.repeat(pa.scalar(value, schema.field(name).type), rows)
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _partition_value(text: str | None, type_: pa.DataType, column: str) -> pa.Scalar:
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
        raise SpoutError(f"value {text!r} of partition column {column!r} is not of type {type_}: {error}") from error
