"""Spouts over the rows that a test gives, and states in its memory, in place of declared ones."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from trident.arrow import UNFIT, Misfit, table_of
from trident.errors import ConfigError, ReplayMismatchError, TridentError
from trident.fields import Fields
from trident.graph import Graph, StateNode
from trident.spout.interfaces import Definition, SpoutType, TransactionAttempt
from trident.state.forwarding import SerializedMap
from trident.state.interfaces import IBackingMap, StateConf, StateSpec, StoreFacts
from trident.state.map_state import BackingMapFactory, MapStateFactory
from trident.testing.topology.watched_batches import FailurePoints

if TYPE_CHECKING:
    from states.memory.state import MemoryData


class GivenSpout:
    """What spouts over given rows share: the fields and the promise of a declared spout; rows that survive a restart."""

    def __init__(self, stream: str, fields: Fields, spout_type: SpoutType) -> None:
        self.stream, self.fields, self.spout_type = stream, fields, spout_type

    def get_output_fields(self) -> Fields:
        return self.fields

    def get_coordinator(self, conf: Mapping[str, Any]) -> Self:
        """Return the spout itself as the driver's side."""
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> Any:
        """Return the worker's side."""
        return GivenEmitter()

    def success(self, txid: int, definition: Definition) -> None:
        """Remember nothing."""

    def close(self) -> None:
        """Nothing is open."""


class GivenEmitter:
    """Emits parts that are their rows."""

    def emit(self, part: pa.Table) -> Iterable[pa.Table]:
        return [part]


