"""What pictures show of a topology: the graph as Mermaid, for the page its operations and their edges."""

import re
from collections.abc import Collection, Iterator

from trident.explain import routing_text, what
from trident.graph import ExchangeNode, Graph, Node, PersistNode, QueryNode, SpoutNode
from trident.observe.component_statistics import ComponentDescription, ComponentKind, Edge, state_node
from trident.plan import Fragment, Plan, Sink, make_plan
from trident.plan.plan import Stage, stages_of
from trident.plan.planner import is_entry

_MERMAID = {"&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;", "`": "#96;", "\n": "<br/>"}


def to_mermaid(graph: Graph) -> str:
    lines = ["flowchart LR"]
    for number, (title, nodes) in enumerate(_clusters(graph)):
        lines.append(f'  subgraph stage_{number}["{_mermaid(title)}"]')
        lines += [f'    {_name(node.id)}["{_mermaid(_label(node))}"]' for node in nodes]
        lines.append("  end")
    lines += [f'  {_name(f"state {s.name}")}[("{_mermaid(s.name)}")]' for s in graph.states]
    for source, target, reads in _arrows(graph):
        lines.append(f"  {_name(source)} {'-.->' if reads else '-->'} {_name(target)}")
    return "\n".join(lines) + "\n"


def _clusters(graph: Graph) -> Iterator[tuple[str, list[Node]]]:
    """The stages with their nodes; a step that runs in several is drawn in the first."""
    plan, drawn = make_plan(graph), set[str]()
    for stage in stages_of(plan):
        ids = [id_ for entry in stage.entries for id_ in plan.fragments[entry].ids if id_ not in drawn]
        ids = list(dict.fromkeys(ids))
        drawn.update(ids)
        yield stage.title, [graph.node(id_) for id_ in ids]
    requests = [node for node in graph.nodes if node.id not in drawn]
    if requests:
        yield "requests", requests


def _arrows(graph: Graph) -> Iterator[tuple[str, str, bool]]:
    for node in graph.nodes:
        for parent in node.parents:
            yield parent, node.id, False
        if isinstance(node, PersistNode):
            yield node.id, f"state {node.state}", False
        if isinstance(node, QueryNode):
            yield f"state {node.state}", node.id, True


def _label(node: Node) -> str:
    return f"{node.id.rpartition('/')[2]}\n{what(node)}"


def _mermaid(text: str) -> str:
    return "".join(_MERMAID.get(character, character) for character in text)


def _name(id_: str) -> str:
    """Return a node name that Mermaid accepts, different for each id."""
    return "n_" + re.sub(r"[^A-Za-z0-9]", lambda match: f"_{ord(match[0]):x}_", id_)


def operations_of_plan(
    graph: Graph, plan: Plan, in_executors: Collection[str] = (), parallelism: int = 1
) -> dict[str, ComponentDescription]:
    """Return the operations by id, stage by stage; one that runs in several stages belongs to the first."""
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
            yield Edge(source, step.id, "same task")
    persists = {node.id: node for node in plan.commits if isinstance(node, PersistNode)}
    for sink in fragment.sinks:
        yield Edge(sink.source, sink.target, _grouping(sink, persists.get(sink.target)))


def _grouping(sink: Sink, persist: PersistNode | None) -> str:
    if sink.routing is not None:
        return routing_text(sink.routing)
    group = () if persist is None or persist.aggregation is None else persist.aggregation.group
    return f"by {', '.join(group)}" if len(group) else "to the commit"
