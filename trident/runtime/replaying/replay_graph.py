"""The graph of a replay: its states are aside in memory, and what only looks at tuples is left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import cloudpickle

from trident.config import Config
from trident.errors import UnsupportedOperation
from trident.graph import Graph, Node, PeekNode, PersistNode, QueryNode, SpoutNode, StateNode
from trident.planner import make_plan
from trident.planner.guarantees import spout_type_of
from trident.runtime.engine.runners import unseen
from trident.runtime.reading.open_partitions import make_state
from trident.spout.interfaces import IBatchSpout, SpoutType
from trident.spout.partitioned import PartitionedSpout
from trident.spout.query_batches import QueryBatches
from trident.state.columns.number_table import KeptValues
from trident.state.encoding.equal_keys import canonical_key
from trident.state.interfaces import IBackingMap, Key, StateConf, StateSpec, StateType, StoreFacts
from trident.state.map_commits import CommittedMap
from trident.state.map_state import SnapshottableMap
from trident.state.maps import OpaqueMap
from trident.state.values import UNKNOWN_ATTEMPT, CombinerValueUpdater, OpaqueValue

TOTAL: Key = ()
"""The key of a state that is a single value, aside."""

Below = Callable[[str, Sequence[Key]], Sequence[Any]]
"""Returns what a store has for keys of a state: a value per key, None for an absent one."""


class OverlayValues(KeptValues):
    """Values over those of a store, which is only read: what was not written here is as it is there."""

    def __init__(self, state: str, below: Below) -> None:
        super().__init__(may_be_columns=False)
        self._state, self._below = state, below

    def get(self, keys: Sequence[Key]) -> list[Any]:
        """Return a value per key: what was written here, else what the store has, as of before all batches."""
        missing = [key for key in keys if key not in self.entries]
        below = dict(zip(missing, self._below(self._state, missing), strict=True)) if missing else {}
        found = {key: OpaqueValue(0, UNKNOWN_ATTEMPT, None, value) for key, value in below.items() if value is not None}
        return [self.entries.get(key) or found.get(key) for key in keys]

    def delete(self, keys: Sequence[Key]) -> None:
        """Keep keys as removed: what the store has for them must not come back."""


class KeyWatch:
    """What a batch gives one key of a state: rows, and what their aggregate comes to.

    `fields`: the fields of the rows that are the key; none: all rows belong to it.
    `most`: how many rows of a batch are kept.
    `count`: how many rows of the batch have the key, in front of the state.
    `rows`: the first of them.
    `partials`: what a combiner made of them, to be combined with the value.
    """

    def __init__(self, state: str, key: Key, fields: Sequence[str], most: int) -> None:
        self.state, self.key, self._fields, self._most = state, key, fields, most
        self.begin()

    def begin(self) -> None:
        """Forget the batch before."""
        self.count = 0
        self.rows: list[dict[str, Any]] = []
        self.partials: list[Any] = []

    def accept(self, row: Any) -> None:
        """Keep a row that has the key, as the consumer of a `PeekNode`."""
        if not self._fields or canonical_key(tuple(row[name] for name in self._fields)) == self.key:
            self.count += 1
            if self.count <= self._most:
                self.rows.append({name: row[name] for name in row.fields})

    def note(self, keys: Sequence[Key], updaters: Sequence[Any]) -> None:
        """Keep what a commit combines with the value."""
        for at, key in enumerate(keys):
            if key == self.key and isinstance(updater := updaters[at], CombinerValueUpdater):
                self.partials.append(updater.arg)


class _WatchedMap(OpaqueMap):
    """A state aside of which one key is watched."""

    def __init__(self, backing: IBackingMap[Any], name: str, partition: int, watch: KeyWatch) -> None:
        super().__init__(backing, name, partition)
        self._watch = watch

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[Any]) -> list[Any]:
        self._watch.note(keys, updaters)
        return super().multi_update(keys, updaters)


@dataclass(frozen=True)
class ScratchState:
    """The `StateFactory` of a state aside: opaque, whatever the kind of the one in the store.

    Each batch is committed once and in order here, so that all kinds come to the same.
    """

    values: KeptValues
    watch: KeyWatch | None = None
    kind: StateType = StateType.OPAQUE
    facts: ClassVar[StoreFacts] = StoreFacts(in_memory=True, keeps_attempts=True)

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> SnapshottableMap:
        """Open one partition."""
        from states.memory.state import ColumnarMemoryMap, MemoryData

        data = MemoryData()
        data.values = self.values
        backing = ColumnarMemoryMap(data)
        backing.facts = replace(backing.facts, shares_keys=True, keeps_columns=self.values.may_be_columns)
        of = backing, conf.prefix, partition_index
        return SnapshottableMap(OpaqueMap(*of) if self.watch is None else _WatchedMap(*of, self.watch), TOTAL)


def replay_graph(
    graph: Graph, config: Config, watch: KeyWatch | None = None, below: Below | None = None
) -> tuple[Graph, dict[str, KeptValues], dict[str, str]]:
    """Return the graph with all that its batches update aside; by state, the values there, or why it is not aside.

    States begin empty, or with what is `below`.
    Raises `UnsupportedOperation`: a source does not give a batch again, or a state that cannot be aside is read by the
    topology.
    """
    graph = graph.of_batches()
    graph = replace(graph, nodes=_copied(graph.nodes))
    for spout in graph.spouts():
        _check_repeats(graph.name, spout)
    left_out = _left_out(graph, config)
    graph = without_states(graph, left_out)
    written = [state.name for state in graph.states if not state.static]
    values = {name: KeptValues() if below is None else OverlayValues(name, below) for name in written}
    if watch is not None and watch.state in values:
        values[watch.state] = KeptValues(may_be_columns=False)  # updated key by key
    states = tuple(state if state.static else _moved(state, values[state.name], watch) for state in graph.states)
    nodes = (*map(unseen, graph.nodes), *_watching(graph, watch))
    return replace(graph, nodes=nodes, states=states, placements={}), values, left_out


def _moved(state: StateNode, values: KeptValues, watch: KeyWatch | None) -> StateNode:
    factory = ScratchState(values, watch if watch is not None and watch.state == state.name else None)
    return replace(state, spec=StateSpec(factory, state.spec.required_num_partitions), migrate=None)


def without_states(graph: Graph, names: Collection[str]) -> Graph:
    """Return the graph without some states, and without what depends on them."""
    dropped: set[str] = set()
    for node in graph.nodes:
        uses = isinstance(node, PersistNode | QueryNode) and node.state in names
        if uses or dropped.intersection(node.parents):
            dropped.add(node.id)
    nodes = tuple(node for node in graph.nodes if node.id not in dropped)
    return replace(graph, nodes=nodes, states=tuple(state for state in graph.states if state.name not in names))


def _left_out(graph: Graph, config: Config) -> dict[str, str]:
    """Return the states that cannot be kept aside, and why not; refuse a topology that needs one, or has no other."""
    by_user = [node.state for node in graph.nodes if isinstance(node, PersistNode) and node.updater is not None]
    left_out = {name: _OWN for name in by_user if not _is_map(graph, config, name)}
    for name in left_out:
        _check_unread(graph, name)
    if all(state.static or state.name in left_out for state in graph.states):
        raise UnsupportedOperation(
            f"run the batches of topology {graph.name!r} again: of its states none can be kept aside. "
            + "; ".join(f"{name!r}: {why}" for name, why in left_out.items())
        )
    return left_out


def _copied(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return copies: a topology of this process may be running with the same objects, which a replay prepares and closes."""
    try:
        copies: tuple[Node, ...] = cloudpickle.loads(cloudpickle.dumps(nodes))
    except Exception:  # noqa: BLE001  pickling runs user code; what cannot be pickled is used as it is
        return nodes
    return copies


