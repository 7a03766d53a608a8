"""A worker: the executors that run in one process, each in a thread of its own."""

import logging
import os
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import SystemRandom
from time import monotonic
from types import FrameType
from typing import NamedTuple, TypedDict

from trident.channel import thread_stacks
from trident.observe.health import place_of
from trident.storm.execution.executors import Executor, make_executor
from trident.storm.execution.launch import Setting
from trident.storm.execution.messages import Inbox, LocalMail
from trident.storm.storm_topology import ExecutorPlace

logger = logging.getLogger("trident.storm")

_LONGEST_WAIT_S = 0.5
_TOLD_S = 1.0


class PresentCall(NamedTuple):
    """What an executor does now, for how long, and for how long uncounted; `where` is "" for a call of less than a second."""

    tasks: tuple[int, ...]
    seconds: float
    uncounted_s: float
    where: str


def inboxes_of(places: Iterable[ExecutorPlace], capacity: int) -> dict[int, Inbox]:
    of_each = ((each.tasks, Inbox(capacity)) for each in places)
    return {task: inbox for tasks, inbox in of_each for task in tasks}


class Worker:
    """Starts, watches and ends the executors of one worker; all tasks of one executor share one inbox of its mail.

    `died`: told once, by the thread of the executor that raised; the whole worker must end then, as in Storm.
    `port`: where other workers send to; 0 for one of the topology's own process.
    """

    def __init__(
        self, number: int, setting: Setting, mail: LocalMail, died: Callable[[BaseException], None], port: int = 0
    ) -> None:
        self.executors = [make_executor(place, setting) for place in setting.layout.in_worker(number)]
        self._inboxes, self._stopping, self._died = mail.inboxes, mail.ended, died
        self._busy_since: dict[ExecutorPlace, float] = {}
        """When each executor's present step began; 0 while it waits for deliveries."""
        self._starting = threading.Lock()
        self._failed = threading.Lock()
        self._threads = [
            threading.Thread(
                target=self._run, args=(each,), name=f"{each.place.component}-{each.place.tasks[0]}", daemon=True
            )
            for each in self.executors
        ]
        self._opened = threading.Semaphore(0)
        self.snapshots = WorkerSnapshots(number, self.executors, self.at_work, port)

    def start(self) -> None:
        with self._starting:
            for thread in self._threads:
                if not self.stopping:
                    thread.start()
        for _ in self._threads:
            while not self._opened.acquire(timeout=0.1) and not self.stopping:
                pass

    def set_active(self, active: bool) -> None:
        for each in self.executors:
            each.active = active

    @property
    def pending(self) -> int:
        return sum(each.pending for each in self.executors)

    @property
    def at_rest(self) -> bool:
        """Whether nothing is pending, waits or is executed; only deactivated spouts come to rest."""
        return not any(self._busy_since.values()) and all(
            each.at_rest and self._inboxes[each.place.tasks[0]].is_empty for each in self.executors
        )

    def at_work(self) -> list[PresentCall]:
        """Return the calls that have run for a second, and executors that have worked as long without counting it."""
        now, found = monotonic(), []
        for executor, thread in zip(self.executors, self._threads, strict=True):
            since = self._busy_since.get(executor.place, 0.0)
            if since and now - since > _TOLD_S:
                call_s, uncounted = now - max(since, executor.call_since), executor.uncounted_since
                where = line_of(thread.ident) if call_s > _TOLD_S else ""
                found.append(PresentCall(executor.place.tasks, call_s, now - uncounted if uncounted else 0.0, where))
        return found

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self, wait_s: float) -> list[str]:
        self.set_active(False)
        self._stopping.set()
        for each in self.executors:
            self._inboxes[each.place.tasks[0]].put(None)
        with self._starting:
            started = [each for each in self._threads if each.ident and each is not threading.current_thread()]
        ends = monotonic() + wait_s
        for thread in started:
            thread.join(max(0.0, ends - monotonic()))
        return [thread.name for thread in started if thread.is_alive()]

    def _run(self, executor: Executor) -> None:
        try:
            try:
                self._busy_since[executor.place] = monotonic()
                executor.open()
            finally:
                self._opened.release()
            busy_since, place, wait_s = self._busy_since, executor.place, 0.0
            inbox = self._inboxes[place.tasks[0]]
            while not self._stopping.is_set():
                busy_since[place] = 0.0
                deliveries = inbox.take(min(wait_s, _LONGEST_WAIT_S))
                busy_since[place] = monotonic()
                wait_s = executor.step(deliveries)
        except BaseException as error:  # noqa: BLE001  the worker's end, whatever it was
            if self._failed.acquire(blocking=False):
                self._stopping.set()
                self._died(error)
        finally:
            self._busy_since.pop(executor.place)
            try:
                executor.close()
            except Exception as error:  # noqa: BLE001  what could not be sent before can still not be sent
                logger.warning("component %s: its last tuples are lost: %s", executor.place.component, error)


