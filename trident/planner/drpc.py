"""The plan of a DRPC function: its steps in order, each over all requests at once, and which one is the answer."""

from __future__ import annotations

from dataclasses import dataclass

from trident.errors import TopologyError
from trident.graph import Graph, Node, QueryNode, StateNode

__all__ = ["RequestPlan", "make_request_plan"]


@dataclass(frozen=True)
class RequestPlan:
    """How requests are answered.

    Attributes
    ----------
    topology, function
        Their names.
    nodes
        Where requests come in, then the steps, parents before children. The last one gives the answer.
    states
        The states that are queried, by name.
    """

    topology: str
    function: str
    nodes: tuple[Node, ...]
    states: dict[str, StateNode]


def make_request_plan(graph: Graph, function: str) -> RequestPlan:
    """Return the plan of a function; `TopologyError` naming those that there are."""
    entry = next((node for node in graph.functions() if node.function == function), None)
    if entry is None:
        raise TopologyError(
            f"topology {graph.name!r} has no DRPC function {function!r}; it has "
            f"{[node.function for node in graph.functions()]}. Declare one with new_drpc_stream(function)"
        )
    nodes = tuple(graph.behind(entry.id))
    queried = {node.state: graph.state(node.state) for node in nodes if isinstance(node, QueryNode)}
    return RequestPlan(graph.name, function, nodes, queried)