_OWN = "it is a state of a kind of its own, not a map"


def _check_repeats(topology: str, node: SpoutNode) -> None:
    promise, spout = spout_type_of(node.spout), node.spout
    asks_user = isinstance(spout, IBatchSpout) and not isinstance(spout, PartitionedSpout)
    is_query = isinstance(spout, QueryBatches)  # whose batches are Spark's
    if promise is SpoutType.NON_TRANSACTIONAL or (promise is SpoutType.OPAQUE and asks_user) or is_query:
        raise UnsupportedOperation(
            f"run the batches of topology {topology!r} again: the spout of stream {node.id!r}, a {type(spout).__name__}, is "
            f"{promise.value} and does not give the rows of a recorded batch again. Nothing was read. What it feeds cannot be "
            "compared or explained; sources that can be read again are files, tables, topics of Kafka and Redis Streams as logs"
        )


def _is_map(graph: Graph, config: Config, name: str) -> bool:
    """Whether an updater gets a map: only opening the state shows it, which writes nothing."""
    state = make_state(make_plan(graph), config, name, 0, 1, read_only=True)
    try:
        return isinstance(state, SnapshottableMap | CommittedMap)
    finally:
        state.close()


def _check_unread(graph: Graph, name: str) -> None:
    (writer,) = (node for node in graph.nodes if isinstance(node, PersistNode) and node.state == name)
    readers = [node.id for node in graph.nodes if isinstance(node, QueryNode) and node.state == name]
    readers += [node.id for node in graph.children(writer.id)]
    if readers:
        raise UnsupportedOperation(
            f"run the batches of topology {graph.name!r} again: {', '.join(map(repr, readers))} read state {name!r}, and "
            f"{_OWN}, so that it cannot be kept aside"
        )


def _watching(graph: Graph, watch: KeyWatch | None) -> Iterator[Node]:
    """Give what looks at the rows in front of the state that is watched."""
    if watch is None:
        return
    for writer in graph.nodes:
        if isinstance(writer, PersistNode) and writer.state == watch.state:
            parent = writer.parents[0]  # any other one only names keys
            fields = graph.node(parent).fields
            yield PeekNode(f"{parent}/watched", (parent,), fields, fields, watch)
