"""The plan of a DRPC function: its steps in order, each over all requests at once, and the step that gives the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trident.errors import TopologyError
from trident.graph import AggregateNode, Graph, Node, QueryNode, RepartitionNode, StateNode

__all__ = ["RequestPlan", "make_request_plan"]


@dataclass(frozen=True)
class RequestPlan:
    """How requests are answered.

    Attributes
    ----------
    topology, function
        Their names.
    nodes
        The source of requests, then the steps, parents before children. The last step gives the answer.
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
    nodes = _in_one_place(graph.behind(entry.id))
    queried = {node.state: graph.state(node.state) for node in nodes if isinstance(node, QueryNode)}
    return RequestPlan(graph.name, function, nodes, queried)


def _in_one_place(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes with each two-step aggregate as one step, because there is one partition only."""
    known = {node.id: node for node in nodes}
    needless: set[str] = set()
    found = []
    for node in nodes:
        exchange = known.get(node.parents[0]) if isinstance(node, AggregateNode) else None
        part = known.get(exchange.parents[0]) if isinstance(exchange, RepartitionNode) else None
        if isinstance(node, AggregateNode) and exchange and isinstance(part, AggregateNode) and part.partial:
            needless |= {exchange.id, part.id}
            node = replace(node, parents=part.parents, members=part.members)
        found.append(node)
    return tuple(node for node in found if node.id not in needless)
