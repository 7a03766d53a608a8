"""The stores of a simulated run: one in memory in place of a store's own, and the points around each put of any map."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from trident.errors import ConfigError
from trident.graph import StateNode
from trident.state.backing_map import BackingMap, MapFacts
from trident.state.encoding.serializers import serializer_for
from trident.state.interfaces import IBackingMap, Key, StateConf, StateSpec, StateType, StoreFacts
from trident.state.map_state import BackingMapFactory, MapStateFactory
from trident.state.sentinel import is_sentinel_key
from trident.state.txid import Sentinel
from trident.state.wrappers.forwarding import MapWrapper, SerializedMap


class StoreSeam(Protocol):
    """What the stores of a simulated driver ask of it."""

    def reach(self, point: str, state: str = "", txid: int = 0) -> None:
        """Come by a point of a batch."""

    def is_due(self, point: str, state: str) -> bool:
        """Whether something goes wrong at a point."""


class SimulatedStore:
    """What is stored of one state; it outlives the drivers of a run.

    `keys`: the keys that any map was given, for maps that cannot list theirs.
    """

    def __init__(self) -> None:
        from states.memory.data import MemoryData

        self.keys: dict[Key, None] = {}
        self._first = first = MemoryData()
        self._data = defaultdict[int, MemoryData](lambda: MemoryData(beside=first))

    @property
    def sentinels(self) -> dict[int, Sentinel]:
        """The sentinels that were laid, by partition."""
        return {partition: data.sentinel for partition, data in self._data.items() if data.sentinel is not None}

    def open(self, partition: int) -> BackingMap:
        """Return a map that fences writers, and writes the puts of a commit one by one, as most stores do."""
        from states.memory.map import MemoryBackingMap

        backing = MemoryBackingMap[Any](self._data[partition])
        backing.facts = MapFacts(shares_keys=True)
        return backing

    def copied(self) -> SimulatedStore:
        """Return what is stored now."""
        copy = SimulatedStore()
        copy.keys = self.keys
        copy.set_to(self)
        return copy

    def set_to(self, other: SimulatedStore) -> None:
        """Store what another one does."""
        self._first.values.entries = dict(other._first.entries)
        for partition in {*self._data, *other._data}:
            self._data[partition].sentinel = other._data[partition].sentinel


class WatchedMap(MapWrapper):
    """A map whose puts a plan can let fail, in any of four ways; it lists its keys in any case."""

    def __init__(self, inner: IBackingMap[Any], state: str, store: SimulatedStore, seam: StoreSeam) -> None:
        super().__init__(inner)
        self._state, self._known, self._seam = state, store.keys, seam

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        if is_sentinel_key(keys):
            self.inner.multi_put(keys, values)
            return
        self._known.update(dict.fromkeys(keys))
        self._seam.reach("before put", self._state)
        if self._seam.is_due("half put", self._state):
            half = len(keys) // 2
            if half:
                self.inner.multi_put(keys[:half], values[:half])
            self._seam.reach("half put", self._state)
        self.inner.multi_put(keys, values)
        self._seam.reach("after put", self._state)

    def key_pages(self) -> Iterator[Sequence[Key]]:
        return self.inner.key_pages() if self.inner.offers("key_pages") else iter([list(self._known)])

    def offers(self, method: str) -> bool:
        return method == "key_pages" or super().offers(method)


@dataclass(frozen=True)
class _WatchedMaps:
    """Opens the maps of a state: those of its own factory, or simulated ones."""

    given: BackingMapFactory | None
    kind: StateType
    by_reference: bool
    state: str
    store: SimulatedStore
    seam: StoreSeam

    facts = StoreFacts(in_memory=True)

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> WatchedMap:
        """Open a partition."""
        inner: IBackingMap[Any]
        if self.given is not None:
            inner = self.given(conf, partition_index, num_partitions)
        else:
            inner = self.store.open(partition_index)
            if not self.by_reference:
                inner = SerializedMap(inner, serializer_for("codec", self.kind))
        return WatchedMap(inner, self.state, self.store, self.seam)


def watched_spec(node: StateNode, store: SimulatedStore, seam: StoreSeam) -> StateSpec:
    """Return the spec of a state with the points of a plan: over its own maps, or over simulated ones of its kind.

    The state of a user's own factory stays what it is.

    Raises `ConfigError`: the store is none that a map in memory can stand for.
    """
    spec, factory = node.spec, node.spec.factory
    if node.static:
        return spec
    if isinstance(factory, MapStateFactory):
        maps = factory.backing_map_factory
        given = None if _is_of_a_store(maps) else maps
        watched = _WatchedMaps(given, factory.kind, spec.facts.in_memory, node.name, store, seam)
        return replace(spec, factory=replace(factory, backing_map_factory=watched))
    if not _is_of_a_store(factory):
        return spec
    if spec.kind is None or type(factory).__module__.startswith("states.kafka."):
        raise ConfigError(
            f"state {node.name!r} of a {type(factory).__name__} cannot be simulated: no map in memory can stand for it; "
            "give the topology of the test another state in its place, such as a MemoryMapState"
        )
    watched = _WatchedMaps(None, spec.kind, spec.facts.in_memory, node.name, store, seam)
    return replace(spec, factory=MapStateFactory(watched, spec.kind))


def _is_of_a_store(factory: object) -> bool:
    """Whether a factory is one of this project's stores, or is made by its parts for stores."""
    return type(factory).__module__.startswith(("states.", "trident.storekit."))
