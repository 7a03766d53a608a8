"""`TopologyStatus`: a topology at one moment, of either kind, and its pages in the shape of Storm UI's REST API; its heartbeat.

An operation of Trident is a bolt there, a source is a spout. Latencies and capacities are texts with three digits, as there.
Beside them stand numbers: a tuple takes less than a thousandth of a millisecond here.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trident.naming import page_entry
from trident.observe.component_statistics import (
    ComponentStatistics,
    EdgeStatistics,
    Figures,
    TopologyStatistics,
    WindowStatistics,
    picture,
)
from trident.observe.events import ReportedError
from trident.observe.health import AtWork
from trident.observe.time_series import ALL_TIME, TimeSeries
from trident.redaction import redacted
from trident.servers.plain_json import to_json

Entry = dict[str, Any]
_OF_LAST = ("errorTask", "errorHost", "errorTime", "errorLapsedSecs")

HEARTBEAT_BYTES = 6000  # about how many bytes of JSON it has at most
_OF_TOPOLOGY = (
    "id", "name", "kind", "status", "message", "uptime", "uptimeSeconds", "window", "windowHint", "windowSeconds",
    "workersTotal", "executorsTotal", "tasksTotal", "rates", "lags", "lagTrend", "atWork",
    "health", "txid", "engine", "share", "pending", "replays",
)  # fmt: skip
_OF_COMPONENT = (
    "spoutId", "boltId", "kind", "state", "executors", "tasks", "emitted", "executed", "acked", "failed", "completeLatency",
    "executeLatency", "capacity", "lag",
)  # fmt: skip
_LONGEST_TEXT, _MOST_ENTRIES = 200, 10


@dataclass(frozen=True)
class WorkerStatus:
    """One worker as it was last heard of, `heard_s` ago."""

    number: int
    host: str
    pid: int
    uptime_s: float
    heard_s: float
    pending: int  # tracked messages of its spouts that are not answered
    port: int = 0  # where other workers send to; 0 for one of this process


@dataclass(frozen=True)
class TopologyStatus:
    """What a running topology says about itself; `executors` and `tasks` count ackers too."""

    name: str
    kind: Literal["trident", "bolts"]
    state: str  # `ACTIVE`, `INACTIVE`, `STOPPED` or `FAILED`
    uptime_s: float
    message_timeout_s: float
    executors: int
    tasks: int
    at_work: AtWork
    errors: Sequence[ReportedError]  # of the components, oldest first
    statistics: TopologyStatistics
    series: TimeSeries
    now: float
    workers: tuple[WorkerStatus, ...] = ()
    pending: int = 0  # as of `WorkerStatus`, of all spouts
    states: Sequence[Mapping[str, Any]] = ()
    more: Mapping[str, Any] = field(default_factory=dict)  # what its page has beside

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"

    def as_mapping(self, window_s: int = 0, topology_id: str | None = None) -> Entry:
        """Return it in the shape of Storm UI's `/api/v1/topology/<id>`, with the components' figures over one window."""
        id_, window = topology_id or self.name, self.statistics.over(window_s)
        components = window.components.values()
        return {
            **self._head(id_, window),
            "tasksTotal": self.tasks,
            "executorsTotal": self.executors,
            "workersTotal": len(self.workers),
            "atWork": asdict(self.at_work),
            "workers": [self._worker(id_, each) for each in self.workers],
            "topologyStats": [self._window(each) for each in self.statistics.windows],
            "spouts": [self._component(each) for each in components if each.described.kind == "spout"],
            "bolts": [self._component(each) for each in components if each.described.kind not in ("spout", "acker")],
            "states": self._states(window),
            "errors": [error_entry(each) for each in self.errors],
            **self.more,
        }

    def component_as_mapping(self, component: str, window_s: int = 0, topology_id: str | None = None) -> Entry:
        """Return a component, or a state's node, as `/topology/<id>/component/<component>`; `KeyError` if there is none."""
        id_, window = topology_id or self.name, self.statistics.over(window_s)
        drawn = picture(window, self._states(window))
        nodes = {each["id"]: each for each in drawn["nodes"]}
        if component not in nodes:
            raise KeyError(f"topology {id_!r} has no component {component!r}; it has {', '.join(nodes)}")
        counted = window.components.get(component)
        return {
            **self._head(id_, window),
            **{key: self.more[key] for key in ("txid", "share", "engine", "deactivated") if key in self.more},
            **(self._component_figures(window, counted) if counted is not None else {"componentType": "state"}),
            **nodes[component],
            "topologyId": id_,
            "inputs": [each for each in drawn["edges"] if each["target"] == component],
            "outputs": [each for each in drawn["edges"] if each["source"] == component],
            "componentErrors": [error_entry(each) for each in self.errors if each.component == component],
        }

    def visualization(self, window_s: int = 0, topology_id: str | None = None) -> Entry:
        window = self.statistics.over(window_s)
        names = {"window": window_names(window_s)["window"], "windowSeconds": window.seconds}
        return {"id": topology_id or self.name, **names, **picture(window, self._states(window))}

    def over_time(self, window_s: int = 0, topology_id: str | None = None) -> Entry:
        names = {"window": window_names(window_s)["window"], "status": self.state}
        return {"id": topology_id or self.name, **names, **self.series.page(window_s, self.now, time.time())}

    def _head(self, id_: str, window: WindowStatistics) -> Entry:
        names = window_names(window.window_s)
        return {
            "id": id_,
            "name": self.name,
            "kind": self.kind,
            "status": self.state,
            "uptime": pretty_seconds(self.uptime_s),
            "uptimeSeconds": int(self.uptime_s),
            "msgTimeout": self.message_timeout_s,
            "window": names["window"],
            "windowHint": names["windowPretty"],
            "windowSeconds": window.seconds,
        }

    def _window(self, window: WindowStatistics) -> Entry:
        figures = window.figures
        entry = {
            **window_names(window.window_s),
            "windowSeconds": window.seconds,
            **page_entry(figures, "emitted", "transferred", "acked", "failed"),
            "completeLatency": number_text(figures.complete_latency_ms),
            "failedOf": figures.failed + (figures.acked if self.kind == "bolts" else figures.batches),
            "failures": self.series.failures(window.window_s, self.now),
        }
        if self.kind == "bolts":
            return entry
        phases = dict(figures.phases_ms or {})
        return {
            **entry,
            **page_entry(figures, "batches", "tuples", "retries", "dead_letters"),
            "tuplesPerSecond": window.per_second(figures.tuples),
            "batchesPerSecond": window.per_second(figures.batches),
            "phasesMs": {**phases, "total": sum(phases.values())},
        }

    def _component(self, component: ComponentStatistics) -> Entry:
        described, is_spout = component.described, component.described.kind == "spout"
        lags = {each["source"]: each["lag"] for each in self.more.get("sources", ())}
        return {
            "spoutId" if is_spout else "boltId": described.id,
            **page_entry(described, "kind", "label", "detail", "tasks"),
            "executors": len(component.executors) or component.tasks,
            **_figures(component.figures, is_spout),
            **({"lag": lags.get(described.id)} if is_spout else page_entry(described, "stage", "state")),
            **last_error(described.id, self.errors),
        }

    def _component_figures(self, window: WindowStatistics, component: ComponentStatistics) -> Entry:
        id_, is_spout = component.described.id, component.described.kind == "spout"
        workers = {each.number: each for each in self.workers}
        return {
            **self._component(component),
            "componentType": "spout" if is_spout else "bolt",
            "spoutSummary" if is_spout else "boltStats": [
                window_names(each.window_s)
                | {"windowSeconds": each.seconds}
                | _figures(each.components[id_].figures, is_spout)
                for each in self.statistics.windows
            ],
            "inputStats": [_along(window, each, each.edge.source) for each in component.inputs if not each.edge.reads],
            "outputStats": [_along(window, each, each.edge.target, is_spout) for each in component.outputs],
            "executorStats": [  # with the port of the worker, 0 for one of this process
                {"id": each.name, "worker": each.worker, **_place(workers.get(each.worker))}
                | _figures(each.figures, is_spout)
                for each in component.executors
            ],
        }

    def _states(self, window: WindowStatistics) -> list[Entry]:
        writers = {each.described.state: each for each in window.components.values() if each.described.kind == "state"}
        return [{**each, **_commits(writers.get(each["state"]))} for each in self.states]

    def _worker(self, id_: str, worker: WorkerStatus) -> Entry:
        executors = [
            (each.described.id, len(executor.tasks))
            for each in self.statistics.over().components.values()
            for executor in each.executors
            if executor.worker == worker.number
        ]
        tasks: dict[str, int] = {}
        for component, count in executors:
            tasks[component] = tasks.get(component, 0) + count
        return {
            "topologyId": id_,
            "topologyName": self.name,
            "worker": worker.number,
            "pid": worker.pid,
            **_place(worker),
            "executorsTotal": len(executors),
            "componentNumTasks": tasks,
        }


