"""`RunningStormTopology`: a topology of spouts and bolts that runs on Spark."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from time import monotonic
from types import TracebackType
from typing import Any, Self

from trident.errors import EnvironmentProblem, TopologyError, describe
from trident.observe.events import ReportedError
from trident.observe.topology_status import TopologyStatus
from trident.spark.environment import is_spark_on
from trident.spark.session import stop_session
from trident.spark.worker_slots import Slots
from trident.storm.execution.executor import Launch
from trident.storm.spark.slots import open_spark, rebalanced
from trident.storm.spark.supervisor import Supervisor
from trident.storm.statistics import TopologyMonitor
from trident.storm.storm_config import StormConfig
from trident.storm.storm_errors import DeathWatch
from trident.storm.storm_topology import StormTopology

logger = logging.getLogger("trident.storm")

_LOOK_S = 0.02
_ERRORS = 100
_PATIENCE_S = 10.0  # for executors of a cluster that are still on their way
_RESTED_S = 0.3  # a delivery may be between two workers when they are asked, so what they say must hold for a while


class RunningStormTopology:
    """A topology that runs on Spark: what `TopologyBuilder.start` returns.

    Use it as a context manager: leaving it stops the topology after what is pending.
    """

    def __init__(self, topology: StormTopology, conf: StormConfig, active: bool = True) -> None:
        self.conf = conf
        self._launch = Launch.of(topology, conf)
        self._error: BaseException | None = None
        self._watch, self._errors = DeathWatch(conf), deque[ReportedError](maxlen=_ERRORS)
        self._ended = threading.Event()
        self._changing = threading.RLock()
        self._active = active
        self._owned = not is_spark_on()
        self._spark = open_spark(conf)
        self._context = self._spark.sparkContext
        self._slots = Slots(self._context, conf.name)
        try:
            self._slots.take(conf.workers)
            self._monitor = TopologyMonitor(
                conf,
                topology,
                lambda: self._launch.layout,
                lambda: self._active and self.is_active,
                lambda: self.errors,
            )
            try:
                self._supervisor = self._supervise()
            except BaseException:
                self._monitor.close()
                raise
        except BaseException:
            self._stop_spark()
            raise
        self._wait_until_up()

    @property
    def name(self) -> str:
        """Its name."""
        return self.conf.name

    # ---- the names of Trident's RunningTopology ---------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether it runs."""
        return not self._ended.is_set()

    @property
    def is_deactivated(self) -> bool:
        """Whether its spouts are not to be asked for tuples, and it has not ended."""
        return self.is_active and not self._active

    @property
    def status(self) -> TopologyStatus:
        """Workers, executors, tasks, errors and statistics, as of the workers' last beats."""
        return self._monitor.status

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until it ends, at most `timeout` seconds; returns whether it ended, raises what ended it."""
        ended = self._ended.wait(timeout)
        if ended and self._error is not None:
            raise self._error
        return ended

    def stop(self) -> None:
        """Deactivate the spouts, wait for what is pending (`drain_timeout_s`), end all workers."""
        with self._changing:
            if not self._ended.is_set():
                self.deactivate()
                if not self.drain() and not self._ended.is_set():
                    logger.warning(
                        "topology %s: %d messages are still pending after drain_timeout_s=%g; they go back to their queues",
                        self.name, self.pending, self.conf.drain_timeout_s,
                    )  # fmt: skip
                self._supervisor.end()
        self._ended.wait()

    def exception(self) -> BaseException | None:
        """Return what ended the topology, None if it runs or was stopped."""
        return self._error

    # ---- Storm's ------------------------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[dict[str, Any]]:
        """Each worker: what it does (`starting`, `opening`, `running`, `ended`), its host, process and links."""
        return [each.as_status(not self.is_active) for each in self._supervisor.places]

    @property
    def deaths(self) -> int:
        """How often a worker has died."""
        return self._watch.total

    @property
    def pending(self) -> int:
        """How many tracked messages are not answered, as of the workers' last beats."""
        return sum(each.beat.get("pending", 0) for each in self._supervisor.places)

    @property
    def errors(self) -> list[ReportedError]:
        """The last errors that spouts and bolts reported, or died of."""
        return list(self._errors)

    @property
    def metrics_url(self) -> str | None:
        """Where metrics are served, None without `metrics_port`."""
        return self._monitor.metrics_url

    def activate(self) -> None:
        """Let the spouts be asked for tuples again."""
        self._set_active(True)

    def deactivate(self) -> None:
        """Let the spouts be asked for no more tuples; what is pending goes on."""
        self._set_active(False)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is pending; whether that was so in time. Deactivate first."""
        ends = monotonic() + (self.conf.drain_timeout_s if timeout_s is None else timeout_s)
        rested = 0.0
        while monotonic() < ends and not self._ended.wait(_LOOK_S):
            rested = (rested or monotonic()) if self._supervisor.all_at_rest else 0.0
            if rested and monotonic() - rested > _RESTED_S:
                return True
        return False

    def rebalance(
        self, workers: int | None = None, executors: Mapping[str, int] | None = None, wait_s: float | None = None
    ) -> None:
        """Run with other numbers of workers and executors; tasks keep their numbers, but their instances are new ones.

        Spouts are deactivated; what is pending has `wait_s` seconds (default: `message_timeout_s`) to be processed.

        Raises `TopologyError`: no such component; more executors than it has tasks; or the topology has ended.
        Raises `EnvironmentProblem`: Spark has fewer slots than workers: nothing was changed. Or not all workers are up after
        `start_timeout_s`: they have the new numbers, and those that are late join the others when they are up.
        """
        with self._changing:
            if self._ended.is_set():
                raise TopologyError(f"topology {self.name!r} has ended")
            launch = rebalanced(self._launch, workers, executors or {})
            self._slots.take(launch.layout.workers)
            was_active = self._active
            self.deactivate()
            try:
                self.drain(self.conf.message_timeout_s if wait_s is None else wait_s)
                self._launch, self.conf = launch, launch.conf
                try:
                    if self._supervisor.close():
                        self._supervisor = self._supervise()
                except BaseException as error:  # the workers are ending, and there are no others
                    self._supervisor.end_soon(error)
                    raise
                self._wait_until_ready()
            finally:  # workers that are late get this when they are up, as restarted ones do
                self._set_active(was_active)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None and self._error is not None:
            raise self._error

    def __repr__(self) -> str:
        ended = "stopped" if self._error is None else f"failed: {self._error}"
        return f"RunningStormTopology({self.name!r}, {'running' if self.is_active else ended}, {self.conf.workers} workers)"

    # ---- inside -------------------------------------------------------------------------------------------------------

    def _supervise(self) -> Supervisor:
        return Supervisor(self._context, self._launch, self._watch, self._errors, self._monitor.take, self._over)

    def _set_active(self, active: bool) -> None:
        with self._changing:
            self._active = active
            self._supervisor.order(active)

    def _wait_until_up(self) -> None:
        try:
            self._wait_until_ready()
            self._set_active(self._active)
        except BaseException:
            self._supervisor.end()
            self._ended.wait()
            raise

    def _wait_until_ready(self) -> None:
        began = monotonic()
        while not self._supervisor.all_ready:
            if self._ended.wait(_LOOK_S):
                raise self._error or EnvironmentProblem.of_now(
                    f"topology {self.name!r} was stopped while its workers started"
                )
            waited = monotonic() - began
            if waited > min(_PATIENCE_S, self.conf.start_timeout_s):
                self._check_starting(waited)

    def _check_starting(self, waited: float) -> None:
        """Raise the reason for which workers have not started, if it is known, or it has taken too long."""
        if self._slots.found < self.conf.workers and not self._slots.grow:
            raise self._slots.too_few(self.conf.workers)
        if waited > self.conf.start_timeout_s:
            raise EnvironmentProblem.of_now(
                f"topology {self.name!r}: not all workers are up after start_timeout_s={self.conf.start_timeout_s:g} "
                f"({', '.join(each['state'] for each in self.workers)}). One that is 'starting' waits for one of Spark's "
                f"{self._slots.found} slots; one that is 'opening' waits for open() or prepare() of its spouts and bolts"
            )

    def _over(self, error: BaseException | None) -> None:
        self._error = error
        if error is not None:
            logger.error("topology %s ended: %s", self.name, describe(error))
        self._monitor.close()
        self._stop_spark()
        self._ended.set()

    def _stop_spark(self) -> None:
        self._slots.release()
        if self._owned:
            stop_session(self._spark)
