"""The pages of a Trident topology in the shape of Storm UI's REST API: sources are its spouts, all other operations its bolts.

Beside Storm's texts stand numbers: a tuple takes less than a thousandth of a millisecond here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trident.observe.operation_statistics import (
    EdgeStatistics,
    OperationFigures,
    OperationsStatistics,
    OperationStatistics,
    OperationWindow,
)
from trident.observe.reported_errors import ReportedError
from trident.observe.storm_shape import error_entry, last_error, number_text, pretty_seconds, window_names

__all__ = ["OperationStatus", "component_page", "picture", "topology_page"]

Entry = dict[str, Any]
_STATUS = {"running": "ACTIVE", "inactive": "INACTIVE", "stopped": "STOPPED", "failed": "FAILED"}


@dataclass(frozen=True)
class OperationStatus:
    """A topology at one moment.

    Attributes
    ----------
    state
        `running`, `inactive`, `stopped` or `failed`.
    sources
        As of `RunningTopology.status`.
    states
        Each state as the page has it, without its figures.
    errors
        Oldest first.
    """

    name: str
    state: str
    uptime_s: float
    message_timeout_s: float
    engine: str
    txid: int
    share: float
    sources: Sequence[Mapping[str, Any]]
    states: Sequence[Entry]
    errors: Sequence[ReportedError]
    statistics: OperationsStatistics

    def lag(self, source: str) -> Mapping[str, Any] | None:
        """Return how far a source is ahead; None if it does not say."""
        return next((each["lag"] for each in self.sources if each["description"] == source), None)


def topology_page(status: OperationStatus, window_s: int) -> Entry:
    """Return `/api/v1/topology/<id>`."""
    window = status.statistics.over(window_s)
    operations = list(window.operations.values())
    sources = [each for each in operations if each.operation.kind == "spout"]
    tasks = sum(each.operation.tasks for each in operations)
    return {
        **_head(status, window_s),
        "tasksTotal": tasks,
        "executorsTotal": tasks,
        "workersTotal": 1,
        "workers": [],
        "topologyStats": [_batch_figures(status, each) for each in status.statistics.windows],
        "spouts": [_spout(status, window, each) for each in sources],
        "bolts": [_bolt(status, each) for each in operations if each.operation.kind != "spout"],
        "sources": [_source(status, window, each) for each in sources],
        "states": [_state(window, each) for each in status.states],
        "errors": [{"component": each.component, **error_entry(each)} for each in reversed(status.errors)],
    }


def component_page(status: OperationStatus, component: str, window_s: int) -> Entry:
    """Return `/api/v1/topology/<id>/component/<component>`."""
    window = status.statistics.over(window_s)
    if component not in window.operations:
        raise KeyError(f"topology {status.name!r} has no component {component!r}; it has {list(window.operations)}")
    found = window.operations[component]
    is_spout = found.operation.kind == "spout"
    figures = _spout_figures if is_spout else _bolt_figures
    entry = _spout(status, window, found) if is_spout else _bolt(status, found)
    return {
        **_head(status, window_s),
        **{key: value for key, value in entry.items() if key not in ("spoutId", "boltId")},
        "id": component,
        "topologyId": status.name,
        "componentType": "spout" if is_spout else "bolt",
        "spoutSummary" if is_spout else "boltStats": [
            window_names(each.window_s) | figures(each, each.operations[component])
            for each in status.statistics.windows
        ],
        "inputStats": [_along(window, each, each.edge.source) for each in found.inputs],
        "outputStats": [_along(window, each, each.edge.target) for each in found.outputs],
        "executorStats": [],
        "componentErrors": [error_entry(each) for each in reversed(status.errors) if each.component == component],
    }


def picture(status: OperationStatus, window_s: int) -> Entry:
    """Return the nodes and edges of the plan, with rates."""
    window = status.statistics.over(window_s)
    operations = window.operations
    unwritten = sorted({each.edge.source for each in window.edges if each.edge.source not in operations})
    stages = {each.operation.stage: each.operation.stage_title for each in operations.values()}
    return {
        "id": status.name,
        "window": window_names(window_s)["window"],
        "windowSeconds": window.seconds,
        "stages": [{"number": number, "title": title} for number, title in sorted(stages.items())],
        "nodes": [*map(_node, operations.values()), *map(_static, unwritten)],
        "edges": [_edge(window, each) for each in window.edges],
    }


# ---- parts of pages -------------------------------------------------------------------------------------------------------


def _head(status: OperationStatus, window_s: int) -> Entry:
    names, window = window_names(window_s), status.statistics.over(window_s)
    return {
        "id": status.name,
        "name": status.name,
        "kind": "trident",
        "status": _STATUS[status.state],
        "uptime": pretty_seconds(status.uptime_s),
        "uptimeSeconds": int(status.uptime_s),
        "msgTimeout": status.message_timeout_s,
        "window": names["window"],
        "windowHint": names["windowPretty"],
        "windowSeconds": window.seconds,
        "txid": status.txid,
        "deactivated": status.state == "inactive",
        "share": status.share,
        "engine": status.engine,
    }


def _batch_figures(status: OperationStatus, window: OperationWindow) -> Entry:
    figures = window.figures
    phases = dict(figures.phases_ms or {})
    return {
        **window_names(window.window_s),
        "emitted": figures.emitted,
        "transferred": figures.transferred,
        "completeLatency": number_text(figures.complete_latency_ms),
        "acked": figures.tuples,
        "failed": figures.failed,
        "batches": figures.batches,
        "tuples": figures.tuples,
        "retries": figures.retries,
        "deadLetters": figures.dead_letters,
        "tuplesPerSecond": window.per_second(figures.tuples),
        "batchesPerSecond": window.per_second(figures.batches),
        "phasesMs": {**phases, "total": sum(phases.values())},
    }


def _spout(status: OperationStatus, window: OperationWindow, found: OperationStatistics) -> Entry:
    return {
        "spoutId": found.operation.id,
        **_common(status, found),
        **_spout_figures(window, found),
        "lag": status.lag(found.operation.id),
    }


def _bolt(status: OperationStatus, found: OperationStatistics) -> Entry:
    operation = found.operation
    return {
        "boltId": operation.id,
        **_common(status, found),
        **_bolt_figures(None, found),
        "kind": operation.kind,
        "stage": operation.stage,
        "state": operation.state,
    }


def _common(status: OperationStatus, found: OperationStatistics) -> Entry:
    operation = found.operation
    return {
        "executors": operation.tasks,
        "tasks": operation.tasks,
        "label": operation.label,
        "detail": operation.detail,
        **last_error(operation.id, status.errors),
    }


def _spout_figures(window: OperationWindow, found: OperationStatistics) -> Entry:
    figures = found.figures
    return {
        "emitted": figures.emitted,
        "transferred": figures.transferred,
        "completeLatency": number_text(window.figures.complete_latency_ms),
        "acked": figures.emitted,  # only what is committed is counted
        **_measured(figures),
    }


def _bolt_figures(window: OperationWindow | None, found: OperationStatistics) -> Entry:
    figures = found.figures
    return {
        "emitted": figures.emitted,
        "transferred": figures.transferred,
        "executed": figures.executed,
        "processLatency": number_text(figures.execute_latency_ms),
        "acked": figures.executed - figures.dead_letters,
        **_measured(figures),
    }


def _measured(figures: OperationFigures) -> Entry:
    return {
        "failed": figures.failed,
        "deadLetters": figures.dead_letters,
        "executeLatency": number_text(figures.execute_latency_ms),
        "executeLatencyMs": figures.execute_latency_ms,
        "capacity": number_text(figures.capacity),
    }


def _source(status: OperationStatus, window: OperationWindow, found: OperationStatistics) -> Entry:
    tuples = found.figures.emitted
    name = found.operation.id
    return {
        "source": name,
        "tuples": tuples,
        "tuplesPerSecond": window.per_second(tuples),
        "lag": status.lag(name),
    }


def _state(window: OperationWindow, state: Entry) -> Entry:
    writer = next(
        (
            each
            for each in window.operations.values()
            if each.operation.kind == "state" and each.operation.state == state["state"]
        ),
        None,
    )
    figures = OperationFigures() if writer is None else writer.figures
    return {
        **state,
        "component": None if writer is None else writer.operation.id,
        "keysUpdated": figures.keys,
        "commits": figures.commits,
        "commitLatencyMs": figures.commit_latency_ms,
    }


def _along(window: OperationWindow, along: EdgeStatistics, other: str) -> Entry:
    return {
        "component": other,
        "stream": "default",
        "grouping": along.edge.grouping,
        "emitted": along.tuples,
        "transferred": along.tuples,
        "tuplesPerSecond": window.per_second(along.tuples),
    }


def _node(found: OperationStatistics) -> Entry:
    operation, figures = found.operation, found.figures
    return {
        "id": operation.id,
        "label": operation.label,
        "detail": operation.detail,
        "kind": operation.kind,
        "stage": operation.stage,
        "emitted": figures.emitted,
        "executed": figures.executed,
        "failed": figures.failed,
        "capacity": figures.capacity,
        "latencyMs": figures.execute_latency_ms,
        "tasks": operation.tasks,
    }


def _static(id_: str) -> Entry:
    """Return the node of a state that no stream updates."""
    label = id_.removeprefix("state ")
    return {
        "id": id_,
        "label": label,
        "detail": f"state {label}, which no stream updates",
        "kind": "static",
        "stage": None,
        "emitted": 0,
        "executed": 0,
        "failed": 0,
        "capacity": None,
        "latencyMs": None,
        "tasks": 1,
    }


def _edge(window: OperationWindow, along: EdgeStatistics) -> Entry:
    edge = along.edge
    return {
        "source": edge.source,
        "target": edge.target,
        "stream": "default",
        "grouping": edge.grouping,
        "kind": "reads" if edge.reads else "tuples",
        "tuples": along.tuples,
        "tuplesPerSecond": window.per_second(along.tuples),
    }