def _place(worker: WorkerStatus | None) -> Entry:
    if worker is None:
        return dict.fromkeys(("host", "port", "uptime", "uptimeSeconds"))
    return {
        **page_entry(worker, "host", "port"),
        "uptime": pretty_seconds(worker.uptime_s),
        "uptimeSeconds": int(worker.uptime_s),
    }


def _figures(figures: Figures, is_spout: bool) -> Entry:
    entry: Entry = {
        **page_entry(figures, "emitted", "transferred", "acked", "failed", "dead_letters", "execute_latency_ms"),
        "executeLatency": number_text(figures.execute_latency_ms),
        "capacity": number_text(figures.capacity),
    }
    if is_spout:
        return {**entry, "completeLatency": number_text(figures.complete_latency_ms)}
    return {**entry, "executed": figures.executed, "processLatency": number_text(figures.process_latency_ms)}


def _along(window: WindowStatistics, statistics: EdgeStatistics, other: str, is_spout: bool = False) -> Entry:
    return {
        "component": other,
        **page_entry(statistics.edge, "stream", "grouping"),
        "tuplesPerSecond": window.per_second(statistics.tuples),
        **_figures(statistics.figures, is_spout),
    }


def _commits(writer: ComponentStatistics | None) -> Entry:
    figures = Figures() if writer is None else writer.figures
    return {
        "component": None if writer is None else writer.described.id,
        "keysUpdated": figures.keys,
        "commits": figures.commits,
        "commitLatencyMs": figures.commit_latency_ms,
    }


