"""`RunningStormTopology`: a topology of spouts and bolts that runs on Spark."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import cloudpickle

from trident.channel import waitable
from trident.errors import EnvironmentProblem, TopologyError, describe
from trident.observe.events import ReportedError
from trident.roles import close_on_error
from trident.spark.environment import is_spark_on, master_of
from trident.spark.session import spark_session, stop_session
from trident.spark.shipping import ship_code
from trident.spark.spark_resources import Slots
from trident.spark.worker_group import WorkerGroup, WorkerPlace
from trident.storm.execution.launch import Launch
from trident.storm.execution.storm_worker import WorkerSnapshot
from trident.storm.spark.worker_task import CODEC, WorkerOrders, run_worker
from trident.storm.storm_config import StormConfig
from trident.storm.storm_topology import StormTopology, lay_out
from trident.storm.topology_handle import StormHandle, WorkerLostError

if TYPE_CHECKING:
    from pyspark import SparkContext
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
        with close_on_error(self._stop_spark):
            self._slots.take(conf.workers)
            self._monitor = self._make_monitor()
            with close_on_error(self._monitor.close):
                self._supervisor = self._supervise()
        try:
            self._wait_until_ready()
            self._set_active(self._active)
        except BaseException:
            self._supervisor.end()
            self._ended.wait()
            raise

    @property
    def is_deactivated(self) -> bool:
        """Whether its spouts are not to be asked for tuples, and it has not ended."""
        return self.is_active and not self._active

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until it ends, at most `timeout` seconds; returns whether it ended, raises what ended it."""
        ended = self._ended.wait(waitable(timeout))
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
        return self._deaths

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
            launch = rebalanced_launch(self._launch, workers, executors or {})
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
        return Supervisor(
            self._context, self._launch, self._too_many_deaths, self._errors, self._monitor.take, self._over
        )

    def _order(self, active: bool) -> None:
        self._supervisor.order(active)

    def _is_at_rest(self) -> bool:
        return self._supervisor.all_at_rest

    def _wait_until_ready(self) -> None:
        began = monotonic()
        while not self._supervisor.all_ready:
            if self._ended.wait(self.look_s):
                raise self._error or EnvironmentProblem.of_now(
                    f"topology {self.name!r} was stopped while its workers started"
                )
            waited, limit_s = monotonic() - began, self.conf.start_timeout_s
            if waited > min(_PATIENCE_S, limit_s) and self._slots.total < self.conf.workers and not self._slots.grow:
                raise self._slots.too_few(self.conf.workers)
            if waited > limit_s:
                raise EnvironmentProblem.of_now(
                    f"topology {self.name!r}: not all workers are up after start_timeout_s={limit_s:g} "
                    f"({', '.join(each['state'] for each in self.workers)}). One that is 'starting' waits for one of Spark's "
                    f"{self._slots.total} slots; one that is 'opening' waits for open() or prepare() of its spouts and bolts"
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


def rebalanced_launch(launch: Launch, workers: int | None, executors: Mapping[str, int]) -> Launch:
    """Return what the workers run after a rebalance; components that are not named keep their number of executors."""
    layout = launch.layout
    if workers is None:
        workers = layout.workers
    ackers = launch.conf.ackers  # tasks stay, the ackers' too
    conf = replace(launch.conf, workers=workers, acker_executors=ackers)
    for name, number in executors.items():
        if name not in layout.tasks:
            raise TopologyError(f"rebalance: no component {name!r} among {sorted(layout.tasks)}")
        tasks = len(layout.tasks[name])
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= tasks:
            raise TopologyError(
                f"rebalance: component {name!r} has {tasks} tasks, so it can have 1 to {tasks} executors, not {number!r}; "
                "declare more tasks with set_num_tasks"
            )
    threads = {**Counter(place.component for place in layout.executors), **executors}
    return replace(launch, conf=conf, layout=lay_out(launch.topology, workers, ackers, threads))


def open_spark(conf: StormConfig) -> SparkSession:
    """Return the active session, or start Spark, with as many slots as workers if it is a local one; ship our code."""
    master = conf.master or conf.spark_conf.get("spark.master")
    if not is_spark_on() and master_of(master) == "local[*]":
        master = f"local[{conf.workers}]"  # a worker takes a slot, however many cores there are
    spark = spark_session(f"storm-{conf.name}", master, dict(conf.spark_conf))
    ship_code(spark.sparkContext)
    return spark


@dataclass(eq=False)
class BoltPlace(WorkerPlace):
    """One worker of bolts; `beat` is what it reported last, `blocked` are calls that have run for a message timeout."""

    trace: str = ""
    beat: Mapping[str, Any] = field(default_factory=dict)
    blocked: list[tuple[str, float]] = field(default_factory=list)

    def forget(self) -> None:
        super().forget()
        self.beat, self.blocked = {}, []

    def as_status(self, ended: bool) -> dict[str, Any]:
        up = "running" if self.beat.get("ready") else "opening"
        return {
            "worker": self.number,
            "state": "ended" if ended else up if self.beat else "starting",
            "host": self.host,
            "pid": self.pid,
            "incarnation": self.starts,
            "pending": self.beat.get("pending", 0),
            "blocked": dict(self.blocked),
            "links": dict(self.beat.get("links", {})),
        }


class Supervisor(WorkerGroup[BoltPlace]):
    """The driver's side of a topology, from one rebalance to the next; `over` is called once, with what ended the topology."""

    return_s = longest_pause_s = 0.0

    def __init__(
        self,
        context: SparkContext,
        launch: Launch,
        too_many_deaths: Callable[[int, BaseException], BaseException | None],
        errors: deque[ReportedError],
        counted: Callable[[WorkerSnapshot], None],
        over: Callable[[BaseException | None], None],
    ) -> None:
        conf = self._conf = launch.conf
        self._layout = launch.layout
        self._too_many_deaths, self._errors, self._counted, self._over = too_many_deaths, errors, counted, over
        self._orders = WorkerOrders(0, {}, False)
        places, silence_s = [BoltPlace(number) for number in range(launch.layout.workers)], conf.worker_timeout_s
        super().__init__(
            context, conf.name, places, run_worker, cloudpickle.dumps(launch), "", silence_s, silence_s, CODEC
        )
        self.open()

    @property
    def all_ready(self) -> bool:
        with self.changed:
            return not self.closed and all(each.beat.get("ready") for each in self.places)

    @property
    def all_at_rest(self) -> bool:
        with self.changed:
            version = self._orders.version
            return self.all_ready and all(
                each.beat["version"] >= version and each.beat["at_rest"] for each in self.places
            )

    def order(self, active: bool | None = None) -> None:
        """Send all workers where the others are, and whether spouts are asked for tuples; None: as before."""
        with self.changed:
            places = {each.number: (each.beat["address"], each.run) for each in self.places if each.beat}
            is_active = self._orders.active if active is None else active
            self._orders = WorkerOrders(self._orders.version + 1, places, is_active)
            for place in self.places:
                self.tell(place, self._orders)

    def end(self, error: BaseException | None = None) -> None:
        with self.changed:
            if self.closed:
                return
            self.closed = True
        self.end_soon(error)

    def end_soon(self, error: BaseException | None) -> None:
        """End the workers of a closed group, in a thread of its own; then the topology is over."""
        threading.Thread(target=self._end, args=(error,), name=f"storm-{self.topology}-end").start()

    def _end(self, error: BaseException | None) -> None:
        try:
            self.end_all()
        finally:
            self._over(error)

    def guard(self, do: Callable[..., None], *given: Any) -> None:
        """End the topology with an error of this very code, rather than leave it without supervision."""
        try:
            do(*given)
        except Exception as error:
            logger.exception("topology %s: the driver's own code failed", self.topology)
            self.end(error)

    def word(self) -> WorkerOrders:
        return self._orders

    def heed(self, place: BoltPlace, news: Mapping[str, Any]) -> None:
        for error in (ReportedError(**each) for each in news.get("errors", ())):
            self._errors.append(error)
            logger.error(
                "topology %s: component %s (task %d) on %s reports: %s",
                self.topology, error.component, error.task, error.host, error.text.strip().rpartition("\n")[2],
            )  # fmt: skip
        match news["kind"]:
            case "beat":
                is_new, place.beat = not place.beat, news
                if is_new:
                    self.order()
                calls, limit_s = news["snapshot"]["calls"], self._conf.message_timeout_s
                component_of = self._layout.component_of
                place.blocked = [(component_of[tasks[0]], call_s) for tasks, call_s, _, _ in calls if call_s > limit_s]
                self._counted(news["snapshot"])
            case "died":
                place.trace = news["text"]
                self.lose(place, news["error"], EnvironmentProblem(news["error"]) if news["final"] else None)
                place.expected_by = monotonic()
            case "ended":
                for each in news["blocked"]:
                    logger.warning(
                        "topology %s: worker %d ended, but a call of its code does not return: %s",
                        self.topology, place.number, each,
                    )  # fmt: skip

    def on_loss(self, place: BoltPlace, run: str, cause: str, problem: EnvironmentProblem | None) -> None:
        """End the topology if a worker has died too often, or another try cannot help."""
        if self.closed:
            return
        death = problem or WorkerLostError(cause)
        if place.trace:
            death.add_note(place.trace)
            place.trace = ""
        error = problem or self._too_many_deaths(place.number, death)
        if error is None:
            self.order()
        else:
            self.end(error)
