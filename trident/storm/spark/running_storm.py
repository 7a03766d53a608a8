"""`RunningStormTopology`: a topology of spouts and bolts that runs on Spark."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from trident.errors import ConfigError, EnvironmentProblem, TopologyError, describe
from trident.spark.environment import is_spark_on, master_of
from trident.spark.session import spark_session, stop_session
from trident.spark.shipping import ship_code
from trident.spark.spark_resources import Slots
from trident.storm.execution.executor import Launch
from trident.storm.spark.supervisor import Supervisor
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology, TaskLayout, lay_out
from trident.storm.topology_handle import StormHandle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("trident.storm")

_PATIENCE_S = 10.0  # for executors of a cluster that are still on their way


class RunningStormTopology(StormHandle):
    """A topology that runs on Spark: what `TopologyBuilder.start` returns.

    Use it as a context manager: leaving it stops the topology after what is pending.
    """

    look_s, rested_s = 0.02, 0.3

    def __init__(self, topology: StormTopology, conf: StormConfig, active: bool = True) -> None:
        super().__init__(topology, conf, active)
        self._owned = not is_spark_on()
        self._spark = open_spark(conf)
        self._context = self._spark.sparkContext
        self._slots = Slots(self._context, conf.name)
        try:
            self._slots.take(conf.workers)
            self._monitor = self._monitored()
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
    def is_deactivated(self) -> bool:
        """Whether its spouts are not to be asked for tuples, and it has not ended."""
        return self.is_active and not self._active

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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.stop()
        if error is None and self._error is not None:
            raise self._error

    def __repr__(self) -> str:
        ended = "stopped" if self._error is None else f"failed: {self._error}"
        return f"RunningStormTopology({self.name!r}, {'running' if self.is_active else ended}, {self.conf.workers} workers)"

    def _supervise(self) -> Supervisor:
        return Supervisor(self._context, self._launch, self._watch, self._errors, self._monitor.take, self._over)

    def _order(self, active: bool) -> None:
        self._supervisor.order(active)

    def _is_at_rest(self) -> bool:
        return self._supervisor.all_at_rest

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
            if self._ended.wait(self.look_s):
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


def rebalanced(launch: Launch, workers: int | None, executors: Mapping[str, int]) -> Launch:
    """Return what the workers run after a rebalance; components that are not named keep their number of executors.

    Raises `TopologyError`: no such component, or a number of executors that its tasks do not allow.
    Raises `ConfigError`: fewer than one worker.
    """
    layout = launch.layout
    if workers is None:
        workers = layout.workers
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigError(f"rebalance: workers={workers!r} must be a whole number of at least 1")
    _check(layout, executors)
    threads = {**Counter(place.component for place in layout.executors), **executors}
    ackers = launch.conf.ackers  # tasks stay, the ackers' too
    conf = replace(launch.conf, workers=workers, acker_executors=ackers)
    return replace(launch, conf=conf, layout=lay_out(launch.topology, workers, ackers, threads))


def _check(layout: TaskLayout, executors: Mapping[str, int]) -> None:
    for name, number in executors.items():
        if name not in layout.tasks:
            raise TopologyError(f"rebalance: no component {name!r} among {sorted(layout.tasks)}")
        tasks = len(layout.tasks[name])
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= tasks:
            raise TopologyError(
                f"rebalance: component {name!r} has {tasks} tasks, so it can have 1 to {tasks} executors, not {number!r}; "
                "declare more tasks with set_num_tasks"
            )


def open_spark(conf: StormConfig) -> SparkSession:
    """Return the active session, or start Spark, with as many slots as workers if it is a local one; ship our code."""
    master = conf.master
    if not is_spark_on() and master_of(master) == "local[*]":
        master = f"local[{conf.workers}]"  # a worker takes a slot, however many cores there are
    spark = spark_session(f"storm-{conf.name}", master, dict(conf.spark_conf))
    ship_code(spark.sparkContext)
    return spark
