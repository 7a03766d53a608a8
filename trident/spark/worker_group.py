"""Workers of a topology: tasks of Spark that stay, each in a job of its own, so that one that dies is started again alone.

`WorkerGroup`: their driver starts them, hears of them, misses, replaces and ends them. `GroupWorker`: each says every second
that it is there, and ends if its driver says so, or is gone. What batch workers and bolts tell beyond that is their own.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError

from trident.errors import EnvironmentProblem
from trident.spark.job_errors import crash_of, job_failure, jvm_gone
from trident.spark.mailbox import PICKLES, Codec, Keys, Mailbox, MailboxPeer, PeerAway, own_address
from trident.spark.spark_resources import addresses_of

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)

_CRASHED = "Python worker exited unexpectedly"

Said = str | EnvironmentProblem | None
"""What Spark says of a job that is over: None if the task returned, an `EnvironmentProblem` if no other try can help."""


class WorkerJob:
    """One incarnation of a worker, as a job in a thread of its own, which calls `ended` when the job is over."""

    def __init__(
        self,
        context: SparkContext,
        topology: str,
        worker: int,
        body: Callable[[], Iterator[Any]],
        ended: Callable[[WorkerJob, Said], None],
    ) -> None:
        from pyspark import InheritableThread

        self.worker = worker
        self._context, self._topology, self._body, self._ended = context, topology, body, ended
        self._group = f"worker-{uuid.uuid4().hex}"
        self._thread: threading.Thread = InheritableThread(
            target=self._run, name=f"trident-{topology}-worker-{worker}", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        with suppress(Py4JError, OSError):
            self._context.cancelJobGroup(self._group)

    def join(self, wait_s: float) -> bool:
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._ended(self, self._end())

    def _end(self) -> Said:
        from pyspark.errors import PySparkException

        context, body = self._context, self._body
        try:
            what = f"topology {self._topology}: worker {self.worker}"
            context.setJobGroup(self._group, what, interruptOnCancel=True)
            context.parallelize([0], 1).mapPartitions(lambda _: body()).collect()
        except (Py4JJavaError, PySparkException) as error:
            failure = job_failure(error, context)
            if _CRASHED in failure.cause:
                crash = crash_of(failure.cause)
                why = f"native code crashed ({crash})" if crash else "it was killed, maybe because memory ran out"
                return f"the Python process of worker {self.worker} has ended: {why}"
            return failure.cause if failure.retry else EnvironmentProblem(failure.cause)
        except (Py4JError, OSError, AttributeError) as error:  # of a context that was stopped
            return jvm_gone(error)
        return None


LOOK_S = 0.1
_BEAT_S = 1.0
_BRIEF_S = 10.0  # a worker that ends so soon, twice in a row, is not started again at once
_MOST_DOUBLED = 10  # times that the pause before its next start is doubled, well above any `longest_pause_s`
_END_S = 8.0  # after which a worker that was asked to end is ended by Spark
_KILL_S = 10.0
_REACH_S = 30.0  # for a worker to find its driver


class Letter(NamedTuple):
    """What a worker tells its driver: that it is there, and its news."""

    place: int
    run: str  # one process in this place, from its start to its end; no other has its id
    address: str  # where it takes messages
    host: str
    pid: int
    news: Any


class Shutdown(NamedTuple):
    """The worker is to end."""


class WorkerTicket(NamedTuple):
    """What a Spark task gets, so that it becomes a worker."""

    topology: str
    place: int
    driver: str  # the address of its mailbox
    keys: Keys
    silence_s: float  # after which a driver or a worker that says nothing, although it may be connected, counts as gone
    away_s: float | None  # after which one whose connection is away does; None: soon
    program_id: str
    program: bytes  # what the workers run, pickled; no other has its id

    def __repr__(self) -> str:
        return f"WorkerTicket({self.topology!r}, {self.place})"


@dataclass(eq=False)
class WorkerPlace:
    """One worker, and the process that is this worker now."""

    number: int
    job: WorkerJob | None = None
    starts: int = 0
    run: str = ""  # the id of this process; empty while it is on its way. `starts`: how many jobs were started for it
    host: str = ""
    pid: int = 0
    peer: MailboxPeer | None = None
    heard_at: float = 0.0
    begun: float = 0.0  # when it came, or was started
    brief: int = 0  # how many of its processes in a row ended soon
    starts_at: float = 0.0  # when it is to be started again
    expected_by: float = 0.0  # if it was lost while its job runs: when Spark is told to end that job

    @property
    def name(self) -> str:
        return f"worker {self.number}" + (f" (process {self.pid} on {self.host})" if self.pid else "")

    def forget(self) -> None:
        self.run, self.host, self.pid, self.peer = "", "", 0, None


P = TypeVar("P", bound=WorkerPlace)


class WorkerGroup(Generic[P]):
    """All workers, as their driver sees them. Any thread may use it; what a body overrides is called under `changed`.

    `problem`: why no worker is started any more. `run`: what a Spark task does with a ticket. `kind` goes before "worker" in
    messages; one that was lost has `return_s` seconds to come back, or to be run again by Spark, before its job is ended and
    another one started; one that dies again and again is started again after a pause, of at most `longest_pause_s`.
    """

    kind = ""
    return_s = longest_pause_s = 30.0

    def __init__(
        self,
        context: SparkContext,
        topology: str,
        places: Sequence[P],
        run: Callable[[WorkerTicket], Iterator[bytes]],
        program: bytes,
        program_id: str = "",
        silence_s: float = 120.0,
        away_s: float | None = None,
        codec: Codec = PICKLES,
    ) -> None:
        from pyspark import InheritableThread

        self.topology, self.places, self.closed = topology, places, False
        self.problem: EnvironmentProblem | None = None
        self.changed = threading.Condition(threading.RLock())
        self._context, self._run, self._jobs = context, run, list[WorkerJob]()
        self._lost, self._strays, self._next_beat = set[str](), set[str](), 0.0
        keys, (host, bind) = Keys.new(), addresses_of(context)
        # Jobs that this thread starts have the caller's properties of Spark, such as its pool.
        take, look = partial(self.guard, self._take), partial(self.guard, self._look)
        self._mailbox = Mailbox(keys, host, bind, take, look, LOOK_S, away_s, codec, thread=InheritableThread)
        self._ticket = WorkerTicket(topology, 0, self._mailbox.address, keys, silence_s, away_s, program_id, program)

    def open(self) -> None:
        self._mailbox.open()

    def tell(self, place: P, message: Any) -> None:
        """Send a message to a worker; if it takes none, it will be missed."""
        if place.peer is not None:
            with suppress(PeerAway):
                place.peer.send(message)

    def lose(self, place: P, cause: str, problem: EnvironmentProblem | None = None) -> None:
        """Count a worker's process as dead, whatever it still does. `problem`: no other process would do better."""
        now, run, peer = monotonic(), place.run, place.peer
        logger.warning("topology %s: worker %d is lost: %s", self.topology, place.number, cause)
        place.brief = place.brief + 1 if now - place.begun < _BRIEF_S else 0
        pause = 2.0 ** min(place.brief - 2, _MOST_DOUBLED)
        place.starts_at = now + (min(self.longest_pause_s, pause) if place.brief > 1 else 0.0)
        self._lost.add(run)
        self.problem = problem or self.problem
        place.forget()
        if peer is not None:
            peer.close()
        self.on_loss(place, run, cause, problem)

    def close(self) -> bool:
        """End all workers; by Spark, if they do not end by themselves. Returns whether this was the first call."""
        with self.changed:
            if self.closed:
                return False
            self.closed = True
            self.changed.notify_all()
        self.end_all()
        return True

    def end_all(self) -> None:
        with self.changed:
            jobs, there = self._jobs, {each.job for each in self.places if each.peer is not None}
            for place in self.places:
                self.tell(place, Shutdown())
        ends = monotonic() + _END_S
        for job in jobs:  # one that has not come yet waits for a core
            if job not in there or not job.join(max(0.0, ends - monotonic())):
                job.cancel()
        for job in jobs:
            if not job.join(_KILL_S):
                logger.warning(
                    "topology %s: Spark has not ended the task of %sworker %d", self.topology, self.kind, job.worker
                )
        self._mailbox.close()

    def word(self) -> Any:
        """Return what every worker is told each second."""
        raise NotImplementedError

    def heed(self, place: P, news: Any) -> None:
        raise NotImplementedError

    def on_loss(self, place: P, run: str, cause: str, problem: EnvironmentProblem | None) -> None:
        raise NotImplementedError

    def guard(self, do: Callable[..., None], *given: Any) -> None:
        """Do what a message, the time or the end of a job asks for."""
        do(*given)

    def _take(self, letter: Letter) -> None:
        with self.changed:
            place = self.places[letter.place]
            if letter.run == place.run or self._is_welcome(place, letter):
                place.heard_at = monotonic()
                if letter.news is not None:
                    self.heed(place, letter.news)
                    self.changed.notify_all()

    def _is_welcome(self, place: P, letter: Letter) -> bool:
        """Take in a process that is new; one that was given up, and woke up, is told to end."""
        may_return = not place.run and place.expected_by > monotonic()
        if self.closed or (letter.run in self._lost and not may_return):
            if letter.run not in self._strays:
                self._strays.add(letter.run)
                self._mailbox.peer(letter.address).send(Shutdown())
            return False
        if place.run:
            # Spark runs a task again when the process that ran it is dead; another job would take longer.
            self.lose(place, f"{self.kind}{place.name} has ended, and Spark has started it again")
        place.run, place.host, place.pid = letter.run, letter.host, letter.pid
        place.peer, place.begun, place.expected_by = self._mailbox.peer(letter.address), monotonic(), 0.0
        self.tell(place, self.word())  # one that woke up hears at once what is over
        return True

    def _look(self) -> None:
        now = monotonic()
        with self.changed:
            for place in self.places:
                if not self.closed and self.problem is None:
                    self._look_at(place, now)
            self.changed.notify_all()  # a worker may be connected now
            if self.closed or self.problem is not None or now < self._next_beat:
                return
            self._next_beat, word = now + _BEAT_S, self.word()
            for place in self.places:
                self.tell(place, word)

    def _look_at(self, place: P, now: float) -> None:
        silent = now - place.heard_at
        if place.peer is not None and (place.peer.is_lost() or silent > self._ticket.silence_s):
            self.lose(place, f"{self.kind}{place.name} has not been heard of for {silent:.0f} s")
            place.expected_by = now + self.return_s
        if place.job is not None and 0.0 < place.expected_by <= now:
            place.job.cancel()  # its process may be there still, and hold the slot of Spark
            place.job, place.expected_by = None, 0.0
        if place.job is None and now >= place.starts_at and not self.closed:
            place.begun, place.starts = monotonic(), place.starts + 1
            body = partial(self._run, self._ticket._replace(place=place.number))
            place.job = WorkerJob(
                self._context, self.topology, place.number, body, partial(self.guard, self._job_ended)
            )
            self._jobs = [*(job for job in self._jobs if not job.join(0)), place.job]

    def _job_ended(self, job: WorkerJob, said: Said) -> None:
        """Start the worker again, in the thread of the mailbox; not if no try can help."""
        with self.changed:
            place = self.places[job.worker]
            if place.job is not job or self.closed:
                return
            problem = said if isinstance(said, EnvironmentProblem) else None
            was_expected, place.job, place.expected_by = bool(place.expected_by), None, 0.0
            if not was_expected or problem is not None:
                how = f"has ended: {said}" if said else "has ended by itself"
                self.lose(place, f"{self.kind}{place.name} {how}", problem)
            self.changed.notify_all()


