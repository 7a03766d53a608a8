"""Watches the workers of a topology: which are there, what they report, and when they have died too often."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

import cloudpickle

from trident.errors import EnvironmentProblem
from trident.observe.events import ReportedError
from trident.spark.worker_group import WorkerGroup, WorkerPlace
from trident.storm.execution.executor import Launch
from trident.storm.execution.storm_worker import WorkerSnapshot
from trident.storm.spark.worker_task import CODEC, WorkerOrders, run_worker
from trident.storm.topology_handle import DeathWatch, WorkerLostError

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger("trident.storm")


@dataclass(eq=False)
class BoltPlace(WorkerPlace):
    """One worker of bolts.

    `beat`: what its process has reported last; empty until it has.
    `blocked`: the components with a call that has not returned for a message timeout, and for how many seconds.
    `trace`: of the error that its process says it dies of.
    """

    trace: str = ""
    beat: Mapping[str, Any] = field(default_factory=dict)
    blocked: list[tuple[str, float]] = field(default_factory=list)

    def forget(self) -> None:
        super().forget()
        self.beat, self.blocked = {}, []

    def as_status(self, ended: bool) -> dict[str, Any]:
        """Return what `RunningStormTopology.workers` shows."""
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
    """The driver's side of a topology, from one rebalance to the next.

    `watch`, `errors`: the deaths and reported errors of the whole life of the topology.
    `counted`: takes the workers' statistics.
    `over`: called once with what ended the topology: None if it was asked to end. Not after `close`.
    """

    return_s = longest_pause_s = 0.0

    def __init__(
        self,
        context: SparkContext,
        launch: Launch,
        watch: DeathWatch,
        errors: deque[ReportedError],
        counted: Callable[[WorkerSnapshot], None],
        over: Callable[[BaseException | None], None],
    ) -> None:
        conf, self._layout = launch.conf, launch.layout
        self._conf, self._watch, self._errors, self._counted, self._over = conf, watch, errors, counted, over
        self._orders = WorkerOrders(0, {}, False)
        places, silence_s = [BoltPlace(number) for number in range(launch.layout.workers)], conf.worker_timeout_s
        super().__init__(
            context, conf.name, places, run_worker, cloudpickle.dumps(launch), "", silence_s, silence_s, CODEC
        )
        self.open()

    @property
    def all_ready(self) -> bool:
        """Whether every worker is up, with all its tasks open."""
        with self.changed:
            return not self.closed and all(each.beat.get("ready") for each in self.places)

    @property
    def all_at_rest(self) -> bool:
        """Whether every worker has heard of the last orders, and has nothing pending."""
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
        """Have all workers end; return at once."""
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

    # ---- what a group asks ------------------------------------------------------------------------------------------

    def word(self) -> WorkerOrders:
        return self._orders

    def heed(self, place: BoltPlace, news: Mapping[str, Any]) -> None:
        for error in news.get("errors", ()):
            self._report(ReportedError(**error))
        match news["kind"]:
            case "beat":
                self._take_beat(place, news)
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
        error = problem or self._watch.too_many(place.number, death)
        if error is None:
            self.order()
        else:
            self.end(error)

    def _take_beat(self, place: BoltPlace, beat: Mapping[str, Any]) -> None:
        is_new, place.beat = not place.beat, beat
        if is_new:
            self.order()
        snapshot: WorkerSnapshot = beat["snapshot"]
        component_of, limit_s = self._layout.component_of, self._conf.message_timeout_s
        place.blocked = [
            (component_of[tasks[0]], call_s) for tasks, call_s, _, _ in snapshot["calls"] if call_s > limit_s
        ]
        self._counted(snapshot)

    def _report(self, error: ReportedError) -> None:
        self._errors.append(error)
        last = error.text.strip().rpartition("\n")[2]
        logger.error(
            "topology %s: component %s (task %d) on %s reports: %s",
            self.topology, error.component, error.task, error.host, last,
        )  # fmt: skip
