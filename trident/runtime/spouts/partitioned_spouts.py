"""Partitioned spouts as the driver loop sees them.

A complete definition is plain data:

``read``
    By partition with rows in this batch, `{"meta": metadata, "rows": number}`; of a transactional spout also `crc`, the
    checksum of the rows.
``kept``
    The last metadata of all other partitions that were ever read, so that each finds its place when it is back.
``bytes``
    The size of the rows.

Where reading costs a Spark job, the driver looks by itself whether an idle source has anything, so that idleness costs none: it
reads all partitions, and what it finds is shipped as the next batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from trident.errors import PartitionLostError, SpoutError, TopologyError
from trident.fields import Fields
from trident.roles import adapted, lacking, missing
from trident.runtime.engine.partition_reader import NewPart, PartitionReader, ReplayedPart, RowsPart
from trident.spout.completing import PartitionRead
from trident.spout.interfaces import BatchCoordinator, Definition, Lag, SpoutType, TransactionAttempt
from trident.spout.partitioned import (
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    OpaquePartitionedEmitter,
    PartitionedCoordinator,
    PartitionedEmitter,
)

_LOOK = 0
"""The attempt number while the driver looks; no attempt has this number."""

Metadata = dict[str, Any]


class PartitionedTridentSpoutExecutor:
    """A partitioned spout, transactional or opaque, as an `ITridentSpout`.

    Different from Storm: a transactional spout's metadata of all partitions is one record in the log, written before the
    commit begins; an opaque spout's is part of the commit record. The list of partitions is the coordinator's, asked for each
    attempt that reads; tasks are given partitions batch by batch, so nothing has to be refreshed.
    """

    def __init__(self, spout: IPartitionedTridentSpout | IOpaquePartitionedTridentSpout) -> None:
        self._spout, self._name = spout, type(spout).__name__
        self.spout_type = spout.spout_type

    def get_output_fields(self) -> Fields:
        return self._spout.get_output_fields()

    def get_coordinator(self, conf: Mapping[str, Any]) -> PartitionsCoordinator:
        """Open the driver's side."""
        coordinator = self._spout.get_coordinator(conf)
        if lacks := ", ".join(lacking(PartitionedCoordinator, coordinator)):
            raise self._lacks("get_coordinator", coordinator, PartitionedCoordinator, lacks)
        own: PartitionedCoordinator = adapted(PartitionedCoordinator, coordinator)
        return PartitionsCoordinator(self._name, own, self.get_emitter(conf), _looks(conf))

    def get_emitter(self, conf: Mapping[str, Any]) -> PartitionReader:
        """Return the worker's side."""
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


class _Looking:
    """Whether the driver reads the next batch.

    `most_bytes`: how large a batch may be for the driver to read the next one too.
    """

    def __init__(self, most_bytes: int, begins: bool) -> None:
        self._most_bytes, self.now = most_bytes, begins

    def read(self, size: int) -> None:
        """Note the size of what was read, 0 if that was nothing."""
        self.now = size <= self._most_bytes


def _looks(conf: Mapping[str, Any]) -> _Looking:
    """Look where a worker's look would cost a Spark job; with `engine="auto"`, read all small batches, which need no Spark."""
    if conf.get("engine") == "auto":
        return _Looking(conf["auto_bytes"], begins=True)
    return _Looking(0 if conf.get("engine") == "spark" else -1, begins=False)


class PartitionsCoordinator(BatchCoordinator):
    """The driver's side of any partitioned spout; runs the user's. Completed by processing."""

    def __init__(
        self, name: str, coordinator: PartitionedCoordinator, reader: PartitionReader, looking: _Looking
    ) -> None:
        self._name, self._coordinator, self._reader, self._looking = name, coordinator, reader, looking
        self._share = 1.0
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
        return self._look(txid, begun) if self._looking.now else begun

    def is_complete(self, definition: Definition) -> bool:
        return "read" in definition

    def complete(self, definition: Definition, read: Mapping[str, PartitionRead]) -> Definition | None:
        """Return the definition with the metadata of all partitions; None if there are neither rows nor new metadata."""
        last: Metadata = definition["last"]
        unread = [name for name in definition["partitions"] if name not in read]
        if unread:
            raise SpoutError(f"{self._name}: the workers returned no metadata of the partitions {unread}")
        given = [read[name] for name in definition["partitions"]]
        size = sum(one.size for one in given)
        self._looking.read(size)
        if not any(one.rows or one.metadata != last.get(one.partition) for one in given):
            return None
        entries = {one.partition: _entry(one) for one in given if one.rows}
        latest = {**last, **{one.partition: one.metadata for one in given}}
        others = {name: metadata for name, metadata in latest.items() if name not in entries and metadata is not None}
        return {"read": entries, "kept": others, "bytes": size}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        """Return a part for each partition, so that one task reads it in order."""
        if not self.is_complete(definition):
            last = definition["last"]
            return [NewPart(attempt, name, last.get(name), self._share) for name in definition["partitions"]]
        if attempt.txid in self._tables:
            return [RowsPart(table) for table in self._tables[attempt.txid].values()]
        entries = definition["read"]
        there = self._partitions() if entries else []
        lost = [name for name in entries if name not in there]
        if lost:
            raise PartitionLostError(self._name, attempt.txid, _listed(lost), _listed(there))
        return [
            ReplayedPart(attempt, name, entry["meta"], entry["rows"], entry.get("crc"))
            for name, entry in entries.items()
        ]

    def size(self, definition: Definition) -> int | None:
        """Say how many bytes the rows take; None before they are read."""
        size: int | None = definition.get("bytes")
        return size

    def throttle(self, share: float) -> None:
        self._share = share

    def success(self, txid: int, definition: Definition) -> None:
        """Forget the batch and notify the user's coordinator."""
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


def _listed(names: Sequence[str]) -> str:
    said = ", ".join(map(repr, names[:5])) or "none"
    return said if len(names) <= 5 else f"{said} and {len(names) - 5} more"


def _entry(read: PartitionRead) -> dict[str, Any]:
    entry = {"meta": read.metadata, "rows": read.rows}
    return entry if read.crc is None else {**entry, "crc": read.crc}
