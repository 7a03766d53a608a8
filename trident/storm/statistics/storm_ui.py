"""The status of a topology in the shape of Storm UI's REST API, so that clients of that API can read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from trident.observe.at_work import AtWork
from trident.observe.reported_errors import ReportedError
from trident.observe.storm_shape import error_entry, last_error, number_text, pretty_seconds, window_names
from trident.storm.statistics.statistics_figures import (
    ComponentStatistics,
    ExecutorStatistics,
    Figures,
    TopologyStatistics,
    WindowStatistics,
    WorkerStatus,
)

__all__ = ["Status", "component_page", "topology_page"]


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
    def pending(self) -> int: ...  # noqa: D102
    @property
    def at_work(self) -> AtWork: ...  # noqa: D102
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
        "pending": status.pending,
        "atWork": status.at_work.as_mapping(),
        "workers": [_worker(status, each) for each in status.workers],
        "topologyStats": [_of_window(each) | _spout_figures(each.figures) for each in statistics.windows],
        "spouts": [_spout(each, status.errors) for each in spouts],
        "bolts": [_bolt(each, status.errors) for each in bolts],
        "errors": [{"component": each.component, **error_entry(each)} for each in reversed(status.errors)],
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
        "executorStats": [_executor(status, each) | figures(each.figures) for each in found.executors],
        "componentErrors": [error_entry(each) for each in status.errors if each.component == component],
    }


def _head(status: Status, window_s: int) -> dict[str, Any]:
    window = status.statistics.over(window_s)
    return {
        "id": status.name,
        "name": status.name,
        "kind": "bolts",
        "status": "ACTIVE" if status.active else "INACTIVE",
        "uptime": pretty_seconds(status.uptime_s),
        "uptimeSeconds": int(status.uptime_s),
        "msgTimeout": status.message_timeout_s,
        "window": _of_window(window)["window"],
        "windowHint": _of_window(window)["windowPretty"],
        "windowSeconds": window.seconds,
    }


def _of_window(window: WindowStatistics) -> dict[str, Any]:
    return window_names(window.window_s)


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
        "port": worker.port,
        "uptime": pretty_seconds(worker.uptime_s),
        "uptimeSeconds": int(worker.uptime_s),
        "executorsTotal": len(executors),
        "componentNumTasks": {component: count for component, count in tasks.items() if count},
    }


def _executor(status: Status, executor: ExecutorStatistics) -> dict[str, Any]:
    """Return an executor and where it runs; `port` is that of its worker, 0 for one of this process."""
    worker = next((each for each in status.workers if each.number == executor.worker), None)
    return {
        "id": executor.name,
        "worker": executor.worker,
        "host": None if worker is None else worker.host,
        "port": None if worker is None else worker.port,
        "uptime": None if worker is None else pretty_seconds(worker.uptime_s),
        "uptimeSeconds": None if worker is None else int(worker.uptime_s),
    }


def _spout(found: ComponentStatistics, errors: Iterable[ReportedError]) -> dict[str, Any]:
    return {
        "spoutId": found.component,
        "executors": len(found.executors),
        "tasks": found.tasks,
        **_spout_figures(found.figures),
        **last_error(found.component, errors),
    }


def _bolt(found: ComponentStatistics, errors: Iterable[ReportedError]) -> dict[str, Any]:
    return {
        "boltId": found.component,
        "executors": len(found.executors),
        "tasks": found.tasks,
        **_bolt_figures(found.figures),
        **last_error(found.component, errors),
    }


def _spout_figures(figures: Figures) -> dict[str, Any]:
    return {
        "emitted": figures.emitted,
        "transferred": figures.transferred,
        "completeLatency": number_text(figures.complete_latency_ms),
        "acked": figures.acked,
        "failed": figures.failed,
    }


def _bolt_figures(figures: Figures) -> dict[str, Any]:
    return {
        "emitted": figures.emitted,
        "transferred": figures.transferred,
        "executed": figures.executed,
        "executeLatency": number_text(figures.execute_latency_ms),
        "processLatency": number_text(figures.process_latency_ms),
        "acked": figures.acked,
        "failed": figures.failed,
        "capacity": number_text(figures.capacity),
    }
