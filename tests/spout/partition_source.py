"""A source in partitions that tests can look into: rows in memory, partitions that come and go, calls that are noted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.harness.topology_runs import RowsState, keep, run_all
from trident import Fields, TridentTopology
from trident.spout import IOpaquePartitionedTridentSpout, IPartitionedTridentSpout, SpoutType, TransactionAttempt

FIELDS = Fields("partition: string", "n: bigint")


@dataclass
class Source:
    """Rows by partition. Copies of its spouts (by pickle) read the same one.

    Attributes
    ----------
    gone
        Partitions that are not there now.
    calls
        Each call of an emitter: the method, the attempt, the partition, what it was given.
    before
        Called with the partition before a reading; may raise.
    limit
        How many rows a reading gives at most.
    """

    rows: dict[str, list[int]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    limit: int = 3
    calls: list[tuple[str, TransactionAttempt, str, Any]] = field(default_factory=list)
    before: Callable[[str], object] = lambda partition: None
    ready: bool = True
    told: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    closed: int = 0
    arrow: bool = False
    quick: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        _kept[id(self)] = self
        return _the_same, (id(self),)

    def spout(self, kind: SpoutType) -> IPartitionedTridentSpout | IOpaquePartitionedTridentSpout:
        return Transactional(self) if kind is SpoutType.TRANSACTIONAL else Opaque(self)

    def of(self, method: str) -> list[tuple[int, str, Any]]:
        """Return the calls of a method: txid, partition, what it was given."""
        return [(attempt.txid, partition, given) for name, attempt, partition, given in self.calls if name == method]

    def is_ready(self, txid: int) -> bool:
        return self.ready

    def get_partitions_for_batch(self) -> list[str]:
        return sorted(set(self.rows) - self.gone)

    def success(self, txid: int, metadata: Mapping[str, Any]) -> None:
        self.told.append((txid, metadata))

    def close(self) -> None:
        self.closed += 1


_kept: dict[int, Source] = {}


def _the_same(id_: int) -> Source:
    return _kept[id_]


class Emitter:
    def __init__(self, source: Source) -> None:
        self.source = source

    @property
    def is_quick(self) -> bool:
        return self.source.quick

    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, collector: Any, partition: str, last_metadata: Any
    ) -> Any:
        self.source.calls.append(("new", attempt, partition, last_metadata))
        self.source.before(partition)
        start = last_metadata["end"] if last_metadata else 0
        rows = self.source.rows[partition][start : start + max(1, int(self.source.limit * collector.share))]
        if not rows:
            return last_metadata
        self._emit(collector, partition, rows)
        return {"start": start, "end": start + len(rows)}

    def emit_partition_batch(self, attempt: TransactionAttempt, collector: Any, partition: str, metadata: Any) -> None:
        self.source.calls.append(("again", attempt, partition, metadata))
        self._emit(collector, partition, self.source.rows[partition][metadata["start"] : metadata["end"]])

    def _emit(self, collector: Any, partition: str, rows: list[int]) -> None:
        if self.source.arrow:
            collector.emit_arrow(pa.table({"partition": [partition] * len(rows), "n": rows}))
            return
        for row in rows:
            collector.emit([partition, row])


class _OfSource:
    def __init__(self, source: Source) -> None:
        self.source = source

    def get_output_fields(self) -> Fields:
        return FIELDS

    def get_coordinator(self, conf: Mapping[str, Any]) -> Source:
        return self.source

    def get_emitter(self, conf: Mapping[str, Any]) -> Emitter:
        return Emitter(self.source)


class Transactional(_OfSource, IPartitionedTridentSpout):
    """Re-emits what its metadata say."""


class Opaque(_OfSource, IOpaquePartitionedTridentSpout):
    """Emits what is there."""


def emitted(spout: Any, engine: str = "in_process", observer: Any = None, **conf: Any) -> RowsState:
    """Run a topology of a spout alone, of which the stream is `s`; return its rows."""
    topology = TridentTopology("t")
    rows = keep(topology.new_stream("s", spout))
    run_all(topology, engine, observer=observer, **conf)
    return rows


def emitting(emitter: type[Any], source: Source | None = None, kind: SpoutType = SpoutType.TRANSACTIONAL) -> Any:
    """Return a spout, of a class `Spout`, with another emitter than `Emitter`."""
    base = Transactional if kind is SpoutType.TRANSACTIONAL else Opaque
    made: type[Any] = type("Spout", (base,), {"get_emitter": lambda self, conf: emitter(self.source)})
    return made(source or Source({"a": []}))
