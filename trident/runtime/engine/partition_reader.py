"""Reads partitions of a source in a worker: rows and the metadata of the same run, which a replay is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa

from trident.arrow import UNFIT, cast_table, ipc_of, row_of, schema_of, table_of, table_of_ipc
from trident.errors import ReplayMismatchError, SpoutError, TridentError, describe
from trident.fields import Fields
from trident.spout.completing import PartitionRead
from trident.spout.interfaces import Quick, TransactionAttempt

_ROWS_PER_TABLE = 8192
_PLAIN = (type(None), bool, int, float, str, bytes)


class NewPart(NamedTuple):
    """A partition that is read on from its last metadata."""

    attempt: TransactionAttempt
    partition: str
    last_metadata: Any
    share: float


class ReplayedPart(NamedTuple):
    """A partition of which the rows of a logged batch are read again; `rows` and `crc` are those of the first time."""

    attempt: TransactionAttempt
    partition: str
    metadata: Any
    rows: int
    crc: int | None


class RowsPart:
    """Rows of a partition that the driver has read."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __reduce__(self) -> tuple[Callable[[bytes], RowsPart], tuple[bytes]]:
        # A pickled table may take along buffers that it shows only a part of.
        return _rows_of_ipc, (ipc_of(self.table),)


def _rows_of_ipc(data: bytes) -> RowsPart:
    return RowsPart(table_of_ipc(data))


Part = NewPart | ReplayedPart | RowsPart


class PartitionReader:
    """The emitter of any partitioned spout; runs that of the user.

    `name`: the class of the spout, for errors.
    `identical`: whether a replay must have the same rows, so that their checksum is kept.
    """

    def __init__(self, name: str, emitter: Any, fields: Fields, identical: bool) -> None:
        self._name, self._emitter, self._fields, self._identical = name, emitter, fields, identical

    @property
    def is_quick(self) -> bool:
        """Whether the user's emitter says that it reads without waiting."""
        return isinstance(self._emitter, Quick) and self._emitter.is_quick

    def emit(self, part: Part) -> Iterator[pa.Table | PartitionRead]:
        """Read a part: its tables, then, of a new one, what the reading returned."""
        match part:
            case RowsPart():
                yield part.table
            case NewPart():
                tables, read = self.read(part)
                yield from tables
                yield read
            case ReplayedPart():
                yield from self._again(part)

    def read(self, part: NewPart) -> tuple[list[pa.Table], PartitionRead]:
        """Read a partition on; the tables, and what the reading returned."""
        call = self._called("emit_partition_batch_new", part.partition)
        collector = _Collector(self._fields, call, part.share)
        with _named(call):
            emit = self._emitter.emit_partition_batch_new
            # Copied here and below, because an emitter may change in place what it was given, or what it returned.
            metadata = emit(part.attempt, collector, part.partition, deepcopy(part.last_metadata))
        tables = collector.tables()
        rows = sum(table.num_rows for table in tables)
        self._check(part, metadata, rows)
        crc = _checksum(tables) if self._identical and rows else None
        size = sum(table.nbytes for table in tables)
        return tables, PartitionRead(part.partition, deepcopy(metadata), rows, size, crc)

    def _again(self, part: ReplayedPart) -> list[pa.Table]:
        call = self._called("emit_partition_batch", part.partition)
        collector = _Collector(self._fields, call, share=1.0)
        with _named(call):
            self._emitter.emit_partition_batch(part.attempt, collector, part.partition, deepcopy(part.metadata))
        tables = collector.tables()
        rows, crc = sum(table.num_rows for table in tables), _checksum(tables)
        if rows != part.rows or (part.crc is not None and crc != part.crc):
            raise ReplayMismatchError(
                f"{call} gave other rows than when batch {part.attempt.txid} was read first: {read_said(rows, crc)} in "
                f"place of {read_said(part.rows, part.crc)}. A transactional spout must give the same rows for the "
                "same metadata. Make it do so (is the source unchanged?) and start again, or make it an "
                "IOpaquePartitionedTridentSpout"
            )
        return tables

    def _check(self, part: NewPart, metadata: Any, rows: int) -> None:
        call = self._called("emit_partition_batch_new", part.partition)
        if metadata is None and (rows or part.last_metadata is not None):
            begins = (
                "begin where this one began" if part.last_metadata is None else "read the partition from its beginning"
            )
            raise SpoutError(
                f"{call} emitted {rows} rows and returned None: the next batch would {begins}. Return where the reading ended, "
                "as plain data; if there is nothing new, that is last_metadata"
            )
        wrong = _not_plain(metadata, "metadata")
        if wrong:
            raise SpoutError(
                f"{call} returned metadata that a log cannot hold: {wrong}. Return plain data: None, bool, int (64 bits), "
                "float, str, bytes, lists, and dicts with str keys"
            )

    def _called(self, method: str, partition: str) -> str:
        return f"{self._name}: {method} of partition {partition!r}"


