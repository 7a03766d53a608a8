"""A whole topology as it was declared: its nodes, states, hints and loads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trident.errors import TopologyError

if TYPE_CHECKING:
    pass

from trident.graph.aggregations import StateNode
from trident.graph.nodes import DrpcNode, Node, SpoutNode


@dataclass(frozen=True)
class Graph:
    """A whole topology, in the order of declaration (so parents stand before children)."""

    name: str
    nodes: tuple[Node, ...]
    states: tuple[StateNode, ...]
    hints: dict[str, int] = field(default_factory=dict)
    memory_mb: dict[str, float] = field(default_factory=dict)
    placements: dict[str, str] = field(default_factory=dict)
    rename: dict[str, str] = field(default_factory=dict)

    def node(self, node_id: str) -> Node:
        """Return a node by id."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)

    def state(self, name: str) -> StateNode:
        """Return a state by name; `TopologyError` naming those that exist."""
        for state in self.states:
            if state.name == name:
                return state
        raise TopologyError(f"topology {self.name!r} has no state {name!r}; it has {[s.name for s in self.states]}")

    def children(self, node_id: str) -> list[Node]:
        """Return the nodes that take the tuples of a node, in order of declaration."""
        return [node for node in self.nodes if node_id in node.parents]

    def spouts(self) -> list[SpoutNode]:
        """Return the sources."""
        return [node for node in self.nodes if isinstance(node, SpoutNode)]

    def sources_of(self, node_id: str) -> list[SpoutNode]:
        """Return the spouts whose tuples reach a node."""
        above = {node_id, *self.above(node_id)}
        return [spout for spout in self.spouts() if spout.id in above]

    def functions(self) -> list[DrpcNode]:
        """Return where DRPC requests come in, one a function."""
        return [node for node in self.nodes if isinstance(node, DrpcNode)]

    def behind(self, node_id: str) -> list[Node]:
        """Return the nodes that a node's tuples reach, itself first, in order of declaration."""
        reached = {node_id}
        nodes = []
        for node in self.nodes:
            if node.id == node_id or any(parent in reached for parent in node.parents):
                reached.add(node.id)
                nodes.append(node)
        return nodes

    def of_batches(self) -> Graph:
        """Return the graph without what DRPC requests run through: no stream has tuples of both."""
        requests = {node.id for function in self.functions() for node in self.behind(function.id)}
        return replace(self, nodes=tuple(node for node in self.nodes if node.id not in requests))

    def above(self, node_id: str) -> set[str]:
        """Return the ids of all nodes whose tuples reach a node, without itself."""
        nodes: set[str] = set()
        waiting = list(self.node(node_id).parents)
        while waiting:
            parent = waiting.pop()
            if parent not in nodes:
                nodes.add(parent)
                waiting.extend(self.node(parent).parents)
        return nodes