class GroupWorker:
    """One worker, from its start to its end: a Spark task. `over` is set once it is to end."""

    beat_s = _BEAT_S

    def __init__(self, ticket: WorkerTicket, look_s: float = LOOK_S, codec: Codec = PICKLES) -> None:
        self.ticket, self.over = ticket, threading.Event()
        self.host = own_address(ticket.driver, _REACH_S)
        self.mailbox = Mailbox(ticket.keys, self.host, self.host, self._take, self._look, look_s, ticket.away_s, codec)
        run = secrets.token_hex(8)
        self._letter = Letter(ticket.place, run, self.mailbox.address, socket.gethostname(), os.getpid(), None)
        self._driver, self._parent = self.mailbox.peer(ticket.driver), os.getppid()
        self._heard_at, self.next_beat = monotonic(), 0.0

    def tell(self, news: Any, wait_s: float = 0.0) -> None:
        """Send a letter to the driver; if it takes none, it will be silent, and this ends."""
        with suppress(PeerAway):
            self._driver.send(self._letter._replace(news=news), wait_s)

    def news(self) -> Any:
        """Return what the driver is told each `beat_s` seconds."""
        return None

    def heed(self, message: Any) -> bool:
        """Do what a message says; whether it came from the driver."""
        raise NotImplementedError

    def end(self) -> None:
        self.over.set()

    def look(self, now: float) -> None:
        """Look after what the worker does."""

    def _take(self, message: Any) -> None:
        if isinstance(message, Shutdown):
            self.end()
        elif self.heed(message):
            self._heard_at = monotonic()

    def _look(self) -> None:
        now = monotonic()
        if now >= self.next_beat and not self.over.is_set():
            self.next_beat = now + self.beat_s
            self.tell(self.news())
        is_silent = now - self._heard_at > self.ticket.silence_s
        if is_silent or self._driver.is_lost() or os.getppid() != self._parent:
            self.end()
        self.look(now)
