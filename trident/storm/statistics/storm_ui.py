"""The status of a topology in the shape of Storm UI's REST API, so that what reads that reads this.

Latencies and capacities are texts with three digits after the point there, and so they are here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from trident.storm.execution.deaths import ReportedError
from trident.storm.statistics.rolling_totals import ALL_TIME
from trident.storm.statistics.statistics_figures import (
    ComponentStatistics,
    Figures,
    TopologyStatistics,
    WindowStatistics,
    WorkerStatus,
)

__all__ = ["Status", "component_page", "pretty_seconds", "topology_page"]


class Status(Protocol):
    """What the pages need to know: a `TopologyStatus` has it."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def active(self) -> bool: ...  # noqa: D102
    @property
    def uptime_s(self) -> float: ...  # noqa: D102
    @property
    def message_timeout_s(self) -> float: ...  # noqa: D102
    @property
    def workers(self) -> tuple[WorkerStatus, ...]: ...  # noqa: D102
    @property
    def executors(self) -> int: ...  # noqa: D102
    @property
    def tasks(self) -> int: ...  # noqa: D102
    @property
    def errors(self) -> Sequence[ReportedError]: ...  # noqa: D102
    @property
    def statistics(self) -> TopologyStatistics: ...  # noqa: D102


def topology_page(status: Status, window_s: int) -> dict[str, Any]:
    """Return `/api/v1/topology/<id>`."""
    statistics = status.statistics
    components = statistics.over(window_s).components.values()
    spouts = [each for each in components if each.kind == "spout"]
    bolts = [each for each in components if each.kind == "bolt"]
    return {
        **_head(status, window_s),
        "tasksTotal": status.tasks,
        "executorsTotal": status.executors,
        "workersTotal": len(status.workers),
        "workers": [_worker(status, each) for each in status.workers],
        "topologyStats": [_of_window(each) | _spout_figures(each.figures) for each in statistics.windows],
        "spouts": [_spout(each, status.errors) for each in spouts],
        "bolts": [_bolt(each, status.errors) for each in bolts],
    }


def component_page(status: Status, component: str, window_s: int) -> dict[str, Any]:
    """Return `/api/v1/topology/<id>/component/<component>`."""
    found = status.statistics.over(window_s).components[component]
    spout = found.kind == "spout"
    figures = _spout_figures if spout else _bolt_figures
    return {
        **_head(status, window_s),
        "id": component,
        "topologyId": status.name,
        "componentType": "spout" if spout else "bolt",
        "executors": len(found.executors),
        "tasks": found.tasks,
        "spoutSummary" if spout else "boltStats": [
            _of_window(each) | figures(each.components[component].figures) for each in status.statistics.windows
        ],
        "inputStats": [
            {"component": each.component, "stream": each.stream, **_bolt_figures(each.figures)} for each in found.inputs
        ],
        "outputStats": [{"stream": each.stream, **figures(each.figures)} for each in found.outputs],
        "executorStats": [
            {"id": each.name, "worker": each.worker, **figures(each.figures)} for each in found.executors
        ],
        "componentErrors": [_error(each) for each in status.errors if each.component == component],
    }


def pretty_seconds(seconds: float) -> str:
    """Return a duration as Storm UI writes it: "1d 2h 3m 4s", without the leading units that are 0."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    d, h = divmod(hours, 24)
    parts = [(d, "d"), (h, "h"), (m, "m"), (s, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{amount}{unit}" for amount, unit in parts)


def _head(status: Status, window_s: int) -> dict[str, Any]:
    window = status.statistics.over(window_s)
    return {
        "id": status.name,
        "name": status.name,
        "status": "ACTIVE" if status.active else "INACTIVE",
        "uptime": pretty_seconds(status.uptime_s),
        "uptimeSeconds": int(status.uptime_s),
        "msgTimeout": status.message_timeout_s,
        "window": _of_window(window)["window"],
        "windowHint": _of_window(window)["windowPretty"],
    }


def _of_window(window: WindowStatistics) -> dict[str, Any]:
    if window.window_s == ALL_TIME:
        return {"window": ":all-time", "windowPretty": "All time"}
    return {"window": str(window.window_s), "windowPretty": pretty_seconds(window.window_s)}


def _worker(status: Status, worker: WorkerStatus) -> dict[str, Any]:
    components = status.statistics.over().components.values()
    tasks = {
        each.component: sum(len(executor.tasks) for executor in each.executors if executor.worker == worker.number)
        for each in components
    }
    executors = [executor for each in components for executor in each.executors if executor.worker == worker.number]
    return {
        "topologyId": status.name,
        "topologyName": status.name,
        "worker": worker.number,
        "host": worker.host,
        "pid": worker.pid,
        "uptime": pretty_seconds(worker.uptime_s),
        "uptimeSeconds": int(worker.uptime_s),
        "executorsTotal": len(executors),
        "componentNumTasks": {component: count for component, count in tasks.items() if count},
    }


def _spout(found: ComponentStatistics, errors: Iterable[ReportedError]) -> dict[str, Any]:
    return {
        "spoutId": found.component,
        "executors": len(found.executors),
        "tasks": found.tasks,
        **_spout_figures(found.figures),
        **_last_error(found.component, errors),
    }


def _bolt(found: ComponentStatistics, errors: Iterable[ReportedError]) -> dict[str, Any]:
    return {
        "boltId": found.component,
        "executors": len(found.executors),
        "tasks": found.tasks,
        **_bolt_figures(found.figures),
        **_last_error(found.component, errors),
    }


def _spout_figures(figures: Figures) -> dict[str, Any]:
    return {
        "emitted": figures.emitted,
        "transferred": figures.transferred,
        "completeLatency": _number(figures.complete_latency_ms),
        "acked": figures.acked,
        "failed": figures.failed,
    }


def _bolt_figures(figures: Figures) -> dict[str, Any]:
    return {
        "emitted": figures.emitted,
        "transferred": figures.transferred,
        "executed": figures.executed,
        "executeLatency": _number(figures.execute_latency_ms),
        "processLatency": _number(figures.process_latency_ms),
        "acked": figures.acked,
        "failed": figures.failed,
        "capacity": _number(figures.capacity),
    }


def _last_error(component: str, errors: Iterable[ReportedError]) -> dict[str, Any]:
    last = None
    for each in errors:
        last = each if each.component == component else last
    if last is None:
        return {"lastError": "", "errorHost": "", "errorTime": None, "errorLapsedSecs": None}
    error = _error(last)
    return {"lastError": error.pop("error"), **error}


def _error(error: ReportedError) -> dict[str, Any]:
    return {
        "error": error.text,
        "errorTask": error.task,
        "errorHost": error.host,
        "errorTime": int(error.time),
        "errorLapsedSecs": max(0, int(time.time() - error.time)),
    }


def _number(value: float | None) -> str:
    return f"{value or 0.0:.3f}"