_OURS = str(Path(__file__).parents[2])
_CALLERS = str(Path(__file__).parent)
_THREAD = str(Path(__file__).with_name("storm_worker.py"))


def line_of(thread: int | None) -> str:
    innermost = thread_stacks().get(thread or 0)
    return "" if innermost is None else place_of(_of_user(innermost) or innermost)


def lines_of(names: Collection[str]) -> list[str]:
    places = [(each.name, line_of(each.ident)) for each in threading.enumerate() if each.name in names]
    return [f"{name}: in {line}" for name, line in places if line]


def _of_user(innermost: FrameType) -> FrameType | None:
    """Return the outermost frame of code that is not Trident's, below the executor that called it."""
    frame: FrameType | None = innermost
    users = None
    while frame is not None and (file := frame.f_code.co_filename) != _THREAD:
        if not file.startswith(_OURS):
            users = frame
        elif users is not None and file.startswith(_CALLERS):
            return users
        frame = frame.f_back
    return None


class CountKey(NamedTuple):
    """What a total counts: a measure of `Counts`, `emitted`, `transferred` or `busy_s`, and the origin of input."""

    task: int
    measure: str
    component: str
    stream: str


class WorkerSnapshot(TypedDict):
    """The totals of one worker. They begin at 0 with each `start` of it; `number` grows with each snapshot."""

    worker: int
    start: int
    number: int
    host: str
    pid: int
    uptime_s: float
    totals: list[tuple[tuple[int, str, str, str], float]]
    pending: int
    port: int
    calls: list[PresentCall]


@dataclass
class WorkerSnapshots:
    """Takes snapshots of one start of a worker, from any thread, while its executors run; these keep the totals anyway."""

    worker: int
    executors: Sequence[Executor]
    at_work: Callable[[], Sequence[PresentCall]] = tuple
    port: int = 0
    start: int = field(default_factory=partial(SystemRandom().getrandbits, 62))
    began: float = field(default_factory=monotonic)
    number: int = 0

    def take(self) -> WorkerSnapshot:
        self.number += 1
        return {
            "worker": self.worker,
            "start": self.start,
            "number": self.number,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "uptime_s": monotonic() - self.began,
            "totals": [total for each in self.executors for total in _totals_of(each)],
            "pending": sum(each.pending for each in self.executors),
            "port": self.port,
            "calls": list(self.at_work()),
        }


def _totals_of(executor: Executor) -> Iterator[tuple[CountKey, float]]:
    # Dicts that a thread writes are copied by `list(….items())`, which no other thread can interrupt.
    for task, collector in list(executor.collectors.items()):
        for name, stream in collector.streams.items():
            yield CountKey(task, "emitted", "", name), stream.emitted
            yield CountKey(task, "transferred", "", name), stream.transferred
    for task, counts in list(executor.counts.items()):
        found = defaultdict[CountKey, float](float, {CountKey(task, "busy_s", "", ""): counts.busy_s})
        for source, each in list(counts.items()):
            place = ("", source) if isinstance(source, str) else (source.component, source.stream)
            for measure, value in each.totals().items():
                found[CountKey(task, measure, *place)] += value  # several tasks emit to one stream
        yield from found.items()
