"""Which states of a topology a simulation compares, and all that is in one of them."""

from __future__ import annotations

from typing import Any

from trident.errors import ConfigError
from trident.graph import Graph, JoinWithinNode, PersistNode, StateNode, WindowNode
from trident.runtime.start.opened_topology import OpenedTopology

Contents = dict[str, dict[Any, Any]]
"""What is in each state: by key, the value."""


def written_states(graph: Graph) -> list[str]:
    """Return the states that batches write."""
    return [node.state for node in graph.nodes if isinstance(node, PersistNode)]


def compared_states(graph: Graph) -> list[str]:
    """Return the states whose contents do not depend on how rows are cut: not what windows and joins keep meanwhile."""
    persists = [node for node in graph.nodes if isinstance(node, PersistNode)]
    return [node.state for node in persists if not isinstance(node, (WindowNode, JoinWithinNode))]


def contents_of(opened: OpenedTopology, node: StateNode) -> dict[Any, Any]:
    """Read all of a state. Raises `ConfigError`: the state has no method for that."""
    view, writer = opened.view(node.name), opened.states[node.name][0]
    if not len(node.key_fields) and len(node.value):
        return {(): view.get()}
    if not (writer.offers("get_tuples") or writer.offers("get_tuples_at")):
        raise ConfigError(
            f"state {node.name!r} ({type(writer.given).__name__}) cannot be compared: it has no get_tuples(); write one that "
            f"gives a row for each key, or leave the state out with ignore=[{node.name!r}]"
        )
    rows = list(view.get_tuples())
    found: dict[Any, Any] = {}
    for row in rows:
        key = row[:-1]
        found[key] = (*found[key], row[-1]) if key in found else (row[-1],)
    return {key: values[0] if len(values) == 1 else sorted(values, key=repr) for key, values in found.items()}
