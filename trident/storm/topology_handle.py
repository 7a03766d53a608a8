"""What users hold of a topology that runs, in this process or on Spark, and what it ends with if its workers die too often."""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic

from trident.errors import TridentError
from trident.observe.events import ReportedError
from trident.observe.topology_status import TopologyStatus
from trident.storm.execution.launch import Launch
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology
from trident.storm.topology_monitor import TopologyMonitor


class WorkerLostError(TridentError):
    """A worker's process ended, or was not heard from for too long. Its executors start again elsewhere."""


class TopologyDiedError(TridentError):
    """The workers of a topology died too often; the cause is what the last one died of."""

    def __init__(self, topology: str, deaths: int, window_s: float, worker: int, cause: str) -> None:
        super().__init__(topology, deaths, window_s, worker, cause)

    def __str__(self) -> str:
        topology, deaths, window_s, worker, cause = self.args
        return (
            f"topology {topology!r} ended: its workers died {deaths} times within {window_s:g} s, worker {worker} last, of: "
            f"{cause}. Unanswered messages are still with their queues. Fix the cause and start it again; "
            "max_worker_deaths allows more"
        )


class DeathWatch:
    """Counts the deaths of workers."""

    def __init__(self, conf: StormConfig) -> None:
        self._conf = conf
        self._deaths: deque[float] = deque()
        self.total = 0

    def too_many(self, worker: int, error: BaseException) -> TopologyDiedError | None:
        """Count a death; return what the topology ends with if that was one too many."""
        now = monotonic()
        self.total += 1
        self._deaths.append(now)
        while self._deaths[0] < now - self._conf.worker_deaths_window_s:
            self._deaths.popleft()
        if len(self._deaths) <= self._conf.max_worker_deaths:
            return None
        ended = TopologyDiedError(
            self._conf.name, len(self._deaths), self._conf.worker_deaths_window_s, worker, str(error)
        )
        ended.__cause__ = error
        return ended


class StormHandle:
    """A topology that runs.

    `look_s`: how often `drain` looks whether all rests.
    `rested_s`: for how long all must rest, because a delivery may be between two executors when they are looked at.
    """

    look_s, rested_s = 0.01, 0.02

    def __init__(self, topology: StormTopology, conf: StormConfig, active: bool = True) -> None:
        self.conf = conf
        self._launch = Launch.of(topology, conf)
        self._watch, self._errors = DeathWatch(conf), deque[ReportedError](maxlen=100)
        self._error: BaseException | None = None
        self._ended, self._changing, self._active = threading.Event(), threading.RLock(), active
        self._monitor: TopologyMonitor

    @property
    def name(self) -> str:
        """Its name."""
        return self.conf.name

    @property
    def is_active(self) -> bool:
        """Whether it runs."""
        return not self._ended.is_set()

    @property
    def status(self) -> TopologyStatus:
        """Workers, executors, tasks, errors and statistics, as of the workers' last beats."""
        return self._monitor.status

    @property
    def metrics_url(self) -> str | None:
        """Where metrics are served, None without `metrics_port`."""
        return self._monitor.metrics_url

    @property
    def errors(self) -> list[ReportedError]:
        """The last errors that spouts and bolts reported, or died of."""
        return list(self._errors)

    def exception(self) -> BaseException | None:
        """Return what ended the topology, None if it runs or was stopped."""
        return self._error

    def activate(self) -> None:
        """Let the spouts be asked for tuples again."""
        self._set_active(True)

    def deactivate(self) -> None:
        """Let the spouts be asked for no more tuples; what is pending goes on."""
        self._set_active(False)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is pending, waiting or executing; return whether that was so in time. Deactivate first."""
        ends = monotonic() + (self.conf.drain_timeout_s if timeout_s is None else timeout_s)
        rested = 0.0
        while monotonic() < ends and not self._ended.wait(self.look_s):
            rested = (rested or monotonic()) if self._is_at_rest() else 0.0
            if rested and monotonic() - rested > self.rested_s:
                return True
        return False

    def _monitored(self) -> TopologyMonitor:
        return TopologyMonitor(
            self.conf,
            self._launch.topology,
            lambda: self._launch.layout,
            lambda: self._active and self.is_active,
            lambda: self.errors,
        )

    def _set_active(self, active: bool) -> None:
        with self._changing:
            self._active = active
            self._order(active)

    def _order(self, active: bool) -> None:
        """Tell all workers whether spouts are asked for tuples."""
        raise NotImplementedError

    def _is_at_rest(self) -> bool:
        raise NotImplementedError
