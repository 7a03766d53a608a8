"""The operations of a plan and the edges between them, for statistics and pictures."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from trident.explain.labels import Stage, names_of, routing_text, stages_of, what
from trident.graph import ExchangeNode, Graph, Node, PersistNode, QueryNode, SpoutNode
from trident.observe.component_statistics import ComponentDescription, ComponentKind, Edge, state_node
from trident.planner import Fragment, Plan, Sink
from trident.planner.planner import is_entry

_SAME_TASK = "same task"


def operations_of_plan(
    graph: Graph, plan: Plan, in_executors: Collection[str] = (), parallelism: int = 1
) -> dict[str, ComponentDescription]:
    """Return the operations by id, stage by stage; one that runs in several stages belongs to the first.

    `in_executors`: the states that executors commit.
    `parallelism`: how many tasks run at once.
    """
    found: dict[str, ComponentDescription] = {}
    for number, stage in enumerate(stages_of(plan, in_executors), 1):
        for entry in stage.entries:
            tasks = _tasks(plan, graph.node(entry), stage, parallelism)
            slots = 1 if stage.driver else min(tasks, parallelism)
            for id_ in plan.fragments[entry].ids:
                node = graph.node(id_)
                kind, state = _operation_kind(graph, node)
                found.setdefault(
                    id_,
                    ComponentDescription(
                        id_, kind, id_.rpartition("/")[2], what(node), tasks, slots, number, stage.title, state
                    ),
                )
    return found


def _tasks(plan: Plan, entry: Node, stage: Stage, parallelism: int) -> int:
    if isinstance(entry, PersistNode):
        return plan.partitions[entry.state]
    if isinstance(entry, SpoutNode):
        return parallelism
    if entry.id in plan.exchanges:
        return plan.exchanges[entry.id].partitions or parallelism
    return 1 if stage.driver or not isinstance(entry, QueryNode) else plan.partitions[entry.state]


def _operation_kind(graph: Graph, node: Node) -> tuple[ComponentKind, str | None]:
    """Return what kind of operation a node is, and the state that it updates or queries."""
    if isinstance(node, SpoutNode):
        return "spout", None
    if isinstance(node, PersistNode):
        return "state", node.state
    if isinstance(node, QueryNode):
        return "query", node.state
    return ("exchange" if isinstance(node, ExchangeNode) and is_entry(graph, node) else "step"), None


def edges_of_plan(plan: Plan) -> list[Edge]:
    """Return the edges along which tuples go, then those along which queries read states."""
    edges = [edge for fragment in plan.fragments.values() for edge in _edges(plan, fragment)]
    nodes = [*plan.commits, *(step.node for fragment in plan.fragments.values() for step in fragment.steps)]
    edges += [
        Edge(state_node(node.state), node.id, "reads", reads=True) for node in nodes if isinstance(node, QueryNode)
    ]
    return list(dict.fromkeys(edges))


def _edges(plan: Plan, fragment: Fragment) -> Iterator[Edge]:
    for step in fragment.steps:
        for source in step.sources:
            yield Edge(source, step.id, _SAME_TASK)
    persists = {node.id: node for node in plan.commits if isinstance(node, PersistNode)}
    for sink in fragment.sinks:
        yield Edge(sink.source, sink.target, _grouping(sink, persists.get(sink.target)))


def _grouping(sink: Sink, persist: PersistNode | None) -> str:
    if sink.routing is not None:
        return routing_text(sink.routing)
    group = () if persist is None or persist.aggregation is None else persist.aggregation.group
    return f"by {names_of(group)}" if len(group) else "to the commit"
