"""All workers of a topology, as its driver sees them: each one's slot, orders and jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import cloudpickle

from trident.spark.link_keys import Keys
from trident.spark.worker_jobs import WorkerJob
from trident.storm.spark.worker_registry import Launch, Registry, Ticket, WorkerOrders
from trident.storm.spark.worker_task import run_worker

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger("trident.storm")

_LOOK_S = 0.02
_END_S = 8.0  # after which a worker that was asked to end is ended by Spark
_KILL_S = 10.0


class Crew:
    """Starts workers, sends them their orders, ends them; the supervisor's thread alone changes it.

    `ended`: told by the thread of a job when it is over, see `WorkerJob`.
    """

    def __init__(
        self, context: SparkContext, launch: Launch, host: str, bind: str, ended: Callable[[WorkerJob, Any], None]
    ) -> None:
        self.launch = launch
        self._context, self._job_ended = context, ended
        self._keys = Keys.new()
        self.registry = Registry(self._keys, host, bind)
        self.orders = WorkerOrders()
        self.slots: dict[int, Slot] = {}
        self._incarnation = 0
        self._jobs: list[WorkerJob] = []
        self._pickled = b""

    def start_all(self, launch: Launch) -> None:
        """Start all workers of a layout; the workers of any other have ended."""
        self.launch = launch
        self.orders = replace(self.orders, stop=False, places={})
        self.slots = {number: Slot(number) for number in range(launch.layout.workers)}
        self._pickled = cloudpickle.dumps(launch)
        for slot in self.slots.values():
            self.start(slot)

    def start(self, slot: Slot) -> None:
        """Start the next incarnation of a worker."""
        if slot.job is not None and slot.line is not None:
            slot.job.cancel()  # its process may be there still, and hold the slot of Spark
        self._incarnation += 1
        slot.begin(self._incarnation)
        conf = self.launch.conf
        ticket = Ticket(
            conf.name,
            slot.worker,
            slot.incarnation,
            self.registry.address,
            conf.worker_timeout_s,
            self._keys,
            self._pickled,
        )
        slot.job = WorkerJob(self._context, conf.name, slot.worker, partial(run_worker, [ticket]), self._job_ended)
        self._jobs = [*(job for job in self._jobs if not job.join(0)), slot.job]

    def order(self, **changes: Any) -> None:
        """Change the orders, and send them to all workers."""
        there = [each for each in self.slots.values() if each.line is not None and not each.ended]
        places = {each.worker: (each.address, each.incarnation) for each in there}
        self.orders = replace(self.orders, version=self.orders.version + 1, places=places, **changes)
        message = self.orders.as_message()
        for each in there:
            assert each.line is not None
            self.registry.send(each.line, message)

    def stop_all(self, heed: Callable[[], None]) -> None:
        """Have all workers end; by Spark, if they do not do so by themselves.

        `heed`: takes in what workers report, and waits a moment for it.
        """
        self.order(stop=True)
        ends = monotonic() + _END_S
        while any(not job.join(0) for job in self._jobs) and monotonic() < ends:
            heed()
        for job in self._jobs:
            if not job.join(0):
                job.cancel()
        for job in self._jobs:
            if not job.join(_KILL_S):
                logger.warning(
                    "topology %s: Spark has not ended the task of worker %d", self.launch.conf.name, job.worker
                )
        self._jobs = []
        for slot in self.slots.values():
            slot.ended = True

    @property
    def all_ready(self) -> bool:
        """Whether every worker is up, with all its tasks open; any thread may ask."""
        slots = list(self.slots.values())
        return len(slots) == self.launch.layout.workers and all(each.ready and not each.ended for each in slots)

    @property
    def all_at_rest(self) -> bool:
        """Whether every worker has heard of the last orders, and has nothing pending; any thread may ask."""
        version = self.orders.version
        return self.all_ready and all(each.version >= version and each.at_rest for each in list(self.slots.values()))


@dataclass
class Slot:
    """One worker, in its present incarnation.

    `job`: the Spark job that runs it; None between two incarnations.
    `line`: where its messages come from; None until it has registered.
    `address`: where other workers send to.
    `version`: the orders that it has reached.
    `at_rest`: whether it has nothing pending, and will send nothing more.
    `blocked`: the components with a call that has not returned for a message timeout, and for how many seconds.
    """

    worker: int
    incarnation: int = 0
    job: WorkerJob | None = None
    line: bytes | None = None
    address: str = ""
    host: str = ""
    pid: int = 0
    heard_at: float = 0.0
    version: int = -1
    ready: bool = False
    ended: bool = False
    pending: int = 0
    at_rest: bool = False
    blocked: list[tuple[str, float]] = field(default_factory=list)
    links: dict[str, int] = field(default_factory=dict)

    def begin(self, incarnation: int, job: WorkerJob | None = None) -> None:
        """Forget the process before."""
        self.__init__(self.worker, incarnation, job, heard_at=monotonic())  # type: ignore[misc]

    def register(self, line: bytes, message: dict[str, Any]) -> None:
        """Take in where it runs."""
        self.line = line
        self.address, self.host, self.pid = message["address"], message["host"], message["pid"]

    def sent(self, line: bytes, message: dict[str, Any]) -> bool:
        """Whether a message is of this incarnation, and not of a process that was given up."""
        is_own = message["kind"] == "register" or self.line == line
        return self.incarnation == message["incarnation"] and not self.ended and is_own

    def take(self, beat: dict[str, Any]) -> None:
        """Take in how it goes."""
        self.version, self.ready, self.pending = beat["version"], beat["ready"], beat["pending"]
        self.at_rest, self.links = beat["at_rest"], beat["links"]

    @property
    def name(self) -> str:
        """The worker and where it runs."""
        return f"worker {self.worker}" + (f" (process {self.pid} on {self.host})" if self.pid else "")

    @property
    def state(self) -> str:
        """What it does, in a word."""
        if self.ended or self.job is None:
            return "ended"
        return "starting" if self.line is None else "running" if self.ready else "opening"

    def as_status(self) -> dict[str, Any]:
        """Return what `RunningStormTopology.workers` shows."""
        return {
            "worker": self.worker,
            "state": self.state,
            "host": self.host,
            "pid": self.pid,
            "incarnation": self.incarnation,
            "pending": self.pending,
            "blocked": dict(self.blocked),
            "links": dict(self.links),
        }
