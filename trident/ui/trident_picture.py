"""`Picture`: a Trident plan as nodes and edges: steps in their stages, states beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trident.explain.labels import routing_text, what
from trident.explain.stages import stages_of
from trident.graph import DrpcNode, Graph, Node, PersistNode, QueryNode, RepartitionNode, SpoutNode
from trident.planner import make_plan
from trident.ui.batch_figures import BatchFigures
from trident.ui.cluster_pages import Page

__all__ = ["Picture", "kind_of", "with_counts"]

_KIND = "Node"


class Picture:
    """Draws a plan again and again; what stays the same is worked out once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph.of_batches()
        self._stages, self._titles = _stages(graph)

    @property
    def steps(self) -> int:
        """How many steps batches run through."""
        return len(self._graph.nodes)

    def draw(self, states: Sequence[Mapping[str, Any]], figures: BatchFigures) -> Page:
        """Return nodes and edges; a rate is None where it is not counted."""
        return {
            "stages": self._titles,
            "nodes": [
                *(_step(node, self._stages.get(node.id), figures) for node in self._graph.nodes),
                *(_state(state, figures) for state in states),
            ],
            "edges": list(_edges(self._graph, figures)),
        }


_COUNTED = ("emitted", "executed", "failed", "capacity", "latencyMs", "tasks")


def with_counts(drawn: Page, counted: Page) -> Page:
    """Add what operations counted within a window to a picture; only the keys of states are those of the last batches."""
    operations = {node["id"]: node for node in counted["nodes"]}
    rates = {(edge["source"], edge["target"]): edge["tuplesPerSecond"] for edge in counted["edges"]}
    seconds = max(counted["windowSeconds"], 1e-3)
    for node in drawn["nodes"]:
        found = operations.get(node["id"])
        if found is not None:
            node.update({key: found[key] for key in _COUNTED})
            counts = found["emitted"] if node["kind"] == "spout" else found["executed"]
            node["perSecond"] = counts / seconds
    for edge in drawn["edges"]:
        edge["tuplesPerSecond"] = rates.get((edge["source"], edge["target"]), edge["tuplesPerSecond"])
    return {**drawn, "window": counted["window"], "windowSeconds": counted["windowSeconds"]}


def _stages(graph: Graph) -> tuple[dict[str, int], list[Page]]:
    plan, found, titles = make_plan(graph), dict[str, int](), list[Page]()
    for number, stage in enumerate(stages_of(plan)):
        titles.append({"number": number, "title": stage.title})
        for entry in stage.entries:
            for each in plan.fragments[entry].ids:
                found.setdefault(each, number)
    return found, titles


def _step(node: Node, stage: int | None, figures: BatchFigures) -> Page:
    rate = figures.per_second(figures.rows.get(node.id, 0)) if isinstance(node, SpoutNode) else None
    return {
        "id": node.id,
        "label": node.id.rpartition("/")[2],
        "kind": kind_of(node),
        "detail": what(node),
        "stage": stage,
        "perSecond": rate,
        "unit": "tuples",
    }


def kind_of(node: Node) -> str:
    """Return what a node is, in one word."""
    if isinstance(node, SpoutNode | DrpcNode):
        return "spout"
    if isinstance(node, PersistNode):
        return "persist"
    if isinstance(node, QueryNode):
        return "query"
    return type(node).__name__.removesuffix(_KIND).lower()


def _state(state: Mapping[str, Any], figures: BatchFigures) -> Page:
    return {
        "id": f"state {state['state']}",
        "label": state["state"],
        "kind": "state",
        "detail": f"{state['kind'] or 'own kind'} in {state['store']}",
        "guarantee": state["guarantee"],
        "stage": None,
        "perSecond": figures.per_second(figures.keys.get(state["state"], 0)),
        "unit": "keys",
        "isState": True,
    }


def _edges(graph: Graph, figures: BatchFigures) -> Iterator[Page]:
    nodes = {node.id: node for node in graph.nodes}
    for node in graph.nodes:
        for parent in node.parents:
            above = nodes[parent]
            rate = figures.per_second(figures.rows.get(parent, 0)) if isinstance(above, SpoutNode) else None
            label = routing_text(node.routing) if isinstance(node, RepartitionNode) else ""
            yield _edge(parent, node.id, label, rate, "tuples")
        if isinstance(node, PersistNode):
            rate = figures.per_second(figures.keys.get(node.state, 0))
            yield _edge(node.id, f"state {node.state}", "", rate, "keys")
        if isinstance(node, QueryNode):
            yield _edge(f"state {node.state}", node.id, "reads", None, "keys", True)


def _edge(source: str, target: str, label: str, rate: float | None, unit: str, reads: bool = False) -> Page:
    return {
        "source": source,
        "target": target,
        "grouping": label,
        "kind": "reads" if reads else "tuples",
        "tuplesPerSecond": rate,
        "unit": unit,
    }
