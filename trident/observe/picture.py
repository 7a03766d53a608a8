"""`picture`: a topology as nodes and edges: components in their stages, states beside them, with what went along the edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trident.naming import page_entry
from trident.observe.component_statistics import ComponentStatistics, EdgeStatistics, WindowStatistics

Entry = dict[str, Any]


def picture(window: WindowStatistics, states: Sequence[Mapping[str, Any]] = ()) -> Entry:
    """Return stages, nodes and edges, with the rates of a window; `states` as `TopologyStatus.as_mapping` has them."""
    components = [each for each in window.components.values() if each.described.kind != "acker"]
    stages = {each.described.stage: each.described.stage_title for each in components}
    return {
        "stages": [{"number": number, "title": title} for number, title in stages.items() if number is not None],
        "nodes": [*(_node(window, each) for each in components), *(_state(window, each) for each in states)],
        "edges": [
            *(_edge(window, each) for each in window.edges),
            *(_update(window, each) for each in states if each["component"] is not None),
        ],
    }


def state_node(state: str) -> str:
    """Return the id of the node of a state."""
    return f"state {state}"


def _node(window: WindowStatistics, component: ComponentStatistics) -> Entry:
    described, figures = component.described, component.figures
    latencies = (figures.process_latency_ms, figures.execute_latency_ms, figures.complete_latency_ms)
    return {
        **page_entry(described, "id", "label", "detail", "stage", "tasks"),
        **page_entry(figures, "emitted", "executed", "failed", "capacity"),
        "kind": "persist" if described.kind == "state" else described.kind,
        "executors": len(component.executors) or component.tasks,
        "latencyMs": next((each for each in latencies if each is not None), None),
        "perSecond": window.per_second(figures.emitted if described.kind == "spout" else figures.executed),
        "unit": "tuples",
    }


def _state(window: WindowStatistics, state: Mapping[str, Any]) -> Entry:
    return {
        "id": state_node(state["state"]),
        "label": state["state"],
        "kind": "state",
        "detail": f"{state['kind'] or 'own kind'} in {state['store']}",
        "guarantee": state["guarantee"],
        "stage": None,
        "perSecond": window.per_second(state["keysUpdated"]),
        "unit": "keys",
        "isState": True,
    }


def _edge(window: WindowStatistics, statistics: EdgeStatistics) -> Entry:
    edge = statistics.edge
    return {
        **page_entry(edge, "source", "target", "stream", "grouping"),
        "kind": "reads" if edge.reads else "tuples",
        "tuples": statistics.tuples,
        "tuplesPerSecond": None if edge.reads else window.per_second(statistics.tuples),
        "unit": "keys" if edge.reads else "tuples",
    }


def _update(window: WindowStatistics, state: Mapping[str, Any]) -> Entry:
    return {
        "source": state["component"],
        "target": state_node(state["state"]),
        "stream": "default",
        "grouping": "",
        "kind": "tuples",
        "tuples": state["keysUpdated"],
        "tuplesPerSecond": window.per_second(state["keysUpdated"]),
        "unit": "keys",
    }
