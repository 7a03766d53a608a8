"""One line for each kind of step: what it does to which fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trident.fields import Fields
from trident.graph import (
    AggregateNode,
    DrpcNode,
    EachNode,
    FilterNode,
    JoinNode,
    JoinWithinNode,
    MapNode,
    Member,
    MergeNode,
    MultiReduceNode,
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
from trident.operations.expressions import Expression, col
from trident.operations.names import operation_name

_ROUTINGS = {
    "shuffle": "in turn",
    "broadcast": "to all",
    "global": "into one",
    "identity": "stays",
}


def names_of(fields: Fields | Sequence[str]) -> str:
    """Return the names of fields, in order."""
    return ", ".join(fields)


def routing_text(routing: Routing) -> str:
    """Return where a routing sends a tuple."""
    if routing.kind == "hash":
        return f"by {names_of(routing.fields)}"
    if routing.kind == "custom":
        return f"as {operation_name(routing.function)} says"
    return _ROUTINGS[routing.kind]


def what(node: Node) -> str:
    """Return what a step does, in one line."""
    return next(text(node) for kind, text in _WHAT if isinstance(node, kind))


def _join(node: JoinNode) -> str:
    keys = " = ".join(f"({names_of(group)})" for group in node.groups)
    sides = ", ".join("outer" if outer else "inner" for outer in node.outer)
    return f"join {keys} ({sides}) -> {names_of(node.fields)}"


def _persisted(node: PersistNode) -> str:
    aggregation = node.aggregation
    if aggregation is None:
        return f"persist {node.state}: {_call(node.updater, node.inputs)}"
    called = _call(aggregation.aggregator, aggregation.inputs)
    pairs = zip(node.removals, node.parents[1:], strict=True)
    removed = "".join(f"; removes {names_of(key)} of {stream}" for key, stream in pairs)
    return f"persist {node.state}: {called} -> {names_of(aggregation.output)}{_by(aggregation.group)}{removed}"


def _named(name: str, expression: Expression) -> str:
    return name if repr(expression) == repr(col(name)) else f"{name} = {expression!r}"


def _call(operation: Any, inputs: Fields) -> str:
    if isinstance(operation, Expression):
        return repr(operation)
    return f"{operation_name(operation)}({names_of(inputs)})"


def _member(member: Member) -> str:
    return f"{_call(member.aggregator, member.inputs)} -> {names_of(member.outputs)}"


def _by(group: Fields) -> str:
    return f" by {names_of(group)}" if len(group) else ""


_WHAT: Sequence[tuple[type[Node], Callable[[Any], str]]] = (  # the first class that a node is of
    (DrpcNode, lambda node: f"requests of {node.function}"),
    (SpoutNode, lambda node: f"spout {operation_name(node.spout)}"),
    (EachNode, lambda node: f"each {_call(node.function, node.inputs)} -> {node.outputs}"),
    (FilterNode, lambda node: f"filter {_call(node.filter, node.inputs)}"),
    (MapNode, lambda node: f"{'flat_map' if node.flat else 'map'} {operation_name(node.function)} -> {node.fields}"),
    (PeekNode, lambda node: f"peek {operation_name(node.consumer)}"),
    (ProjectNode, lambda node: f"project {names_of(node.fields)}"),
    (SelectNode, lambda node: f"select {', '.join(map(_named, node.fields.names, node.expressions))}"),
    (MergeNode, lambda node: f"merge {len(node.parents)} streams -> {names_of(node.fields)}"),
    (
        AggregateNode,
        lambda node: (
            f"aggregate{' in part' if node.partial else ''}{_by(node.group)}: {', '.join(map(_member, node.members))}"
        ),
    ),
    (
        QueryNode,
        lambda node: (
            f"query {node.state}: {_call(node.function, node.inputs)} -> {node.outputs}"
            f"{', sees this batch' if node.sees_batch else ''}"
        ),
    ),
    (JoinWithinNode, lambda node: f"join within {node.state}: {node} -> {names_of(node.fields)}"),
    (
        WindowNode,
        lambda node: f"{node.config.what} {node.state}: {node.config}{_by(node.group)}: {_member(node.member)}",
    ),
    (PersistNode, _persisted),
    (RepartitionNode, lambda node: f"repartition {routing_text(node.routing)}"),
    (JoinNode, _join),
    (
        MultiReduceNode,
        lambda node: f"multi_reduce {operation_name(node.reducer)} of {len(node.parents)} streams{_by(node.groups[0])}",
    ),
)
