"""What users hold of a topology that runs, and `LocalCluster`, which runs one with threads in this process, for tests."""

import logging
import threading
from collections import deque
from collections.abc import Mapping
from time import monotonic
from typing import Any, Self

from trident.channel import waitable
from trident.errors import TopologyError, TridentError
from trident.observe.events import ReportedError
from trident.observe.topology_status import TopologyStatus
from trident.storm.execution.launch import Launch, TaskError
from trident.storm.execution.messages import LocalMail
from trident.storm.execution.storm_worker import Worker, inboxes_of
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology
from trident.storm.topology_monitor import TopologyMonitor

logger = logging.getLogger("trident.storm")

_STOP_S = 5.0
_COUNT_S = 1.0


class WorkerLostError(TridentError):
    """A worker's process ended, or was not heard from for too long. Its executors start again elsewhere."""


class TopologyDiedError(TridentError):
    """The workers of a topology died too often; the cause is what the last one died of."""

    def __init__(self, topology: str, deaths: int, window_s: float, worker: int, cause: str) -> None: ...

    def __str__(self) -> str:
        topology, deaths, window_s, worker, cause = self.args
        return (
            f"topology {topology!r} ended: its workers died {deaths} times within {window_s:g} s, worker {worker} last, of: "
            f"{cause}. Unanswered messages are still with their queues. Fix the cause and start it again; "
            "max_worker_deaths allows more"
        )


class StormHandle:
    """A topology that runs. `drain` wants all at rest for `rested_s`: a delivery may be between two executors."""

    look_s, rested_s = 0.01, 0.02

    def __init__(self, topology: StormTopology, conf: StormConfig, active: bool = True) -> None:
        self.conf = conf
        self._launch = Launch.of(topology, conf)
        self._deaths, self._died_at = 0, list[float]()
        self._errors = deque[ReportedError](maxlen=100)
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

    def _too_many_deaths(self, worker: int, error: BaseException) -> TopologyDiedError | None:
        """Count the death of a worker; return what ends the topology if it is one too many."""
        now, window_s = monotonic(), self.conf.worker_deaths_window_s
        self._deaths += 1
        self._died_at = [*(at for at in self._died_at if at >= now - window_s), now]
        if len(self._died_at) <= self.conf.max_worker_deaths:
            return None
        ended = TopologyDiedError(self.name, len(self._died_at), window_s, worker, str(error))
        ended.__cause__ = error
        return ended

    def _make_monitor(self) -> TopologyMonitor:
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
        raise NotImplementedError

    def _is_at_rest(self) -> bool:
        raise NotImplementedError


class LocalTopology(StormHandle):
    """A topology that runs in this process: what `submit_topology` returns."""

    def __init__(self, topology: StormTopology, conf: StormConfig) -> None:
        super().__init__(topology, conf)
        self._inboxes = inboxes_of(self._launch.layout.executors, conf.receive_buffer_size)
        self._monitor = self._make_monitor()
        self._workers: dict[int, Worker] = {}
        self._counting = threading.Lock()
        self._counter = threading.Thread(target=self._go_on_counting, name=f"{conf.name}-statistics", daemon=True)
        self._counter.start()
        for number in range(conf.workers):
            self._make(number)
        for worker in self._workers.values():
            worker.start()

    @property
    def pending(self) -> int:
        """How many tracked messages are not answered."""
        return sum(each.pending for each in self._workers.values())

    @property
    def status(self) -> TopologyStatus:
        """Workers, executors, tasks, errors and statistics as they are now."""
        self._count()
        return super().status

    def stop(self) -> None:
        """Deactivate the spouts, wait for what is pending, end. Raises what ended the topology, if it ended by itself."""
        self.deactivate()
        self.drain()
        self._end(None)
        if self._error is not None:
            raise self._error

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; return whether it has. Raises what ended it."""
        ended = self._ended.wait(waitable(timeout_s))
        if self._error is not None:
            raise self._error
        return ended

    def _make(self, number: int) -> None:
        mail = LocalMail(self._inboxes)
        setting = self._launch.setting(mail, self._report)
        worker = Worker(number, setting, mail, lambda error: self._on_death(number, error))
        worker.set_active(self._active)
        self._count()  # the last figures of the one that has ended
        with self._counting:
            self._workers[number] = worker

    def _count(self) -> None:
        with self._counting:  # a snapshot that is taken later is also handed in later
            for each in self._workers.values():
                self._monitor.take(each.snapshots.take())

    def _go_on_counting(self) -> None:
        while not self._ended.wait(_COUNT_S):
            self._count()

    def _order(self, active: bool) -> None:
        for worker in self._workers.values():
            worker.set_active(active)

    def _is_at_rest(self) -> bool:
        return all(each.at_rest for each in self._workers.values())

    def _report(self, component: str, task: int, error: BaseException) -> None:
        self._errors.append(ReportedError.of(component, task, error))
        logger.error("topology %s: component %s (task %d) reports: %s", self.name, component, task, error)

    def _on_death(self, number: int, error: BaseException) -> None:
        """Start a worker again, with fresh instances; called by a thread of the worker that died."""
        if isinstance(error, TaskError):
            self._report(error.component, error.task, error)
        threading.Thread(target=self._restart, args=(number, error), name=f"restart-{number}", daemon=True).start()

    def _restart(self, number: int, error: BaseException) -> None:
        with self._changing:
            if self._ended.is_set():
                return
            too_many = self._too_many_deaths(number, error)
            self._stop_worker(self._workers[number])
            if too_many is None:
                self._make(number)
        if too_many is None:
            self._workers[number].start()
        else:
            self._end(too_many)

    def _stop_worker(self, worker: Worker) -> None:
        for name in worker.stop(_STOP_S):
            logger.warning("topology %s: %s did not end within %g s, because its call blocks", self.name, name, _STOP_S)

    def _end(self, error: BaseException | None) -> None:
        with self._changing:
            if self._ended.is_set():
                return
            self._error = error
            for worker in self._workers.values():
                self._stop_worker(worker)
            self._count()
            self._monitor.close()
            self._ended.set()
            self._counter.join()


class LocalCluster:
    """Runs topologies in this process; a context manager that stops them."""

    def __init__(self) -> None:
        self.topologies: dict[str, LocalTopology] = {}

    def submit_topology(
        self, name: str, conf: StormConfig | Mapping[str, Any] | None, topology: StormTopology, **settings: Any
    ) -> LocalTopology:
        """Start a topology; return once all its spouts and bolts are open.

        `TopologyError` if one of this name runs already, or a component cannot be pickled; `TopologyDiedError` if its spouts
        and bolts could not be opened.
        """
        if name in self.topologies:
            raise TopologyError(
                f"topology {name!r} runs already in this LocalCluster; kill it first, or choose another name"
            )
        running = LocalTopology(topology, StormConfig.of(conf, **settings, name=name))
        self.topologies[name] = running
        error = running.exception()
        if error is not None:
            self.topologies.pop(name)
            raise error
        return running

    def kill_topology(self, name: str) -> None:
        """Stop a topology: spouts first, then what is pending."""
        running = self.topologies.pop(name, None)
        if running is None:
            raise TopologyError(f"no topology {name!r} runs in this LocalCluster; there are {sorted(self.topologies)}")
        running.stop()

    def shutdown(self) -> None:
        """Stop all topologies."""
        first: BaseException | None = None
        for name in list(self.topologies):
            try:
                self.kill_topology(name)
            except TridentError as error:
                first = first or error
        if first is not None:
            raise first

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.shutdown()
        except TridentError as ended:
            if error is None:
                raise
            logger.error("%s", ended)  # the error of the block is the one to raise
