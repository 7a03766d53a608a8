"""What a simulated driver writes to: maps over a store that outlives it, and the points where a plan lets it fail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trident.errors import ConfigError
from trident.graph import StateNode
from trident.spout.interfaces import TransactionAttempt
from trident.state.backing_map import BackingMap, MapFacts
from trident.state.encoding.serializers import serializer_for
from trident.state.forwarding import MapWrapper, SerializedMap
from trident.state.interfaces import IBackingMap, Key, StateConf, StateSpec, StateType, StoreFacts
from trident.state.map_state import BackingMapFactory, MapStateFactory
from trident.state.sentinel import is_sentinel_key
from trident.state.txid import Sentinel
from trident.testing.backend.faulty_map import InjectedFault
from trident.testing.simulation.fault_plan import Fault
from trident.testing.stand_ins import over_maps


class Died(BaseException):
    """The driver is dead; nothing in it may handle that."""


class FaultHooks:
    """The points that one driver comes by: there it goes on, fails, dies, or is paused.

    `due`: `(point, txid, state, last)`; returns what goes wrong there, if anything; not again if this was the `last` question.
    `happens`: sees to a fault, which happens now: a successor works while the caller is paused, a store loses a batch.
    """

    def __init__(
        self,
        due: Callable[[str, int, str, bool], Fault | None],
        happens: Callable[[Fault, TransactionAttempt], None],
        starting: int,
    ) -> None:
        self._due, self._happens, self._starting = due, happens, starting
        self._attempt: TransactionAttempt | None = None  # that commits
        self.is_dead = self.fences = False

    def __reduce__(self) -> tuple[Any, ...]:
        return object, ()  # a worker has no part in the simulation

    def observe(self, point: str, attempt: TransactionAttempt) -> None:
        if point == "committing":
            self._attempt = attempt
        if point in ("defined", "processed", "recorded"):
            self.reach(point, txid=attempt.txid)

    def is_due(self, point: str, state: str) -> bool:
        return self._attempt is not None and self._due(point, self._attempt.txid, state, False) is not None

    def reach(self, point: str, state: str = "", txid: int = 0) -> None:
        if self.is_dead:
            raise Died
        attempt = None if txid else self._attempt
        fault = self._due(point, txid or (self._starting if attempt is None else attempt.txid), state, True)
        if fault is not None:
            if fault.kind == "pause" and not self.fences and fault.is_in_commit:
                fault = replace(fault, kind="crash")  # no store is there to refuse what it would write later
            self._happens(fault, attempt or TransactionAttempt(fault.txid, 0))
            if fault.kind in ("error", "lost_answer"):
                raise InjectedFault(f"simulated: {fault}")
            if fault.kind != "pause" and not fault.is_live:
                self.is_dead = True
                raise Died


class SimulatedStore:
    """What is stored of one state; it outlives the drivers of a run. `keys`: for maps that cannot list theirs."""

    def __init__(self) -> None:
        from states.memory.state import MemoryData

        self.keys: dict[Key, None] = {}
        self._first = first = MemoryData()
        self._data = defaultdict[int, MemoryData](lambda: MemoryData(beside=first))

    @property
    def sentinels(self) -> dict[int, Sentinel]:
        return {partition: data.sentinel for partition, data in self._data.items() if data.sentinel is not None}

    def open(self, partition: int) -> BackingMap:
        """Return a map that fences writers, and writes the puts of a commit one by one, as most stores do."""
        from states.memory.state import MemoryBackingMap

        backing = MemoryBackingMap[Any](self._data[partition])
        backing.facts = MapFacts(shares_keys=True)
        return backing

    def copy(self) -> SimulatedStore:
        copy = SimulatedStore()
        copy.keys = self.keys
        copy.set_to(self)
        return copy

    def set_to(self, other: SimulatedStore) -> None:
        self._first.values.entries = dict(other._first.values.entries)
        for partition in {*self._data, *other._data}:
            self._data[partition].sentinel = other._data[partition].sentinel


class WatchedMap(MapWrapper):
    """A map whose puts a plan can let fail, in any of four ways; it lists its keys in any case."""

    def __init__(self, inner: IBackingMap[Any], state: str, store: SimulatedStore, hooks: FaultHooks) -> None:
        super().__init__(inner)
        self._state, self._known, self._hooks = state, store.keys, hooks

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        if is_sentinel_key(keys):
            self.inner.multi_put(keys, values)
            return
        self._known.update(dict.fromkeys(keys))
        self._hooks.reach("before put", self._state)
        if self._hooks.is_due("half put", self._state):
            half = len(keys) // 2
            if half:
                self.inner.multi_put(keys[:half], values[:half])
            self._hooks.reach("half put", self._state)
        self.inner.multi_put(keys, values)
        self._hooks.reach("after put", self._state)

    def key_pages(self) -> Iterator[Sequence[Key]]:
        return self.inner.key_pages() if self.inner.offers("key_pages") else iter([list(self._known)])

    def offers(self, method: str) -> bool:
        return method == "key_pages" or super().offers(method)


@dataclass(frozen=True)
class _WatchedMaps:
    given: BackingMapFactory | None
    kind: StateType
    by_reference: bool
    state: str
    store: SimulatedStore
    hooks: FaultHooks

    facts = StoreFacts(in_memory=True)

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> WatchedMap:
        inner: IBackingMap[Any]
        if self.given is not None:
            inner = self.given(conf, partition_index, num_partitions)
        else:
            inner = self.store.open(partition_index)
            if not self.by_reference:
                inner = SerializedMap(inner, serializer_for("codec", self.kind))
        return WatchedMap(inner, self.state, self.store, self.hooks)


def watched_spec(node: StateNode, store: SimulatedStore, hooks: FaultHooks) -> StateSpec:
    """Return the spec of a state with the points of a plan: over its own maps, or simulated ones; a user's own factory stays.

    Raises `ConfigError`: the store is none that a map in memory can stand for.
    """
    spec, factory = node.spec, node.spec.factory
    if node.static:
        return spec
    if isinstance(factory, MapStateFactory):
        maps = factory.backing_map_factory
        given = None if _is_of_a_store(maps) else maps
        return over_maps(spec, _WatchedMaps(given, factory.kind, spec.facts.in_memory, node.name, store, hooks))
    if not _is_of_a_store(factory):
        return spec
    if spec.kind is None or type(factory).__module__.startswith("states.kafka."):
        raise ConfigError(
            f"state {node.name!r} of a {type(factory).__name__} cannot be simulated: no map in memory can stand for it; "
            "give the topology of the test another state in its place, such as a MemoryMapState"
        )
    return over_maps(spec, _WatchedMaps(None, spec.kind, spec.facts.in_memory, node.name, store, hooks))


def _is_of_a_store(factory: object) -> bool:
    return type(factory).__module__.startswith(("states.", "trident.storekit."))