class FedSpout(GivenSpout):
    """A spout that emits what it is fed.

    Definitions are `{"fed": id of the spout, "feed": n}`, n = 0, 1, 2 …
    """

    def __init__(self, stream: str, fields: Fields, spout_type: SpoutType, points: FailurePoints) -> None:
        super().__init__(stream, fields, spout_type)
        self._points = points
        self._id = uuid.uuid4().hex
        self._feeds: list[pa.Table] = []
        self._committed = 0

    def feed(self, rows: Sequence[Any]) -> None:
        """Queue the rows of a batch; `TridentError` for a row that does not fit the fields."""
        self._feeds.append(self._table("feed", rows))

    def replace(self, rows: Sequence[Any]) -> None:
        """Give the next attempt at the failed batch other rows."""
        if self.spout_type is SpoutType.TRANSACTIONAL:
            raise TridentError(
                f"replay({self.stream!r}): its spout is transactional, it promises that a replay holds the same rows. "
                "Call step() for that; only a spout of another type may emit other rows"
            )
        if self._committed == len(self._feeds):
            raise TridentError(f"replay({self.stream!r}): no rows that this stream was fed wait for a replay")
        self._feeds[self._committed] = self._table("replay", rows)

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Return the feed after the one of the batch before; None if it is not fed yet.

        A log that something else wrote before is continued with what is fed here.
        """
        own = self._is_own(previous)
        number = int(previous["feed"]) + 1 if own and previous is not None else self._committed
        if number >= len(self._feeds):
            return None
        self._points.reach("define")
        return {"fed": self._id, "feed": number}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[pa.Table]:
        if not self._is_own(definition):
            raise ReplayMismatchError(
                f"batch {attempt.txid} was defined as {definition!r} before this driver was made, and what it held is not "
                "known here; finish it where it began, or give a new log_dir"
            )
        return [self._feeds[int(definition["feed"])]]

    def success(self, txid: int, definition: Definition) -> None:
        """Remember that the feed is committed and will not be replayed."""
        self._committed = int(definition["feed"]) + 1

    def _is_own(self, definition: Definition | None) -> bool:
        return isinstance(definition, dict) and definition.get("fed") == self._id

    def _table(self, call: str, given: Sequence[Any]) -> pa.Table:
        return typed_rows(f"{call}({self.stream!r})", self.fields, given)


def typed_rows(call: str, fields: Fields, given: Sequence[Any]) -> pa.Table:
    """Return the table of rows: tuples, dicts by field, or bare values where there is one field.

    `call` begins the message of the `TridentError` for a row that does not fit.
    """
    rows = [_row(call, fields, number, row) for number, row in enumerate(given)]
    try:
        return table_of(fields, rows)
    except Misfit as misfit:
        said = f"is not a {misfit.declared}, the type of field {misfit.field!r} ({misfit.reason})"
        raise TridentError(f"{call}: row {misfit.at}: {misfit.shown} {said}") from misfit
    except UNFIT as error:
        raise TridentError(f"{call}: the rows do not fit the fields ({fields}): {error}") from error


def _row(call: str, fields: Fields, number: int, row: Any) -> Sequence[Any]:
    if isinstance(row, Mapping) and set(row) == set(fields.names):
        values: Sequence[Any] = [row[name] for name in fields.names]
    elif isinstance(row, (list, tuple)):
        values = row
    elif len(fields) == 1:
        values = (row,)
    else:
        raise TridentError(f"{call}: row {number} is {row!r}; give a tuple of {len(fields)} values ({fields})")
    if len(values) != len(fields):
        raise TridentError(
            f"{call}: row {number} has {len(values)} values {row!r}, the stream has {len(fields)} ({fields})"
        )
    return values


def with_states_in_memory(graph: Graph) -> Graph:
    """Return the graph with each state in memory: the same kind, key, value, serializer and number of partitions.

    States that say that they are in memory stay as they are.

    Raises `ConfigError`: a state does not say that it is a map of a kind.
    """
    specs = [(node, node.spec, node.spec.facts) for node in graph.states]
    refused = [node for node, spec, facts in specs if not (facts.in_memory or (facts.is_map and spec.kind is not None))]
    if refused:
        raise ConfigError(
            f"topology {graph.name!r} cannot run with in_memory=True: {_named(refused)} not known as a map of a kind, so no "
            "map in memory can do the same. Declare the topology in a function that takes the state, and give it another one "
            "in the test; or let the factory say what it makes: facts = StoreFacts(in_memory=True) if it needs no server, "
            'kind = "opaque" (or another) and facts = StoreFacts(is_map=True) if its states are plain maps'
        )
    in_memory = (
        node if facts.in_memory else replace(node, spec=over_maps(spec, MapsInMemory(facts)))
        for node, spec, facts in specs
    )
    return replace(graph, states=tuple(in_memory))


def _named(states: Sequence[StateNode]) -> str:
    names = [f"{node.name!r} ({node.spec.store or type(node.spec.factory).__name__})" for node in states]
    return f"state {names[0]} is" if len(names) == 1 else f"states {', '.join(names)} are"


def over_maps(spec: StateSpec, maps: BackingMapFactory) -> StateSpec:
    """Return the spec of a state of a kind over other maps, with its cache and the key of its single value."""
    assert spec.kind is not None
    if isinstance(spec.factory, MapStateFactory):
        return replace(spec, factory=replace(spec.factory, backing_map_factory=maps))
    return replace(spec, factory=MapStateFactory(maps, spec.kind))


class MapsInMemory:
    """Opens the partitions of one state, which share their keys; the values end with this object.

    `of_store`: what the store's factory says. What its serializer cannot write fails in a test too; without one, values stay
    objects.
    """

    def __init__(self, of_store: StoreFacts) -> None:
        self.facts = StoreFacts(in_memory=True, keeps_attempts=of_store.keeps_attempts)
        self._serializer = of_store.serializer
        self._data: dict[int, MemoryData] = {}

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> IBackingMap[Any]:
        """Open one partition, for writing or for reading."""
        from states.memory.state import MemoryBackingMap, MemoryData

        if partition_index not in self._data:
            self._data[partition_index] = MemoryData(beside=next(iter(self._data.values()), None))
        backing = MemoryBackingMap[Any](self._data[partition_index])
        backing.facts = replace(backing.facts, shares_keys=True)
        return backing if self._serializer is None else SerializedMap(backing, self._serializer)
