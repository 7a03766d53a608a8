"""One fragment: the steps between an entry and the next entries, and the columns that they need."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from trident.fields import Fields
from trident.graph import (
    AggregateNode,
    EachNode,
    ExchangeNode,
    FilterNode,
    Graph,
    JoinWithinNode,
    MapNode,
    MergeNode,
    Node,
    PeekNode,
    PersistNode,
    ProjectNode,
    QueryNode,
    RepartitionNode,
    Routing,
    SelectNode,
    SpoutNode,
    WindowNode,
)
from trident.planner.plan import Exchange, Fragment, Sink, Step


def is_entry(graph: Graph, node: Node) -> bool:
    """Whether a fragment begins at the node. A query of a static state is an ordinary step: it runs in the workers."""
    if isinstance(node, QueryNode):
        return not graph.state(node.state).static
    if isinstance(node, RepartitionNode):
        return node.routing.kind != "identity"
    return isinstance(node, (SpoutNode, PersistNode, ExchangeNode))


def fragment_of(graph: Graph, entry: Node, exchanges: Mapping[str, Exchange]) -> Fragment:
    """Return the fragment that begins at an entry; `exchanges` are those behind it."""
    inner = [_inside(node, reached) for node, reached in _reached(graph, entry) if not is_entry(graph, node)]
    sinks = tuple(
        _sink(node, port, source, exchanges)
        for source in [entry, *inner]
        for node in graph.children(source.id)
        if is_entry(graph, node)
        for port, parent in enumerate(node.parents)
        if parent == source.id
    )
    needed = _live_columns(inner, sinks)
    steps = tuple(
        Step(node.id, node.parents, node, tuple(n for n in node.fields.names if n in needed.get(node.id, ())))
        for node in inner
    )
    fields = entry.fields
    if isinstance(
        entry, RepartitionNode
    ):  # sends only the columns that are read behind it, or that choose the partition
        fields = _some(fields, needed.get(entry.id, set()) | set(entry.routing.fields.names))
    return Fragment(entry.id, fields, steps, sinks)


def inputs_of(node: ExchangeNode, fragment: Fragment) -> tuple[Fields, ...]:
    """Return the fields that an exchange receives, by port."""
    if isinstance(node, RepartitionNode):
        return (fragment.fields,)
    return tuple(
        Fields.of(*zip(*{**_typed(group), **_typed(fields)}.items(), strict=True))
        for group, fields in zip(node.groups, node.inputs, strict=True)
    )


def _typed(fields: Fields) -> dict[str, str | None]:
    return dict(zip(fields.names, fields.types, strict=True))


def _some(fields: Fields, names: set[str]) -> Fields:
    """The named fields, in order, but at least one, because a table without columns loses its rows in transport."""
    return fields.select([name for name in fields.names if name in names] or list(fields.names[:1]))


def _reached(graph: Graph, entry: Node) -> Iterator[tuple[Node, set[str]]]:
    """Iterate over the nodes of the entry's fragment, parents before children, each with the nodes reached before it."""
    reached = {entry.id}
    for node in graph.nodes:
        if any(parent in reached for parent in node.parents):
            yield node, reached
            if not is_entry(graph, node):
                reached.add(node.id)


def _inside(node: Node, reached: set[str]) -> Node:
    """Return the node with its parents in this fragment only; the other parents' fragments have the step as well."""
    if not isinstance(node, MergeNode):
        return node
    pairs = [pair for pair in zip(node.parents, node.inputs, strict=True) if pair[0] in reached]
    return dataclasses.replace(node, parents=tuple(p for p, _ in pairs), inputs=tuple(f for _, f in pairs))


def _sink(node: Node, port: int, source: Node, exchanges: Mapping[str, Exchange]) -> Sink:
    if isinstance(node, ExchangeNode):
        return Sink(node.id, source.id, exchanges[node.id].inputs[port], None, port, _routing(node, port))
    if not isinstance(node, PersistNode):
        return Sink(node.id, source.id, source.fields)
    if isinstance(node, JoinWithinNode):
        return Sink(node.id, source.id, node.sides[port].fields, port=port, join=node)
    if isinstance(node, WindowNode):
        event_time = node.config.event_time
        time = [] if event_time is None else [event_time.field]
        read = (*node.group.names, *node.inputs.names, *time, *node.late.names)
        return Sink(node.id, source.id, source.fields.select(list(dict.fromkeys(read))), window=node)
    aggregation = node.aggregation
    if aggregation is None:
        return Sink(node.id, source.id, node.inputs)
    if port:
        removed = source.fields.select(list(node.removals[port - 1].names))
        return Sink(node.id, source.id, removed, port=port, removes=aggregation.group)
    names = dict.fromkeys((*aggregation.group.names, *aggregation.inputs.names))
    return Sink(node.id, source.id, source.fields.select(list(names)), aggregation)


def _routing(node: ExchangeNode, port: int) -> Routing:
    if isinstance(node, RepartitionNode):
        return node.routing
    return Routing("hash", node.groups[port]) if len(node.groups[port]) else Routing("global")


def _live_columns(nodes: list[Node], sinks: tuple[Sink, ...]) -> dict[str, set[str]]:
    """For each step and for the entry, the columns that a later step or a sink reads."""
    needed: dict[str, set[str]] = {}
    for sink in sinks:
        needed.setdefault(sink.source, set()).update(sink.fields.names)
    for node in reversed(nodes):
        own = needed.setdefault(node.id, set())
        for port, parent in enumerate(node.parents):
            needed.setdefault(parent, set()).update(_reads(node, port, own))
    return needed


def _reads(node: Node, port: int, needed: set[str]) -> set[str]:
    """The columns of one parent that a step needs to give `needed`."""
    if isinstance(node, (EachNode, QueryNode)):
        return set(node.inputs.names) | (needed - set(node.outputs.names))
    if isinstance(node, (FilterNode, PeekNode)):
        return set(node.inputs.names) | needed
    if isinstance(node, MapNode):
        return set(node.inputs.names)
    if isinstance(node, SelectNode):
        return {name for expression in node.needed(needed).values() for name in expression.fields()}
    if isinstance(node, AggregateNode):
        return {*node.group.names, *(name for member in node.members for name in member.inputs.names)}
    if isinstance(node, MergeNode):
        return {node.inputs[port].names[node.fields.position(name)] for name in needed}
    assert isinstance(node, (ProjectNode, RepartitionNode)), node
    return needed
