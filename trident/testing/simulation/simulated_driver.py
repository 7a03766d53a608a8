"""One driver of a simulated run: the production loop over watched stores, log and spouts, turned step by step."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from trident.config import Config
from trident.coordination.log_interface import MemoryLog
from trident.errors import ConfigError
from trident.fields import Fields
from trident.graph import Graph, Node, PersistNode, SpoutNode, StateNode
from trident.planner import make_plan
from trident.planner.guarantees import spout_type_of
from trident.runtime.drive import Drive
from trident.runtime.start.opened_topology import OpenedTopology
from trident.spout.interfaces import Definition, SpoutType, TransactionAttempt
from trident.state.backing_map import BackingMap, MapFacts
from trident.state.encoding.serializers import serializer_for
from trident.state.forwarding import MapWrapper, SerializedMap
from trident.state.interfaces import IBackingMap, Key, StateConf, StateSpec, StateType, StoreFacts
from trident.state.map_state import BackingMapFactory, MapStateFactory
from trident.state.sentinel import is_sentinel_key
from trident.state.txid import Sentinel
from trident.testing.backend.faulty_map import InjectedFault
from trident.testing.simulation.fault_plan import Fault
from trident.testing.topology.stand_ins import GivenSpout, HandClock, Unheard, WatchedLog, over_maps


class Died(BaseException):
    """The driver is dead; nothing in it may handle that."""


class SimulationEnvironment(Protocol):
    """The run that a driver is in: what outlives the driver, and what it asks.

    `rows`: by stream.
    `opened`: gets what a driver opens, for whoever closes it.
    """

    graph: Graph
    config: Config
    rows: Mapping[str, pa.Table]
    stores: dict[str, SimulatedStore]
    log: MemoryLog
    opened: list[OpenedTopology]

    def due(self, point: str, txid: int, state: str, last: bool = True) -> Fault | None:
        """Return what goes wrong at a point, if anything; not again if this was the `last` question."""

    def rows_of(self, stream: str, txid: int) -> int:
        """Return how many rows of a stream a batch takes, which is asked for once more."""

    def note(self, text: str, attempt: TransactionAttempt | None = None) -> None:
        """Add a line to the trace."""

    def happens(self, fault: Fault, attempt: TransactionAttempt) -> None:
        """See to a fault, which happens now: a successor works while the caller is paused, a store loses the last batch."""


class FaultHooks:
    """The points that one driver comes by: there it goes on, fails, dies, or is paused."""

    def __init__(self, world: SimulationEnvironment, txid: int) -> None:
        self.world, self._starting = world, txid
        self._attempt: TransactionAttempt | None = None  # that commits
        self.is_dead = self.fences = False

    def __reduce__(self) -> tuple[Any, ...]:
        return object, ()  # a worker has no part in the simulation

    def observe(self, point: str, attempt: TransactionAttempt) -> None:
        if point == "committing":
            self._attempt = attempt
        if point == "recorded":
            self.world.note("committed", attempt)
        if point in ("defined", "processed", "recorded"):
            self.reach(point, txid=attempt.txid)

    def is_due(self, point: str, state: str) -> bool:
        return self._attempt is not None and self.world.due(point, self._attempt.txid, state, False) is not None

    def reach(self, point: str, state: str = "", txid: int = 0) -> None:
        """Come by a point of a batch: of the running commit, where no other is given."""
        if self.is_dead:
            raise Died
        attempt = None if txid else self._attempt
        fault = self.world.due(point, txid or (self._starting if attempt is None else attempt.txid), state)
        if fault is not None:
            if fault.kind == "pause" and not self.fences and fault.is_in_commit:
                fault = replace(fault, kind="crash")  # no store is there to refuse what it would write later
            self.world.happens(fault, attempt or TransactionAttempt(fault.txid, 0))
            if fault.kind in ("error", "lost_answer"):
                raise InjectedFault(f"simulated: {fault}")
            if fault.kind != "pause" and not fault.is_live:
                self.is_dead = True
                raise Died


class SimulatedSpout(GivenSpout):
    """A spout whose batches the plan cuts. Definitions are `{"from": n, "until": n}`, numbers of rows."""

    def __init__(self, stream: str, fields: Fields, spout_type: SpoutType, rows: pa.Table, seam: FaultHooks) -> None:
        super().__init__(stream, fields, spout_type)
        self._rows, self._seam = rows, seam

    def get_emitter(self, conf: Mapping[str, Any]) -> _WatchedEmitter:
        return _WatchedEmitter(self._seam)

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Take the rows behind those of the batch before; None at the end."""
        begin = 0 if previous is None else int(previous["until"])
        if begin >= self._rows.num_rows:
            return None
        self._seam.reach("define", txid=txid)
        return {"from": begin, "until": min(self._rows.num_rows, begin + self._seam.world.rows_of(self.stream, txid))}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        begin, until = int(definition["from"]), int(definition["until"])
        shown = f"rows {begin} to {until - 1}" if until > begin else "no rows"
        self._seam.world.note(f"{shown} of stream {self.stream!r}", attempt)
        return [(attempt.txid, self._rows.slice(begin, until - begin))]


