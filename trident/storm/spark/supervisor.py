"""Watches the workers of a topology, and restarts those that died. One thread does it all."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from trident.errors import EnvironmentProblem
from trident.observe.reported_errors import ReportedError
from trident.spark.worker_jobs import Said, WorkerJob
from trident.storm.spark.crew import Crew, Slot
from trident.storm.spark.worker_registry import Launch
from trident.storm.statistics import WorkerSnapshot
from trident.storm.storm_errors import DeathWatch, WorkerLostError

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger("trident.storm")

_LOOK_S = 0.02
_ERRORS = 100
Command = Callable[[], None]


class Supervisor:
    """The driver's side of a topology; its thread alone changes the crew.

    `host`, `bind`: the driver's address for its workers; the one to listen at.
    `counted`: takes the workers' statistics.
    `over`: called once, by that thread, with what ended the topology: None if it was asked to end.
    """

    def __init__(
        self,
        context: SparkContext,
        launch: Launch,
        host: str,
        bind: str,
        counted: Callable[[WorkerSnapshot], None],
        over: Callable[[BaseException | None], None],
    ) -> None:
        from pyspark import InheritableThread

        self._conf = launch.conf
        self._counted, self._over = counted, over
        self._watch = DeathWatch(self._conf)
        self._work: SimpleQueue[Command] = SimpleQueue()
        self._ending = False
        self._failure: BaseException | None = None
        self.errors: deque[ReportedError] = deque(maxlen=_ERRORS)
        self.crew = Crew(context, launch, host, bind, lambda job, said: self._do(lambda: self._job_ended(job, said)))
        self._do(lambda: self.crew.start_all(launch))
        self._thread: threading.Thread = InheritableThread(
            target=self._run, name=f"storm-{self._conf.name}", daemon=True
        )
        self._thread.start()

    # ---- for other threads ------------------------------------------------------------------------------------------

    @property
    def deaths(self) -> int:
        """How often a worker has died."""
        return self._watch.total

    def set_active(self, active: bool) -> None:
        """Let spouts be asked for tuples, or not; return when the order is on its way to the workers."""
        ordered = threading.Event()
        self._do(lambda: self.crew.order(active=active))
        self._do(ordered.set)
        while not ordered.wait(_LOOK_S) and self._thread.is_alive():
            pass

    def move(self, launch: Launch) -> None:
        """End all workers, and start them with another layout; return when the new ones have been started."""
        moved = threading.Event()
        self._do(lambda: self._move(launch, moved))
        while not moved.wait(_LOOK_S) and self._thread.is_alive():
            pass

    def end(self, error: BaseException | None = None) -> None:
        """Have all workers end; return at once."""
        self._do(lambda: self._end(error))

    def _do(self, command: Command) -> None:
        self._work.put(command)

    # ---- in its own thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ending:
                self._step()
        except Exception as error:
            logger.exception("topology %s: the driver's own code failed", self._conf.name)
            self._end(error)
        try:
            self.crew.order(active=False)
            self.crew.stop_all(self._heed)
        finally:
            self.crew.registry.close()
            self._over(self._failure)

    def _step(self) -> None:
        while not self._ending:
            try:
                command = self._work.get_nowait()
            except Empty:
                break
            command()
        self._heed()
        now = monotonic()
        for slot in list(self.crew.slots.values()):
            silent = now - slot.heard_at
            if slot.line is not None and not slot.ended and silent > self._conf.worker_timeout_s:
                self._died(slot, WorkerLostError(f"{slot.name} has not been heard of for {silent:.0f} s"))

    def _heed(self) -> None:
        received = self.crew.registry.receive(_LOOK_S)
        if received is not None:
            self._take(*received)

    def _take(self, line: bytes, message: dict[str, Any]) -> None:
        slot, crew = self.crew.slots.get(message["worker"]), self.crew
        if slot is None or not slot.sent(line, message):
            crew.registry.send(line, {"kind": "replaced"})  # one that was given up, and woke up
            return
        if message["kind"] == "register" and slot.line is not None:
            # Spark runs a task again when the process that ran it is dead; another job would take longer.
            self._died(slot, WorkerLostError(f"{slot.name} has ended, and Spark has started it again"), restarted=True)
            if self._ending:
                return
        slot.heard_at = monotonic()
        for error in message.get("errors", ()):
            self._report(ReportedError(**error))
        match message["kind"]:
            case "register":
                slot.register(line, message)
                crew.order()
            case "beat":
                self._take_beat(slot, message)
                answer = {"kind": "alive"} if slot.version == crew.orders.version else crew.orders.as_message()
                crew.registry.send(line, answer)
            case "died":
                death = (EnvironmentProblem if message["final"] else WorkerLostError)(message["error"])
                death.add_note(message["text"])
                self._died(slot, death)
            case "ended":
                self._warn_of_stuck(slot, message["blocked"])

    def _take_beat(self, slot: Slot, beat: dict[str, Any]) -> None:
        slot.take(beat)
        snapshot: WorkerSnapshot | None = beat["snapshot"]
        if snapshot is None:
            return
        component_of, limit_s = self.crew.launch.layout.component_of, self._conf.message_timeout_s
        slot.blocked = [
            (component_of[tasks[0]], call_s) for tasks, call_s, _, _ in snapshot["calls"] if call_s > limit_s
        ]
        self._counted(snapshot)

    def _report(self, error: ReportedError) -> None:
        self.errors.append(error)
        last = error.text.strip().rpartition("\n")[2]
        logger.error(
            "topology %s: component %s (task %d) on %s reports: %s",
            self._conf.name, error.component, error.task, error.host, last,
        )  # fmt: skip

    def _warn_of_stuck(self, slot: Slot, blocked: list[str]) -> None:
        for each in blocked:
            logger.warning(
                "topology %s: worker %d ended, but a call of its code does not return: %s",
                self._conf.name, slot.worker, each,
            )  # fmt: skip

    def _job_ended(self, job: WorkerJob, said: Said) -> None:
        slot = self.crew.slots.get(job.worker)
        if slot is not None and slot.job is job and not slot.ended:
            lost = (
                said
                if isinstance(said, EnvironmentProblem)
                else WorkerLostError(said or f"{slot.name} has ended by itself")
            )
            self._died(slot, lost)

    def _died(self, slot: Slot, error: BaseException, restarted: bool = False) -> None:
        """Start a worker again; end the topology if that has happened too often, or cannot help.

        `restarted`: Spark has started the same incarnation again.
        """
        if self._ending or self.crew.orders.stop:
            slot.ended = True
            return
        if isinstance(error, EnvironmentProblem):
            self._end(error)
            return
        logger.error("topology %s: worker %d died: %s", self._conf.name, slot.worker, error)
        too_many = self._watch.too_many(slot.worker, error)
        if too_many is not None:
            self._end(too_many)
        elif restarted:
            slot.begin(slot.incarnation, slot.job)
        else:
            self.crew.start(slot)
            self.crew.order()

    def _move(self, launch: Launch, moved: threading.Event) -> None:
        self.crew.stop_all(self._heed)
        self._conf = launch.conf
        self.crew.start_all(launch)
        moved.set()

    def _end(self, error: BaseException | None) -> None:
        if not self._ending:
            self._failure = error
        self._ending = True
