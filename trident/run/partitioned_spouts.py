"""Partitioned spouts as the driver loop sees them, and their side in a worker.

A complete definition has `read`: by partition with rows, `{"meta": metadata, "rows": number}`, of a transactional spout also
`checksum`; `kept`: the last metadata of all other partitions ever read, so that each finds its place when it is back; `bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from trident.arrow import UNFIT, TablePart, cast_table, row_of, schema_of, table_of
from trident.errors import PartitionLostError, ReplayMismatchError, SpoutError, TopologyError, TridentError, describe
from trident.fields import Fields
from trident.roles import adapt, lacking, missing
from trident.spout.interfaces import (
    BatchTraits,
    Definition,
    Lag,
    PartitionRead,
    Quick,
    SpoutType,
    ThrottledCoordinator,
    TransactionAttempt,
)
from trident.spout.partitioned import (
    OpaquePartitionedEmitter,
    PartitionedCoordinator,
    PartitionedEmitter,
    PartitionedSpout,
)

_LOOK = 0  # the attempt number while the driver looks; no attempt has this number
_ROWS_PER_TABLE = 8192
_PLAIN = (type(None), bool, int, float, str, bytes)

Metadata = dict[str, Any]


class PartitionedTridentSpoutExecutor:
    """A partitioned spout, transactional or opaque, as an `ITridentSpout`."""

    def __init__(self, spout: PartitionedSpout) -> None:
        self._spout, self._name = spout, type(spout).__name__
        self.spout_type = spout.spout_type

    def get_output_fields(self) -> Fields:
        return self._spout.get_output_fields()

    def get_coordinator(self, conf: Mapping[str, Any]) -> PartitionsCoordinator:
        coordinator = self._spout.get_coordinator(conf)
        if lacks := ", ".join(lacking(PartitionedCoordinator, coordinator)):
            raise self._lacks("get_coordinator", coordinator, PartitionedCoordinator, lacks)
        own: PartitionedCoordinator = adapt(PartitionedCoordinator, coordinator)
        return PartitionsCoordinator(self._name, own, self.get_emitter(conf), conf)

    def get_emitter(self, conf: Mapping[str, Any]) -> PartitionReader:
        identical = self.spout_type is SpoutType.TRANSACTIONAL
        emitter = self._spout.get_emitter(conf)
        kind = PartitionedEmitter if identical else OpaquePartitionedEmitter
        if lacks := ", ".join(missing(emitter, kind)):
            raise self._lacks("get_emitter", emitter, kind, lacks)
        return PartitionReader(self._name, emitter, self.get_output_fields(), identical)

    def _lacks(self, method: str, given: object, kind: type, lacks: str) -> TopologyError:
        return TopologyError(
            f"{self._name}.{method}() returned a {type(given).__name__}, which lacks {lacks} ({kind.__name__})"
        )


class PartitionsCoordinator(ThrottledCoordinator):
    """The driver's side of any partitioned spout; runs the user's. Completed by processing."""

    def __init__(
        self, name: str, coordinator: PartitionedCoordinator, reader: PartitionReader, conf: Mapping[str, Any]
    ) -> None:
        self._name, self._coordinator, self._reader = name, coordinator, reader
        # The driver reads the next batch where the one before was not larger: where a worker's look would cost a Spark job,
        # after nothing; with `engine="auto"`, all small ones, which need no Spark.
        engine = conf.get("engine")
        self._looks_up_to = conf["auto_bytes"] if engine == "auto" else 0 if engine == "spark" else -1
        self._looks = engine == "auto"
        self._tables: dict[int, dict[str, pa.Table]] = {}  # what the driver has read, by batch and partition

    def offers(self, method: str) -> bool:
        """Whether there is a method in place of the default; the lag comes from the user's coordinator."""
        return self._coordinator.offers(method) if method == "lag" else super().offers(method)

    def lag(self, definition: Definition) -> Lag | None:
        return self._coordinator.lag(last_metadata(definition))

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Say where reading begins; what was read completes the definition."""
        self._tables.pop(txid, None)
        if not self._coordinator.is_ready(txid):
            return None
        partitions = self._partitions()
        if not partitions:
            return None
        begun = {"partitions": partitions, "last": last_metadata(previous)}
        return self._look(txid, begun) if self._looks else begun

    def traits(self, definition: Definition) -> BatchTraits:
        return BatchTraits(is_complete="read" in definition)

    def complete(self, definition: Definition, read: Mapping[str, PartitionRead]) -> Definition | None:
        """Return the definition with the metadata of all partitions; None if there are neither rows nor new metadata."""
        last: Metadata = definition["last"]
        unread = [name for name in definition["partitions"] if name not in read]
        if unread:
            raise SpoutError(f"{self._name}: the workers returned no metadata of the partitions {unread}")
        given = [read[name] for name in definition["partitions"]]
        size = sum(one.size for one in given)
        self._looks = size <= self._looks_up_to
        if not any(one.rows or _differ(one.metadata, last.get(one.partition)) for one in given):
            return None
        entries = {one.partition: _entry(one) for one in given if one.rows}
        latest = {**last, **{one.partition: one.metadata for one in given}}
        others = {name: metadata for name, metadata in latest.items() if name not in entries and metadata is not None}
        return {"read": entries, "kept": others, "bytes": size}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        if "read" not in definition:
            last = definition["last"]
            return [PartitionPart(attempt, name, last.get(name), self._share) for name in definition["partitions"]]
        if attempt.txid in self._tables:
            return [TablePart(table) for table in self._tables[attempt.txid].values()]
        entries = definition["read"]
        there = self._partitions() if entries else []
        lost = [name for name in entries if name not in there]
        if lost:
            raise PartitionLostError(self._name, attempt.txid, _list_names(lost), _list_names(there))
        return [
            PartitionPart(attempt, name, entry["meta"], 1.0, entry["rows"], entry.get("checksum"))
            for name, entry in entries.items()
        ]

    def size(self, definition: Definition) -> int | None:
        size: int | None = definition.get("bytes")
        return size

    def success(self, txid: int, definition: Definition) -> None:
        self._tables.pop(txid, None)
        self._coordinator.success(txid, last_metadata(definition))

    def close(self) -> None:
        self._coordinator.close()

    def _partitions(self) -> list[str]:
        names = list(self._coordinator.get_partitions_for_batch())
        wrong = next((name for name in names if type(name) is not str), None)
        if wrong is not None:
            kind = type(wrong).__name__
            raise SpoutError(
                f"{self._name}: a partition is a str, its name, but get_partitions_for_batch gave {wrong!r} ({kind})"
            )
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise SpoutError(f"{self._name}: get_partitions_for_batch named {twice} more than once")
        return names

    def _look(self, txid: int, begun: Definition) -> Definition | None:
        """Read all partitions here; what was found is a batch whose definition is complete from the beginning."""
        attempt, read, tables = TransactionAttempt(txid, _LOOK), {}, {}
        for part in self.parts(attempt, begun, 1):
            found, read[part.partition] = self._reader.read(part)
            if found:
                tables[part.partition] = pa.concat_tables(found)
        definition = self.complete(begun, read)
        if definition is not None:
            self._tables[txid] = tables
        return definition


def _differ(one: Any, other: Any) -> bool:
    return bool(one != other) and repr(one) != repr(other)  # NaN is no news


def last_metadata(definition: Definition | None) -> Metadata:
    """Return the last metadata of each partition up to the batch with this definition; None: there is no such batch."""
    if definition is None:
        return {}
    if not {"kept", "read"} <= set(definition):
        raise SpoutError(
            "the log has a definition of another kind of spout for this stream, which does not say where partitions begin. "
            "Give the stream another name (new_stream(name, ...)); the new one begins at the start of its source"
        )
    return {**definition["kept"], **{name: entry["meta"] for name, entry in definition["read"].items()}}


def _list_names(names: Sequence[str]) -> str:
    said = ", ".join(map(repr, names[:5])) or "none"
    return said if len(names) <= 5 else f"{said} and {len(names) - 5} more"


def _entry(read: PartitionRead) -> dict[str, Any]:
    entry = {"meta": read.metadata, "rows": read.rows}
    return entry if read.crc is None else {**entry, "checksum": read.crc}


class PartitionPart(NamedTuple):
    """A partition that is read on from its last metadata; or of which the rows of a logged batch are read again."""

    attempt: TransactionAttempt
    partition: str
    metadata: Any
    share: float = 1.0
    rows: int | None = None  # of the first time, with their checksum; None: it is read on
    crc: int | None = None


class PartitionReader:
    """The emitter of any partitioned spout; runs that of the user."""

    def __init__(self, name: str, emitter: Any, fields: Fields, identical: bool) -> None:
        self._name, self._emitter, self._fields, self._identical = name, emitter, fields, identical

    @property
    def is_quick(self) -> bool:
        return isinstance(self._emitter, Quick) and self._emitter.is_quick

    def emit(self, part: PartitionPart | TablePart) -> Iterator[pa.Table | PartitionRead]:
        """Read a part: its tables, then, of one that is read on, what the reading returned."""
        if isinstance(part, TablePart):
            yield part.table
        elif part.rows is not None:
            yield from self._again(part)
        else:
            tables, read = self.read(part)
            yield from tables
            yield read

    def read(self, part: PartitionPart) -> tuple[list[pa.Table], PartitionRead]:
        emit = self._emitter.emit_partition_batch_new
        call, metadata, tables = self._call("emit_partition_batch_new", emit, part)
        rows = sum(table.num_rows for table in tables)
        self._check(call, part, metadata, rows)
        crc = checksum(tables) if self._identical and rows else None
        size = sum(table.nbytes for table in tables)
        return tables, PartitionRead(part.partition, deepcopy(metadata), rows, size, crc)

    def _again(self, part: PartitionPart) -> list[pa.Table]:
        call, _, tables = self._call("emit_partition_batch", self._emitter.emit_partition_batch, part)
        rows, crc = sum(table.num_rows for table in tables), checksum(tables)
        if rows != part.rows or (part.crc is not None and crc != part.crc):
            raise ReplayMismatchError(
                f"{call} gave other rows than when batch {part.attempt.txid} was read first: {read_said(rows, crc)} in "
                f"place of {read_said(part.rows or 0, part.crc)}. A transactional spout must give the same rows for the "
                "same metadata. Make it do so (is the source unchanged?) and start again, or make it an "
                "IOpaquePartitionedTridentSpout"
            )
        return tables

    def _call(self, name: str, emit: Callable[..., Any], part: PartitionPart) -> tuple[str, Any, list[pa.Table]]:
        """Have the user's emitter read a partition; return what names the call, what it returned and what it emitted."""
        call = f"{self._name}: {name} of partition {part.partition!r}"
        collector = _Collector(self._fields, call, part.share)
        try:
            # Copied here and above, because an emitter may change in place what it was given, or what it returned.
            found = emit(part.attempt, collector, part.partition, deepcopy(part.metadata))
        except TridentError:  # it says enough, and may say what is to follow
            raise
        except Exception as error:
            raise SpoutError(f"{call}: {describe(error)}") from error
        return call, found, collector.tables()

    def _check(self, call: str, part: PartitionPart, metadata: Any, rows: int) -> None:
        if metadata is None and (rows or part.metadata is not None):
            begins = (
                "read the partition from its beginning" if part.metadata is not None else "begin where this one began"
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


def read_said(rows: int, crc: int | None) -> str:
    return f"{rows} rows" + (f" with checksum {crc:08x}" if crc is not None else "")


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
            self._tables.append(table_of_emitted(self._call, self._fields, table))

    def tables(self) -> list[pa.Table]:
        self._flush()
        return self._tables

    def _flush(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._tables.append(table_of_emitted(self._call, self._fields, rows))


def table_of_emitted(call: str, fields: Fields, rows: pa.Table | Sequence[Sequence[Any]]) -> pa.Table:
    """Return what a spout's call has emitted as a table of its fields; `SpoutError` if it does not fit them."""
    try:
        return cast_table(rows, fields) if isinstance(rows, pa.Table) else table_of(fields, rows)
    except UNFIT as error:
        raise SpoutError(f"{call} emitted rows that do not fit its fields ({fields}): {error}") from error


def checksum(tables: Sequence[pa.Table]) -> int:
    """Return a checksum of the rows, however they are cut into tables, and whatever else is in the memory that holds them."""
    crc = 0
    for batch in pa.concat_tables(tables).combine_chunks().to_batches() if tables else ():
        columns = list(map(_without_hidden, batch.columns))
        crc = crc32(pa.RecordBatch.from_arrays(columns, schema=batch.schema).serialize(), crc)
    return crc


def _without_hidden(column: pa.Array) -> pa.Array:
    """Return a column without what lies below its nulls, or beside what it shows, of which `serialize` writes some bytes."""
    is_nested, hides = pa.types.is_nested(column.type), column.nbytes != column.get_total_buffer_size()
    if not (is_nested or hides or column.null_count or pa.types.is_boolean(column.type)):
        return column
    column = column.take(pa.array(np.arange(len(column))))
    if not is_nested:
        return column
    own, parts = (1, column.flatten()) if pa.types.is_struct(column.type) else (2, [column.values])
    shown = list(map(_without_hidden, parts))
    return pa.Array.from_buffers(column.type, len(column), column.buffers()[:own], column.null_count, children=shown)


def _not_plain(value: Any, place: str) -> str:
    if type(value) is int:
        return "" if -(1 << 63) <= value < 1 << 64 else f"{place} is an int of more than 64 bits"
    if type(value) in _PLAIN:
        return ""
    if type(value) is list:
        inner = [(one, f"{place}[{at}]") for at, one in enumerate(value)]
    elif type(value) is dict:
        if odd := [key for key in value if type(key) is not str]:
            return f"{place} has the key {odd[0]!r}, a {type(odd[0]).__name__}"
        inner = [(one, f"{place}[{key!r}]") for key, one in value.items()]
    else:
        return f"{place} is a {type(value).__name__}"
    return next(filter(None, (_not_plain(*one) for one in inner)), "")
