"""Graph to plan: which steps fuse, which columns live, in which order a batch commits."""

from __future__ import annotations

from collections.abc import Iterator

from trident.errors import TopologyError
from trident.graph import (
    EachNode,
    FilterNode,
    Graph,
    MapNode,
    Node,
    PeekNode,
    PersistNode,
    ProjectNode,
    QueryNode,
    SpoutNode,
)
from trident.planner.plan import Fragment, Plan, Sink, Step

__all__ = ["make_plan"]


def make_plan(graph: Graph) -> Plan:
    """Return the plan of a graph; `TopologyError` if there is nothing to run."""
    spouts = tuple(graph.spouts())
    if not spouts:
        raise TopologyError(f"topology {graph.name!r} has no stream; begin with new_stream(name, spout)")
    commits = _commit_order(graph)
    if not commits and not any(isinstance(node, PeekNode) for node in graph.nodes):
        raise TopologyError(f"topology {graph.name!r} keeps nothing: no stream ends in a state or a peek")
    entries: list[Node] = [*spouts, *commits]
    fragments = {node.id: _fragment(graph, node) for node in entries}
    partitions = {
        node.state: graph.state(node.state).spec.required_num_partitions or graph.hints.get(node.id, 1)
        for node in commits
        if isinstance(node, PersistNode)
    }
    states = {state.name: state for state in graph.states}
    return Plan(graph.name, spouts, fragments, commits, states, partitions, dict(graph.hints))


def _commit_order(graph: Graph) -> tuple[PersistNode | QueryNode, ...]:
    """Parents before children; among those that may run, queries before persists, then as declared.

    A state without `prev` shows its latest write, so queries go first to see it as after the batch before.
    """
    waiting = [n for n in graph.nodes if isinstance(n, (PersistNode, QueryNode)) and _is_entry(graph, n)]
    order: list[PersistNode | QueryNode] = []
    while waiting:
        done = {node.id for node in order}
        ready = [node for node in waiting if _entries_above(graph, node) <= done]
        node = next((node for node in ready if isinstance(node, QueryNode)), ready[0])
        order.append(node)
        waiting.remove(node)
    return tuple(order)


def _is_entry(graph: Graph, node: Node) -> bool:
    """Whether a fragment begins at the node. A query of a static state is an ordinary step: it runs in the workers."""
    if isinstance(node, QueryNode):
        return not graph.state(node.state).static
    return isinstance(node, (SpoutNode, PersistNode))


def _entries_above(graph: Graph, node: Node) -> set[str]:
    """The persists and queries from which a node's tuples come."""
    above: set[str] = set()
    for parent in (graph.node(parent) for parent in node.parents):
        if _is_entry(graph, parent) and not isinstance(parent, SpoutNode):
            above.add(parent.id)
        above |= _entries_above(graph, parent)
    return above


def _fragment(graph: Graph, entry: Node) -> Fragment:
    inner = [node for node in _inside(graph, entry) if not _is_entry(graph, node)]
    sinks = tuple(
        _sink(node, source)
        for source in [entry, *inner]
        for node in graph.children(source.id)
        if isinstance(node, (PersistNode, QueryNode)) and _is_entry(graph, node)
    )
    needed = _live_columns(inner, sinks)
    steps = tuple(
        Step(node.id, node.parents[0], node, tuple(n for n in node.fields.names if n in needed.get(node.id, ())))
        for node in inner
    )
    return Fragment(entry.id, entry.fields, steps, sinks)


def _inside(graph: Graph, entry: Node) -> Iterator[Node]:
    """The steps that run in the entry's fragment, parents before children."""
    reached = {entry.id}
    for node in graph.nodes:
        if any(parent in reached for parent in node.parents):
            if not _is_entry(graph, node):
                reached.add(node.id)
            yield node


def _sink(node: PersistNode | QueryNode, source: Node) -> Sink:
    if isinstance(node, QueryNode):
        return Sink(node.id, source.id, source.fields)
    aggregation = node.aggregation
    if aggregation is None:
        return Sink(node.id, source.id, node.inputs)
    names = dict.fromkeys((*aggregation.group.names, *aggregation.inputs.names))
    return Sink(node.id, source.id, source.fields.select(list(names)), aggregation)


def _live_columns(nodes: list[Node], sinks: tuple[Sink, ...]) -> dict[str, set[str]]:
    """For each step, the output columns that a later step or a sink reads."""
    needed: dict[str, set[str]] = {}
    for sink in sinks:
        needed.setdefault(sink.source, set()).update(sink.fields.names)
    for node in reversed(nodes):
        own = needed.setdefault(node.id, set())
        needed.setdefault(node.parents[0], set()).update(_reads(node, own))
    return needed


def _reads(node: Node, needed: set[str]) -> set[str]:
    """The input columns that a step needs to give `needed`."""
    if isinstance(node, (EachNode, QueryNode)):
        return set(node.inputs.names) | (needed - set(node.outputs.names))
    if isinstance(node, (FilterNode, PeekNode)):
        return set(node.inputs.names) | needed
    if isinstance(node, MapNode):
        return set(node.inputs.names)
    assert isinstance(node, ProjectNode), node
    return needed
