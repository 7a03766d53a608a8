"""`storm_picture`: spouts and bolts as nodes, the streams that bolts read as edges with their groupings and rates."""

from __future__ import annotations

from typing import Any

from trident.storm.groupings import Grouping
from trident.storm.statistics.statistics_figures import WindowStatistics
from trident.storm.storm_topology import StormTopology
from trident.ui.cluster_pages import Page

__all__ = ["storm_picture"]

_SHORTEST_S = 1e-3


def storm_picture(topology: StormTopology, window: WindowStatistics) -> Page:
    """Return nodes and edges, with the rates of one window."""
    seconds = max(window.seconds, _SHORTEST_S)
    return {
        "stages": [],
        "nodes": [_node(topology, component, window, seconds) for component in topology.components],
        "edges": [
            _edge(topology, bolt.id, each.component, each.stream, each.grouping, window, seconds)
            for bolt in topology.bolts.values()
            for each in bolt.inputs
        ],
    }


def _node(topology: StormTopology, component: str, window: WindowStatistics, seconds: float) -> Page:
    found = window.components[component]
    declared: Any = topology.components[component]
    spout = component in topology.spouts
    made = declared.spout if spout else declared.bolt
    figures = found.figures
    return {
        "id": component,
        "label": component,
        "kind": "spout" if spout else "bolt",
        "detail": type(made).__name__,
        "stage": None,
        "executors": len(found.executors),
        "tasks": found.tasks,
        "capacity": figures.capacity,
        "latencyMs": figures.complete_latency_ms if spout else figures.process_latency_ms,
        "perSecond": (figures.emitted if spout else figures.executed) / seconds,
        "unit": "tuples",
    }


def _edge(
    topology: StormTopology,
    bolt: str,
    component: str,
    stream: str,
    grouping: Grouping,
    window: WindowStatistics,
    seconds: float,
) -> Page:
    inputs = window.components[bolt].inputs
    executed = sum(each.figures.executed for each in inputs if (each.component, each.stream) == (component, stream))
    return {
        "source": component,
        "target": bolt,
        "stream": stream,
        "grouping": _text(grouping),
        "kind": "tuples",
        "tuplesPerSecond": executed / seconds,
        "unit": "tuples",
    }


def _text(grouping: Grouping) -> str:
    kind = grouping.kind.replace("_", " ")
    return f"{kind} ({', '.join(grouping.fields)})" if grouping.fields else kind
