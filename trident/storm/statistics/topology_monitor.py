"""`TopologyMonitor`: takes in the workers' snapshots; makes statuses, log lines and metrics of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from time import monotonic

from trident.monitoring.metrics_server import MetricsServer
from trident.statistics.reported_errors import ReportedError
from trident.storm.execution.task_layout import Layout
from trident.storm.statistics.collected_totals import Collected
from trident.storm.statistics.statistics_figures import WorkerStatus
from trident.storm.statistics.storm_metrics import StormMetrics
from trident.storm.statistics.topology_status import TopologyStatus
from trident.storm.statistics.worker_snapshots import Snapshot
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology

__all__ = ["TopologyMonitor"]

logger = logging.getLogger("trident.storm")

_LOGGED_WINDOW_S = 600
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
        layout: Callable[[], Layout],
        active: Callable[[], bool],
        errors: Callable[[], Sequence[ReportedError]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._conf, self._clock = conf, clock
        self._layout, self._active, self._errors = layout, active, errors
        self._began = clock()
        self._collected = Collected(topology, self._began)
        self._heard: dict[int, tuple[float, Snapshot]] = {}
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

    def take(self, snapshot: Snapshot) -> None:
        """Take in what a worker tells, about once a second; log a line when it is time for one."""
        now = self._clock()
        self._collected.take(snapshot, now)
        self._heard[snapshot["worker"]] = (now, snapshot)
        if self._conf.log_interval_s is not None and now >= self._next_line:
            self._next_line = now + self._conf.log_interval_s
            logger.info("%s", _line(self.status))

    @property
    def status(self) -> TopologyStatus:
        """The topology as of the last snapshots."""
        now, layout = self._clock(), self._layout()
        workers = tuple(
            WorkerStatus(
                number,
                snapshot["host"],
                snapshot["pid"],
                snapshot["uptime_s"],
                now - heard,
                sum(count for _, count in snapshot["pending"]),
            )
            for number, (heard, snapshot) in sorted(self._heard.copy().items())
            if number < layout.workers
        )
        return TopologyStatus(
            self._conf.name,
            self._active(),
            now - self._began,
            self._conf.message_timeout_s,
            workers,
            len(layout.executors),
            len(layout.component_of),
            sum(each.pending for each in workers),
            tuple(self._errors()),
            self._collected.statistics(layout, now),
        )

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
    busy = sorted(((each.figures.capacity or 0.0, each.component) for each in window.components.values()), reverse=True)
    busiest = ", ".join(f"{component} {capacity:.0%}" for capacity, component in busy[:_BUSIEST])
    return (
        f"topology {status.name}: {figures.acked / seconds:.1f} messages/s acked{latency}, {figures.failed} failed, "
        f"{status.pending} pending; busiest: {busiest}; {len(status.errors)} errors"
    )
