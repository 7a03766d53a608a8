"""The resident workers of a topology, as its driver sees them: started, heard of, lost, started again, ended.

Each worker is a Spark job of one task that does not end. Attempts take the workers that are there when they begin; if one of
these is lost, the attempts that it worked on fail.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from trident.errors import EnvironmentProblem
from trident.runtime.engine.resident_mail import Alive, AttemptOver, Done, Here, Leave, ResidentTicket, StageWork
from trident.runtime.engine.resident_worker import run_resident
from trident.runtime.steps.failures import Failure, StepFailed, failure_of
from trident.spark.link_keys import Keys
from trident.spark.mailbox import Mailbox, MailboxPeer, PeerAway
from trident.spark.worker_jobs import Said, WorkerJob
from trident.spark.worker_slots import Slots, addresses_of
from trident.spout.interfaces import TransactionAttempt

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)

_LOOK_S = 0.1
_BEAT_S = 1.0
_SILENCE_S = 120.0  # of a worker that is connected, but does nothing
_RETURN_S = 30.0  # for a worker that was lost to come back, or to be run again by Spark
_PATIENCE_S = 10.0  # for workers that are on their way, before batches go on without them
_START_S = 120.0  # for the first worker
_BRIEF_S = 10.0  # a worker that ends so soon, twice in a row, is not started again at once
_LONGEST_PAUSE_S = 30.0
_END_S = 8.0  # after which a worker that was asked to end is ended by Spark
_KILL_S = 10.0


class CrewMember(NamedTuple):
    """A worker that was there when an attempt began."""

    place: int
    run: str
    peer: MailboxPeer


@dataclass(eq=False)
class Run:
    """An attempt on the workers that were there when it began.

    `answers`: what they said, or why there will be no more answers.
    `asked`: the places of those whose answers are awaited.
    `used`: the places of those that have something of it.
    `sent`: by receiver and sender, how many messages with rows there were.
    """

    number: int
    attempt: TransactionAttempt
    crew: Mapping[int, CrewMember]
    answers: SimpleQueue[Done | str] = field(default_factory=SimpleQueue)
    asked: set[int] = field(default_factory=set)
    used: set[int] = field(default_factory=set)
    sent: dict[int, dict[int, int]] = field(default_factory=dict)


@dataclass
class _Place:
    """One worker, and the process that is this worker now.

    `run`: the id of this process; empty while it is on its way.
    `begun`: when it came, or was started.
    `brief`: how many of its processes in a row ended soon.
    `starts_at`: when it is to be started again.
    `expected_by`: if it was lost while its job runs: when Spark is told to end that job.
    `busy`: the numbers of attempts that have ended, and that it is still at work on.
    """

    number: int
    job: WorkerJob | None = None
    run: str = ""
    name: str = ""
    peer: MailboxPeer | None = None
    heard_at: float = 0.0
    begun: float = 0.0
    brief: int = 0
    starts_at: float = 0.0
    expected_by: float = 0.0
    busy: set[int] = field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        """Whether it takes work."""
        return self.peer is not None and self.peer.is_connected and not self.busy


class ResidentPool:
    """Any thread may use it.

    `most`: how many workers there are at most; fewer, if Spark has fewer free cores.
    `program_id`, `program`: as of `Job`.
    `spare`: how many free slots are left to other jobs.
    Raises `EnvironmentProblem`: Spark has no free core.
    """

    def __init__(
        self, context: SparkContext, topology: str, most: int, program_id: str, program: bytes, spare: int = 0
    ) -> None:
        self._context, self._topology = context, topology
        self._slots = Slots(context, topology)
        count = self._slots.take_free(most, spare)
        keys, (host, bind) = Keys.new(), addresses_of(context)
        self._changed = threading.Condition(threading.RLock())
        self._places = [_Place(number) for number in range(count)]
        self._runs: dict[int, Run] = {}
        self._newest = 0
        self._replaced: set[str] = set()
        self._strays: dict[str, MailboxPeer] = {}
        self._fatal: EnvironmentProblem | None = None
        self._closed = self._has_begun = False
        self._began, self._next_beat = monotonic(), 0.0
        self._last_loss = ""
        self._mailbox = Mailbox(keys, host, bind, self._take, self._look, _LOOK_S)
        address = self._mailbox.address
        self._tickets = [
            ResidentTicket(topology, number, address, keys, program_id, program) for number in range(count)
        ]
        self._mailbox.open()

    # ---- attempts ---------------------------------------------------------------------------------------------------

    def begin(self, attempt: TransactionAttempt) -> Run:
        """Begin an attempt, once there are workers; `StepFailed` if there are none for long, or there will be none."""
        with self._changed:
            until = monotonic() + _START_S
            while not self._is_ready():
                if self._closed or monotonic() > until:
                    cause = "the topology is stopped" if self._closed else f"no resident worker within {_START_S:g} s"
                    raise StepFailed(Failure("spark", None, f"{cause}. {self._last_loss}".strip()))
                self._changed.wait(_LOOK_S)
            self._newest += 1
            crew = {
                each.number: CrewMember(each.number, each.run, each.peer)
                for each in self._places
                if each.peer is not None and each.is_ready
            }
            run = self._runs[self._newest] = Run(self._newest, attempt, crew)
            return run

    def _is_ready(self) -> bool:
        if self._fatal is not None:
            raise StepFailed(failure_of("spark", self._fatal, retry=False))
        if self._has_begun:
            return any(each.is_ready for each in self._places)
        there = sum(each.is_ready for each in self._places)
        late = monotonic() - self._began > _PATIENCE_S
        self._has_begun = there == len(self._places) or (late and there > 0)
        if self._has_begun and there < len(self._places):
            logger.warning(
                "topology %s: %d of %d resident workers are there after %g s; the others wait for a core of Spark, and batches "
                "go on without them", self._topology, there, len(self._places), _PATIENCE_S,
            )  # fmt: skip
        return self._has_begun

    def ask(self, run: Run, works: Sequence[StageWork]) -> list[Done]:
        """Have workers work on a stage, and wait for all answers; `StepFailed` if a worker is lost."""
        with self._changed:
            for work in works:
                member = run.crew[work.place]
                if self._places[work.place].run != member.run or run.number not in self._runs:
                    raise StepFailed(
                        Failure("spark", None, f"resident worker {work.place} was lost, or the attempt ended")
                    )
            run.used.update(work.place for work in works)
        for work in works:
            run.asked.add(work.place)  # before its answer can come
            try:
                run.crew[work.place].peer.send(work)
            except PeerAway as error:
                run.asked.discard(work.place)
                raise StepFailed(
                    Failure("spark", None, f"resident worker {work.place} takes no work: {error}")
                ) from error
        done: list[Done] = []
        while len(done) < len(works):
            answer = run.answers.get()
            if isinstance(answer, str):
                raise StepFailed(Failure("spark", None, answer))
            done.append(answer)
            for to, messages in answer.sent.items():
                of = run.sent.setdefault(to, {})
                of[answer.place] = of.get(answer.place, 0) + messages
                run.used.add(to)
        return done

    def end(self, run: Run) -> None:
        """Forget an attempt, here and in the workers."""
        with self._changed:
            if self._runs.pop(run.number, None) is None:
                return
            for place in run.asked:
                if self._places[place].run == run.crew[place].run:
                    self._places[place].busy.add(run.number)
            # Where no rows wait and no worker is at work on it, the next sign of life tells it soon enough.
            told = run.used if run.asked or run.sent else ()
            members = [run.crew[place] for place in told if self._places[place].run == run.crew[place].run]
        for member in members:
            with suppress(PeerAway):  # then it learns of it by the next sign of life
                member.peer.send(AttemptOver(run.number))

    def cancel(self, attempt: TransactionAttempt) -> None:
        """End the runs of an attempt."""
        with self._changed:
            runs = [run for run in self._runs.values() if run.attempt == attempt]
        for run in runs:
            run.answers.put("the attempt was cancelled")
            self.end(run)

    @property
    def size(self) -> int:
        """How many workers there are when all are there."""
        return len(self._places)

    def close(self) -> None:
        """End all workers; by Spark, if they do not end by themselves."""
        with self._changed:
            self._closed = True
            places = [(each.job, each.peer) for each in self._places if each.job is not None]
            for run in self._runs.values():
                run.answers.put("the topology is stopped")
            self._changed.notify_all()
        for _, peer in places:
            if peer is not None:
                with suppress(PeerAway):
                    peer.send(Leave())
        ends = monotonic() + _END_S
        for job, peer in places:  # one that has not come yet waits for a core
            if peer is None or not job.join(max(0.0, ends - monotonic())):
                job.cancel()
        for job, _ in places:
            if not job.join(_KILL_S):
                logger.warning("topology %s: Spark has not ended resident worker %d", self._topology, job.worker)
        self._mailbox.close()
        self._slots.release()

    # ---- the thread of the mailbox ----------------------------------------------------------------------------------

    def _take(self, message: Any) -> None:
        with self._changed:
            if isinstance(message, Here):
                self._hear(message)
            elif isinstance(message, Done):
                self._hear_answer(message)

    def _hear(self, here: Here) -> None:
        place = self._places[here.place]
        if here.run == place.run:
            place.heard_at = monotonic()
            return
        if place.run and here.run in self._replaced:  # it was lost, another one came, and now it is back
            if here.run not in self._strays:
                self._strays[here.run] = self._mailbox.peer(here.address)
                self._strays[here.run].send(Leave())
            return
        if place.run:
            self._lose(place, "has ended, and Spark has started it again")
        place.run, place.name, place.peer = here.run, here.name, self._mailbox.peer(here.address)
        place.heard_at = place.begun = monotonic()
        place.expected_by = 0.0
        place.peer.send(self._alive())

    def _hear_answer(self, done: Done) -> None:
        place, run = self._places[done.place], self._runs.get(done.number)
        if place.run != done.run:
            return
        place.busy.discard(done.number)
        if run is not None:
            run.asked.discard(done.place)
            run.answers.put(done)
        self._changed.notify_all()

    def _look(self) -> None:
        now = monotonic()
        with self._changed:
            if self._closed or self._fatal is not None:
                return
            for place in self._places:
                self._look_at(place, now)
            peers = [each.peer for each in self._places if each.peer is not None]
            alive = self._alive()
            self._changed.notify_all()  # a worker may be connected now
        if now >= self._next_beat:
            self._next_beat = now + _BEAT_S
            for peer in peers:
                with suppress(PeerAway):
                    peer.send(alive)

    def _look_at(self, place: _Place, now: float) -> None:
        if place.job is None and now >= place.starts_at:
            body = partial(run_resident, self._tickets[place.number])
            place.begun = monotonic()
            place.job = WorkerJob(self._context, self._topology, place.number, body, self._job_ended)
        elif place.peer is not None and (place.peer.is_lost() or now - place.heard_at > _SILENCE_S):
            self._lose(place, "is no longer heard from")
            place.expected_by = now + _RETURN_S  # Spark may run it again elsewhere
        elif place.job is not None and 0.0 < place.expected_by < now:
            place.job.cancel()
            place.job, place.expected_by = None, 0.0

    def _alive(self) -> Alive:
        return Alive(frozenset(self._runs), self._newest)

    def _lose(self, place: _Place, how: str) -> None:
        """Fail the attempts that a worker has something of."""
        cause = f"resident {place.name or f'worker {place.number}'} {how}"
        place.brief = place.brief + 1 if monotonic() - place.begun < _BRIEF_S else 0
        pause = min(_LONGEST_PAUSE_S, 2.0 ** (place.brief - 2)) if place.brief > 1 else 0.0
        place.starts_at = monotonic() + pause
        self._last_loss = cause
        logger.warning("topology %s: %s", self._topology, cause)
        run_id, peer = place.run, place.peer
        self._replaced.add(run_id)
        place.run, place.peer = "", None
        place.busy.clear()
        if peer is not None:
            peer.close()
        for run in self._runs.values():
            member = run.crew.get(place.number)
            if member is not None and member.run == run_id and place.number in run.used:
                run.answers.put(cause)

    def _job_ended(self, job: WorkerJob, said: Said) -> None:
        """Start the worker again, in the thread of the mailbox; not if no try can help."""
        with self._changed:
            place = self._places[job.worker]
            if place.job is not job or self._closed:
                return
            place.job = None
            if not place.expected_by:
                self._lose(place, f"has ended: {said}" if said else "has ended by itself")
            place.expected_by = 0.0
            if isinstance(said, EnvironmentProblem):
                self._fatal = said
                for run in self._runs.values():
                    run.answers.put(str(said))
            self._changed.notify_all()
