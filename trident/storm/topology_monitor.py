"""`TopologyMonitor`: adds up the snapshots of all workers, whichever start again; makes status, log lines and metrics of it."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from trident.observe.component_statistics import (
    ComponentDescription,
    ComponentKind,
    ComponentStatistics,
    Edge,
    EdgeStatistics,
    ExecutorStatistics,
    Figures,
    TopologyStatistics,
    WindowStatistics,
)
from trident.observe.events import ReportedError
from trident.observe.health import AtWork, RunningCall, StallLog
from trident.observe.open_metrics import MetricsServer, StormMetrics
from trident.observe.time_series import WINDOWS_S, Difference, TimeSeries, TimeSpan, Windows
from trident.observe.topology_status import TopologyStatus, WorkerStatus
from trident.storm.execution.storm_worker import CountKey, PresentCall, WorkerSnapshot
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import ExecutorPlace, Grouping, StormTopology, TaskLayout

logger = logging.getLogger("trident.storm")

_LOGGED_WINDOW_S = 600
_LOOK_S = 1.0
_SILENT_S = 10.0  # what a worker was at before it was silent for so long says nothing of now
_MS_PER_S = 1000
_BUSIEST = 2


class TopologyMonitor:
    """One for each running topology, on its user's side; `layout`, `active`, `errors` return what there is now."""

    def __init__(
        self,
        conf: StormConfig,
        topology: StormTopology,
        layout: Callable[[], TaskLayout],
        active: Callable[[], bool],
        errors: Callable[[], Sequence[ReportedError]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._conf, self._clock = conf, clock
        self._layout, self._active, self._errors = layout, active, errors
        self._began = clock()
        self._collected, self._series = Collected(topology, self._began), TimeSeries(self._began)
        self._heard: dict[int, tuple[float, WorkerSnapshot]] = {}
        self._moved, self._next_look = self._began, self._began
        self._stalls = StallLog(conf.name, logger)
        self._next_line = self._began + (conf.log_interval_s or 0)
        self._closing = threading.Lock()
        self._server: MetricsServer | None = None
        if conf.metrics_port is not None:
            metrics = StormMetrics(lambda: self.status)
            self._server = MetricsServer(conf.name, metrics, conf.metrics_host, conf.metrics_port)

    @property
    def metrics_url(self) -> str | None:
        return None if self._server is None else self._server.url

    def take(self, snapshot: WorkerSnapshot) -> None:
        now, layout = self._clock(), self._layout()
        happened = self._collected.take(snapshot, now)
        self._heard[snapshot["worker"]] = (now, snapshot)
        pending = self._pending(layout)
        happened.lags = {"messages": pending}
        self._series.add(happened, now)
        if happened.tuples or not pending:
            self._moved = now
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            may_stall = now - self._moved >= _LOOK_S or bool(self._calls(layout, now))
            self._stalls.look(self.status.at_work if may_stall else AtWork())
        if self._conf.log_interval_s is not None and now >= self._next_line:
            self._next_line = now + self._conf.log_interval_s
            logger.info("%s", _line(self.status))

    @property
    def status(self) -> TopologyStatus:
        now, layout = self._clock(), self._layout()
        uncounted_s = {tasks[0]: uncounted + ago for _, ago, (tasks, _, uncounted, _) in self._calls(layout, now)}
        statistics = self._collected.statistics(layout, now, uncounted_s)
        workers = tuple(
            WorkerStatus(
                number, last["host"], last["pid"], last["uptime_s"], now - heard, last["pending"], last["port"]
            )
            for number, heard, last in self._there(layout)
        )
        pending = self._pending(layout)
        return TopologyStatus(
            self._conf.name,
            "bolts",
            "ACTIVE" if self._active() else "INACTIVE",
            now - self._began,
            self._conf.message_timeout_s,
            len(layout.executors),
            len(layout.component_of),
            self._at_work(layout, statistics, now),
            tuple(self._errors()),
            statistics,
            self._series,
            now,
            workers,
            pending,
            more={"pending": pending},
        )

    def _there(self, layout: TaskLayout) -> list[tuple[int, float, WorkerSnapshot]]:
        """Return what was heard last of each worker that there is, and when; a rebalance may have taken others away."""
        heard = sorted(self._heard.copy().items())
        return [(number, at, snapshot) for number, (at, snapshot) in heard if number < layout.workers]

    def _pending(self, layout: TaskLayout) -> int:
        return sum(snapshot["pending"] for _, _, snapshot in self._there(layout))

    def _calls(self, layout: TaskLayout, now: float) -> list[tuple[int, float, PresentCall]]:
        there = [each for each in self._there(layout) if now - each[1] < _SILENT_S]
        return [(number, now - heard, call) for number, heard, snapshot in there for call in snapshot["calls"]]

    def _at_work(self, layout: TaskLayout, statistics: TopologyStatistics, now: float) -> AtWork:
        components = statistics.over(_LOGGED_WINDOW_S).components
        usual_ms = {name: each.figures.execute_latency_ms or 0.0 for name, each in components.items()}
        latencies = [each.figures.complete_latency_ms or 0.0 for each in components.values()]
        calls = tuple(
            RunningCall(component, tuple(tasks), number, seconds + ago, where, usual_ms.get(component, 0.0) / _MS_PER_S)
            for number, ago, (tasks, seconds, _, where) in self._calls(layout, now)
            if where and (component := layout.component_of.get(tasks[0]))
        )
        pending = self._pending(layout)
        left = f"{pending} pending" if pending else ""
        usual_s = max(latencies, default=0.0) / _MS_PER_S
        return AtWork(now - self._moved, "acknowledged", left, usual_s, self._conf.message_timeout_s, calls=calls)

    def close(self) -> None:
        """Free the port; harmless if done before. Statuses go on to be what they were last."""
        with self._closing:
            server, self._server = self._server, None
        if server is not None:
            server.close()


def _line(status: TopologyStatus) -> str:
    """What the log says from time to time: of the last ten minutes, or less while the topology is younger."""
    window = status.statistics.over(_LOGGED_WINDOW_S)
    figures, seconds = window.figures, max(window.seconds, 1e-9)
    latency = "" if figures.complete_latency_ms is None else f" in {figures.complete_latency_ms:.1f} ms on average"
    busy = sorted(((each.figures.capacity, name) for name, each in window.components.items()), reverse=True)
    busiest = ", ".join(f"{component} {capacity:.0%}" for capacity, component in busy[:_BUSIEST])
    return (
        f"topology {status.name}: {figures.acked / seconds:.1f} messages/s acked{latency}, {figures.failed} failed, "
        f"{status.pending} pending; busiest: {busiest}; {len(status.errors)} errors"
    )


_CAPACITY_WINDOW_S = WINDOWS_S[0]
Sums = defaultdict[str, float]


class Collected:
    """Adds up what snapshots report. A worker that starts again counts from 0; tasks that move keep their totals."""

    def __init__(self, topology: StormTopology, now: float) -> None:
        self._topology = topology
        self._windows: Windows[CountKey] = Windows(now)
        self._last: dict[int, tuple[int, int, Mapping[CountKey, float]]] = {}
        self._lock = threading.Lock()

    def take(self, snapshot: WorkerSnapshot, now: float) -> TimeSpan:
        """Take in a snapshot; one that is older than the last of its start is left out. Returns what its spouts did since."""
        start, number, worker = snapshot["start"], snapshot["number"], snapshot["worker"]
        totals = {CountKey(*key): value for key, value in snapshot["totals"]}
        with self._lock:
            last_start, last_number, before = self._last.get(worker, (start, -1, {}))
            if last_start != start:
                before = {}
            elif last_number >= number:
                return TimeSpan()
            self._last[worker] = start, number, totals
            added = {key: value - before.get(key, 0) for key, value in totals.items()}
            self._windows.add(added, now)
        of_spouts: dict[str, float] = defaultdict(float)
        for key, value in added.items():
            if not key.component:
                of_spouts[key.measure] += value
        timed, took_s = int(of_spouts["complete_samples"]), of_spouts["complete_s"]
        return TimeSpan(tuples=of_spouts["acked"], timed=timed, took_s=took_s, failed=int(of_spouts["failed"]))

    def statistics(self, layout: TaskLayout, now: float, uncounted_s: Mapping[int, float]) -> TopologyStatistics:
        """Return the statistics of all windows; `uncounted_s`: by first task, how long an executor has worked uncounted."""
        with self._lock:
            differences = self._windows.over_all(now)
        place_of = {task: place for place in layout.executors for task in place.tasks}
        capacities = _capacities(place_of, differences[_CAPACITY_WINDOW_S], uncounted_s)
        windows = []
        for window, difference in differences.items():
            whole: Sums = defaultdict(float)
            sums: dict[ExecutorPlace | str | tuple[str, str, str], Sums] = defaultdict(lambda: defaultdict(float))
            for key, value in difference.added.items():
                if key.component.startswith("__"):  # ticks are no tuples of the topology
                    continue
                place = place_of[key.task]
                component = place.component
                edge = (key.component, component, key.stream) if key.component else (component, "", key.stream)
                for of in (component, place, edge):
                    sums[of][key.measure] += value
                if component in self._topology.spouts or key.measure in ("emitted", "transferred"):
                    whole[key.measure] += value
            components = {name: self._component(name, layout, capacities, sums) for name in layout.tasks}
            windows.append(WindowStatistics(window, difference.seconds, _figures(whole), components))
        return TopologyStatistics(tuple(windows))

    def _component(
        self, name: str, layout: TaskLayout, capacities: Mapping[ExecutorPlace, float], sums: Mapping[Any, Sums]
    ) -> ComponentStatistics:
        component = self._topology.components.get(name)
        kind: ComponentKind = "spout" if name in self._topology.spouts else "acker" if component is None else "bolt"
        inputs = () if component is None else component.inputs
        class_name = "" if component is None else type(component.made).__name__
        read = [Edge(each.component, name, _text(each.grouping), stream=each.stream) for each in inputs]
        sent = sorted(of for of in sums if isinstance(of, tuple) and of[:2] == (name, "") and of[2])
        executors = tuple(
            ExecutorStatistics(place.tasks, place.worker, _figures(sums[place], capacity))
            for place, capacity in capacities.items()
            if place.component == name
        )
        return ComponentStatistics(
            ComponentDescription(name, kind, name, class_name, len(layout.tasks[name])),
            _figures(sums[name], max(each.figures.capacity for each in executors)),
            tuple(EdgeStatistics(e, _figures(sums[e.source, e.target, e.stream])) for e in read),
            tuple(EdgeStatistics(Edge(name, stream=of[2]), _figures(sums[of])) for of in sent),
            executors,
        )


def _capacities(
    place_of: Mapping[int, ExecutorPlace], difference: Difference[CountKey], uncounted_s: Mapping[int, float]
) -> Mapping[ExecutorPlace, float]:
    seconds = max(difference.seconds, 1e-9)
    busy = {place: min(seconds, uncounted_s.get(place.tasks[0], 0.0)) for place in place_of.values()}
    for key, value in difference.added.items():
        if key.measure in ("execute_s", "busy_s"):
            busy[place_of[key.task]] += value
    return {place: busy_s / seconds for place, busy_s in busy.items()}


def _text(grouping: Grouping) -> str:
    kind = grouping.kind.replace("_", " ")
    return f"{kind} ({', '.join(grouping.fields)})" if grouping.fields else kind


def _figures(sums: Mapping[str, float], capacity: float = 0.0) -> Figures:
    def mean(seconds: str, of: str) -> float | None:
        count = sums.get(of, 0)
        return sums.get(seconds, 0.0) / count * _MS_PER_S if count else None

    emitted, transferred, executed, acked, failed = (
        int(sums.get(measure, 0)) for measure in ("emitted", "transferred", "executed", "acked", "failed")
    )
    means = mean("execute_s", "executed"), mean("process_s", "process_samples"), mean("complete_s", "complete_samples")
    return Figures(emitted, transferred, executed, acked, failed, *means, capacity)
