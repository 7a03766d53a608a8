"""The graph as DOT (Graphviz) and as Mermaid: nodes in their stages, states beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trident.explain.labels import stages_of, what
from trident.graph import Graph, Node, PersistNode, QueryNode
from trident.planner import make_plan

_MERMAID = {"&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;", "`": "#96;", "\n": "<br/>"}


def to_dot(graph: Graph) -> str:
    """Return the graph in the language of Graphviz; `TopologyError` if there is nothing to run."""
    lines = [f"digraph {_dot(graph.name)} {{", "  rankdir=LR;", "  node [shape=box];"]
    for number, (title, nodes) in enumerate(_clusters(graph)):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_dot(title)};"]
        lines += [f"    {_dot(node.id)} [label={_dot(_label(node))}];" for node in nodes]
        lines.append("  }")
    lines += [f"  {_dot(f'state {s.name}')} [label={_dot(s.name)}, shape=cylinder];" for s in graph.states]
    for source, target, reads in _arrows(graph):
        lines.append(f"  {_dot(source)} -> {_dot(target)}{' [style=dashed]' if reads else ''};")
    return "\n".join([*lines, "}"]) + "\n"


def to_mermaid(graph: Graph) -> str:
    """Return the graph as a Mermaid flowchart; `TopologyError` if there is nothing to run."""
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
    """Yield the pairs that an arrow joins; True if a state is only read."""
    for node in graph.nodes:
        for parent in node.parents:
            yield parent, node.id, False
        if isinstance(node, PersistNode):
            yield node.id, f"state {node.state}", False
        if isinstance(node, QueryNode):
            yield f"state {node.state}", node.id, True


def _label(node: Node) -> str:
    return f"{node.id.rpartition('/')[2]}\n{what(node)}"


def _dot(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _mermaid(text: str) -> str:
    return "".join(_MERMAID.get(character, character) for character in text)


def _name(id_: str) -> str:
    """Return a node name that Mermaid accepts, different for each id."""
    return "n_" + re.sub(r"[^A-Za-z0-9]", lambda match: f"_{ord(match[0]):x}_", id_)
