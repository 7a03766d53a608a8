"""`LocalObserver`: looks after the workers of this process, once a second."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from trident.observe.reported_errors import ReportedError
from trident.observe.topology_status import TopologyStatus
from trident.storm.execution.storm_worker import Worker
from trident.storm.execution.task_layout import TaskLayout
from trident.storm.statistics.topology_monitor import TopologyMonitor
from trident.storm.statistics.worker_snapshots import WorkerSnapshots
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology

_EVERY_S = 1.0


class LocalObserver:
    """The monitor of a topology whose workers run in this process, and the thread that feeds it."""

    def __init__(
        self,
        conf: StormConfig,
        topology: StormTopology,
        layout: Callable[[], TaskLayout],
        active: Callable[[], bool],
        errors: Callable[[], Sequence[ReportedError]],
    ) -> None:
        self._monitor = TopologyMonitor(conf, topology, layout, active, errors)
        self._followed: dict[int, tuple[Worker, WorkerSnapshots]] = {}
        self._taking = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{conf.name}-statistics", daemon=True)
        self._thread.start()

    @property
    def metrics_url(self) -> str | None:
        """Where metrics are served, None without `metrics_port`."""
        return self._monitor.metrics_url

    @property
    def status(self) -> TopologyStatus:
        """The topology as it is now."""
        self._take()
        return self._monitor.status

    def follow(self, worker: Worker) -> None:
        """Look after a worker from now on, in place of the one of the same number that has ended."""
        self._take()  # the last figures of that one
        with self._taking:
            self._followed[worker.number] = worker, WorkerSnapshots(worker.number, worker.executors, worker.at_work)

    def close(self) -> None:
        """Take in what the workers did last, and end."""
        self._closed.set()
        self._thread.join()
        self._take()
        self._monitor.close()

    def _run(self) -> None:
        while not self._closed.wait(_EVERY_S):
            self._take()

    def _take(self) -> None:
        with self._taking:  # a snapshot that is taken later is also handed in later
            for _, snapshots in list(self._followed.values()):
                self._monitor.take(snapshots.take())