class _WatchedEmitter:
    """Emits parts that carry their rows."""

    def __init__(self, seam: FaultHooks | None = None) -> None:
        self._seam = seam

    def __reduce__(self) -> tuple[Any, ...]:
        return _WatchedEmitter, ()  # a worker has no part in the simulation

    def emit(self, part: tuple[int, pa.Table]) -> Iterable[pa.Table]:
        txid, rows = part
        if self._seam is not None:
            self._seam.reach("read", txid=txid)
        return [rows]


class SimulatedStore:
    """What is stored of one state; it outlives the drivers of a run.

    `keys`: the keys that any map was given, for maps that cannot list theirs.
    """

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
        self._first.values.entries = dict(other._first.entries)
        for partition in {*self._data, *other._data}:
            self._data[partition].sentinel = other._data[partition].sentinel


class WatchedMap(MapWrapper):
    """A map whose puts a plan can let fail, in any of four ways; it lists its keys in any case."""

    def __init__(self, inner: IBackingMap[Any], state: str, store: SimulatedStore, seam: FaultHooks) -> None:
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
    seam: FaultHooks

    facts = StoreFacts(in_memory=True)

    def __call__(self, conf: StateConf, partition_index: int, num_partitions: int) -> WatchedMap:
        inner: IBackingMap[Any]
        if self.given is not None:
            inner = self.given(conf, partition_index, num_partitions)
        else:
            inner = self.store.open(partition_index)
            if not self.by_reference:
                inner = SerializedMap(inner, serializer_for("codec", self.kind))
        return WatchedMap(inner, self.state, self.store, self.seam)


def watched_spec(node: StateNode, store: SimulatedStore, seam: FaultHooks) -> StateSpec:
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
        return over_maps(spec, _WatchedMaps(given, factory.kind, spec.facts.in_memory, node.name, store, seam))
    if not _is_of_a_store(factory):
        return spec
    if spec.kind is None or type(factory).__module__.startswith("states.kafka."):
        raise ConfigError(
            f"state {node.name!r} of a {type(factory).__name__} cannot be simulated: no map in memory can stand for it; "
            "give the topology of the test another state in its place, such as a MemoryMapState"
        )
    return over_maps(spec, _WatchedMaps(None, spec.kind, spec.facts.in_memory, node.name, store, seam))


def _is_of_a_store(factory: object) -> bool:
    """Whether a factory is one of this project's stores, or is made by its parts for stores."""
    return type(factory).__module__.startswith(("states.", "trident.storekit."))


class SimulatedDriver:
    """Opens everything as a start of the topology does, over the stores and the log of the run, and takes them over."""

    def __init__(self, world: SimulationEnvironment, number: int) -> None:
        self.number = number
        self.seam = seam = FaultHooks(world, world.log.state.txid + 1)
        states = (
            replace(node, spec=watched_spec(node, world.stores[node.name], seam), migrate=None)
            for node in world.graph.states
        )
        graph = replace(
            world.graph, nodes=tuple(_of_driver(node, seam) for node in world.graph.nodes), states=tuple(states)
        )
        reopened = lambda states: world.log.reopen(True)  # noqa: E731
        self.opened = opened = OpenedTopology(graph, make_plan(graph), world.config, reopened, in_threads=False)
        opened.committer.reach = seam.reach
        opened.log = WatchedLog(opened.log, seam.reach)
        world.opened.append(opened)
        self.unfenced = tuple(name for name, each in opened.states.items() if not each[0].facts.fences)
        seam.fences = not self.unfenced
        self.loop = Drive(graph, opened, Unheard(graph.name), observer=seam.observe, clock=HandClock()).loop
        seam.reach("start")


def _of_driver(node: Node, seam: FaultHooks) -> Node:
    if isinstance(node, SpoutNode):
        promise = spout_type_of(node.spout)
        return replace(node, spout=SimulatedSpout(node.id, node.fields, promise, seam.world.rows[node.id], seam))
    if isinstance(node, PersistNode) and node.updater is not None:
        return replace(node, updater=copy.copy(node.updater))  # as in a process of its own
    return node