def pretty_seconds(seconds: float) -> str:
    """Return a duration as Storm UI writes it: "1d 2h 3m 4s", without the leading units that are 0."""
    minutes, s = divmod(int(max(seconds, 0)), 60)  # below 0 where another machine's clock is ahead
    hours, m = divmod(minutes, 60)
    d, h = divmod(hours, 24)
    return re.sub(r"^(0\w )+", "", f"{d}d {h}h {m}m {s}s")


def window_names(window_s: int) -> dict[str, Any]:
    if window_s == ALL_TIME:
        return {"window": ":all-time", "windowPretty": "All time"}
    return {"window": str(window_s), "windowPretty": pretty_seconds(window_s)}


def number_text(value: float | None) -> str:
    """Return a latency or a capacity as text; what was not measured is 0."""
    return f"{value or 0.0:.3f}"


def last_error(component: str, errors: Iterable[ReportedError]) -> dict[str, Any]:
    own = [each for each in errors if each.component == component]
    if not own:
        return {"lastError": "", "errorHost": "", "errorTime": None, "errorLapsedSecs": None}
    entry = error_entry(own[-1])
    return {"lastError": entry["error"], **{key: entry[key] for key in _OF_LAST}}


def error_entry(error: ReportedError) -> dict[str, Any]:
    attempt, place = error.attempt, Entry()
    if attempt is not None:
        place = page_entry(attempt, "row", "txid", "attempt", "will_retry")
    return {
        "component": error.component,
        "error": redacted(error.text),
        "cause": redacted(error.text.rstrip().rpartition("\n")[2] if attempt is None else attempt.cause),
        **place,
        "errorTask": error.task or None,
        "errorHost": error.host,
        "errorTime": int(error.time),
        "errorLapsedSecs": max(0, int(time.time() - error.time)),
    }


def heartbeat_of(page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the heartbeat that carries a topology's page: all spouts, and the busiest bolts, that there is room for."""
    beat: dict[str, Any] = {key: _short(page[key]) for key in _OF_TOPOLOGY if key in page}
    beat["topologyStats"] = [
        {key: value for key, value in each.items() if not isinstance(value, dict)}  # without the means of each phase
        for each in page.get("topologyStats", ())
    ]
    beat.update(spouts=[], bolts=[], omitted=0)
    room = HEARTBEAT_BYTES - len(to_json(beat))
    busiest = sorted(page.get("bolts", ()), key=lambda each: -float(each.get("capacity") or 0.0))
    left = room / 2
    for kind, components in (("spouts", page.get("spouts", ())), ("bolts", busiest)):
        for each in components:
            entry = {key: _short(each[key]) for key in _OF_COMPONENT if each.get(key) is not None}
            size = len(to_json(entry)) + 1
            if size > left:
                beat["omitted"] += 1
            else:
                beat[kind].append(entry)
                left, room = left - size, room - size
        left = room
    return beat


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value[:_MOST_ENTRIES]]
    return value
