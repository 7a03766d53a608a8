"""`TopologyMonitor`: takes in the workers' snapshots; makes statuses, log lines and metrics of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from time import monotonic

from trident.observe.at_work import AtWork, RunningCall, StallLog
from trident.observe.component_statistics import TopologyStatistics
from trident.observe.events import ReportedError
from trident.observe.open_metrics import MetricsServer, StormMetrics
from trident.observe.time_series import TimeSeries
from trident.observe.topology_status import TopologyStatus, WorkerStatus
from trident.storm.execution.task_layout import TaskLayout
from trident.storm.statistics.collected_totals import Collected
from trident.storm.statistics.worker_snapshots import Calls, WorkerSnapshot
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology

logger = logging.getLogger("trident.storm")

_LOGGED_WINDOW_S = 600
_LOOK_S = 1.0
_SILENT_S = 10.0  # what a worker was at before it was silent for so long says nothing of now
_MS_PER_S = 1000
_BUSIEST = 2


class TopologyMonitor:
    """One for each running topology, on the side that its user has.

    Parameters
    ----------
    layout, active, errors
        Return what there is now: a rebalance changes the layout.

    Raises
    ------
    ConfigError
        Metrics cannot be served at the address.
    EnvironmentProblem
        Metrics are wanted and the package `prometheus-client` is missing.
    """

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
        """Where metrics are served, None without `metrics_port`."""
        return None if self._server is None else self._server.url

    def take(self, snapshot: WorkerSnapshot) -> None:
        """Take in what a worker reports, about once a second; log a line when it is time for one."""
        now = self._clock()
        happened = self._collected.take(snapshot, now)
        self._heard[snapshot["worker"]] = (now, snapshot)
        pending = self._pending()
        happened.lags = {"messages": pending}
        self._series.add(happened, now)
        if happened.tuples or not pending:
            self._moved = now
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            may_stall = now - self._moved >= _LOOK_S or any(calls for _, _, calls in self._present(self._layout(), now))
            self._stalls.look(self.status.at_work if may_stall else AtWork())
        if self._conf.log_interval_s is not None and now >= self._next_line:
            self._next_line = now + self._conf.log_interval_s
            logger.info("%s", _line(self.status))

    @property
    def status(self) -> TopologyStatus:
        """The topology as of the last snapshots."""
        now, layout = self._clock(), self._layout()
        uncounted_s = {
            tasks[0]: uncounted + ago
            for _, ago, present in self._present(layout, now)
            for tasks, _, uncounted, _ in present
        }
        statistics = self._collected.statistics(layout, now, uncounted_s)
        workers = tuple(
            WorkerStatus(
                number,
                snapshot["host"],
                snapshot["pid"],
                snapshot["uptime_s"],
                now - heard,
                snapshot["pending"],
                snapshot["port"],
            )
            for number, (heard, snapshot) in sorted(self._heard.copy().items())
            if number < layout.workers
        )
        pending = sum(each.pending for each in workers)
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

    def _pending(self) -> int:
        return sum(snapshot["pending"] for _, snapshot in self._heard.copy().values())

    def _present(self, layout: TaskLayout, now: float) -> list[tuple[int, float, Calls]]:
        """Return the calls of each worker that has been heard of lately, and how long ago that was."""
        return [
            (number, now - heard, snapshot["calls"])
            for number, (heard, snapshot) in sorted(self._heard.copy().items())
            if number < layout.workers and now - heard < _SILENT_S
        ]

    def _at_work(self, layout: TaskLayout, statistics: TopologyStatistics, now: float) -> AtWork:
        components = statistics.over(_LOGGED_WINDOW_S).components
        usual_ms = {name: each.figures.execute_latency_ms or 0.0 for name, each in components.items()}
        latencies = [each.figures.complete_latency_ms or 0.0 for each in components.values()]
        calls = tuple(
            RunningCall(component, tuple(tasks), number, seconds + ago, where, usual_ms.get(component, 0.0) / _MS_PER_S)
            for number, ago, present in self._present(layout, now)
            for tasks, seconds, _, where in present
            if where and (component := layout.component_of.get(tasks[0]))
        )
        pending = self._pending()
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
