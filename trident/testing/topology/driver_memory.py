"""The states of a topology in the memory of a test, in place of those on servers and in tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trident.errors import ConfigError
from trident.graph import Graph, StateNode
from trident.state.interfaces import IBackingMap, StateConf, StateSpec, StoreFacts
from trident.state.map_state import MapStateFactory
from trident.state.wrappers.forwarding import SerializedMap

if TYPE_CHECKING:
    from states.memory.state import MemoryData


def with_states_in_memory(graph: Graph) -> Graph:
    """Return the graph with each state in memory: the same kind, key, value, serializer and number of partitions.

    States that say that they are in memory stay as they are.

    Raises `ConfigError`: a state does not say that it is a map of a kind.
    """
    refused = [node for node in graph.states if not (node.spec.facts.in_memory or _is_map(node.spec))]
    if refused:
        raise ConfigError(
            f"topology {graph.name!r} cannot run with in_memory=True: {_named(refused)} not known as a map of a kind, so no "
            "map in memory can do the same. Declare the topology in a function that takes the state, and give it another one "
            "in the test; or let the factory say what it makes: facts = StoreFacts(in_memory=True) if it needs no server, "
            'kind = "opaque" (or another) and facts = StoreFacts(is_map=True) if its states are plain maps'
        )
    return replace(graph, states=tuple(map(_in_memory, graph.states)))


def _is_map(spec: StateSpec) -> bool:
    return spec.facts.is_map and spec.kind is not None


def _named(states: Sequence[StateNode]) -> str:
    names = [f"{node.name!r} ({node.spec.store or type(node.spec.factory).__name__})" for node in states]
    return f"state {names[0]} is" if len(names) == 1 else f"states {', '.join(names)} are"


def _in_memory(node: StateNode) -> StateNode:
    spec, factory = node.spec, node.spec.factory
    if spec.facts.in_memory:
        return node
    assert spec.kind is not None
    if isinstance(factory, MapStateFactory):  # with its cache and the key of its single value
        made = replace(factory, backing_map_factory=MapsInMemory(spec.facts))
    else:
        made = MapStateFactory(MapsInMemory(spec.facts), spec.kind)
    return replace(node, spec=replace(spec, factory=made))


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