def read_said(rows: int, crc: int | None) -> str:
    """Say how many rows were read, and their checksum."""
    return f"{rows} rows" + (f" with checksum {crc:08x}" if crc is not None else "")


@contextmanager
def _named(call: str) -> Iterator[None]:
    """Have an error of the user's name the partition; errors of this package say enough, and may say what is to follow."""
    try:
        yield
    except TridentError:
        raise
    except Exception as error:
        raise SpoutError(f"{call}: {describe(error)}") from error


class _Collector:
    """Takes rows and tables in order; see `PartitionCollector`."""

    def __init__(self, fields: Fields, call: str, share: float) -> None:
        self.share = share
        self._fields, self._schema, self._call = fields, schema_of(fields), call
        self._rows: list[Sequence[Any]] = []
        self._tables: list[pa.Table] = []

    def emit(self, values: Sequence[Any]) -> None:
        self._rows.append(row_of(values))  # a copy, because the emitter may reuse its list
        if len(self._rows) == _ROWS_PER_TABLE:
            self._flush()

    def emit_arrow(self, data: pa.Table | pa.RecordBatch) -> None:
        self._flush()
        table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        if table.schema.names != self._schema.names:
            raise SpoutError(
                f"{self._call} emitted the columns {table.schema.names}, but the fields are {self._schema.names}"
            )
        if table.num_rows:
            # As in a row, a value that does not fit raises. The types must be those of the fields for the checksum too.
            self._tables.append(self._typed(table))

    def tables(self) -> list[pa.Table]:
        """Return all that was emitted."""
        self._flush()
        return self._tables

    def _flush(self) -> None:
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        self._tables.append(self._typed(rows))

    def _typed(self, rows: Any) -> pa.Table:
        try:
            return cast_table(rows, self._fields) if isinstance(rows, pa.Table) else table_of(self._fields, rows)
        except UNFIT as error:
            said = f"{self._call} emitted rows that do not fit its fields ({self._fields})"
            raise SpoutError(f"{said}: {error}") from error


def _checksum(tables: Sequence[pa.Table]) -> int:
    """Return a checksum of the rows, however they are cut into tables."""
    crc = 0
    for batch in pa.concat_tables(tables).combine_chunks().to_batches() if tables else ():
        crc = crc32(batch.serialize(), crc)  # leaves out what a slice does not show
    return crc


def _not_plain(value: Any, place: str) -> str:
    """Say what in a value is not plain data; empty if all of it is."""
    if isinstance(value, int) and type(value) is int:
        return "" if -(1 << 63) <= value < 1 << 64 else f"{place} is an int of more than 64 bits"
    if type(value) in _PLAIN:
        return ""
    if type(value) is list:
        return next(filter(None, (_not_plain(one, f"{place}[{at}]") for at, one in enumerate(value))), "")
    if type(value) is dict:
        return _not_plain_dict(value, place)
    return f"{place} is a {type(value).__name__}"


def _not_plain_dict(value: Mapping[Any, Any], place: str) -> str:
    for key, one in value.items():
        if type(key) is not str:
            return f"{place} has the key {key!r}, a {type(key).__name__}"
        wrong = _not_plain(one, f"{place}[{key!r}]")
        if wrong:
            return wrong
    return ""
