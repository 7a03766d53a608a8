"""The resident workers of a topology, as its driver sees them: which attempts are at work where, and fail with a worker.

Attempts take the workers that are there when they begin; if one of these is lost, the attempts that it worked on fail.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from trident.errors import EnvironmentProblem
from trident.runtime.engine.resident_worker import Alive, AttemptOver, Done, StageWork, run_resident
from trident.runtime.steps.failures import Failure, StepFailed, failure_of
from trident.spark.mailbox import MailboxPeer, PeerAway
from trident.spark.spark_resources import Slots
from trident.spark.worker_group import LOOK_S, WorkerGroup, WorkerPlace
from trident.spout.interfaces import TransactionAttempt

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)

_PATIENCE_S = 10.0  # for workers that are on their way, before batches go on without them
_START_S = 120.0  # for the first worker


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


@dataclass(eq=False)
class ResidentPlace(WorkerPlace):
    """`busy`: the numbers of attempts that have ended, and that the worker is still at work on."""

    busy: set[int] = field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        """Whether it takes work."""
        return self.peer is not None and self.peer.is_connected and not self.busy

    def forget(self) -> None:
        super().forget()
        self.busy.clear()


class ResidentPool(WorkerGroup[ResidentPlace]):
    """Any thread may use it.

    `most`: how many workers there are at most; fewer, if Spark has fewer free cores.
    `program_id`, `program`: as of `Job`.
    `spare`: how many free slots are left to other jobs.
    Raises `EnvironmentProblem`: Spark has no free core.
    """

    kind = "resident "

    def __init__(
        self, context: SparkContext, topology: str, most: int, program_id: str, program: bytes, spare: int = 0
    ) -> None:
        self._slots = Slots(context, topology)
        places = [ResidentPlace(number) for number in range(self._slots.take_free(most, spare))]
        super().__init__(context, topology, places, run_resident, program, program_id)
        self._runs: dict[int, Run] = {}
        self._newest = 0
        self._has_begun = False
        self._began, self._last_loss = monotonic(), ""
        self.open()

    # ---- attempts ---------------------------------------------------------------------------------------------------

    def begin(self, attempt: TransactionAttempt) -> Run:
        """Begin an attempt, once there are workers; `StepFailed` if there are none for long, or there will be none."""
        with self.changed:
            until = monotonic() + _START_S
            while self.closed or not self._is_ready():
                if self.closed or monotonic() > until:
                    cause = "the topology is stopped" if self.closed else f"no resident worker within {_START_S:g} s"
                    raise StepFailed(Failure("spark", None, f"{cause}. {self._last_loss}".strip()))
                self.changed.wait(LOOK_S)
            self._newest += 1
            crew = {
                each.number: CrewMember(each.number, each.run, each.peer)
                for each in self.places
                if each.peer is not None and each.is_ready
            }
            run = self._runs[self._newest] = Run(self._newest, attempt, crew)
            return run

    def _is_ready(self) -> bool:
        if self.problem is not None:
            raise StepFailed(failure_of("spark", self.problem, retry=False))
        if self._has_begun:
            return any(each.is_ready for each in self.places)
        there = sum(each.is_ready for each in self.places)
        late = monotonic() - self._began > _PATIENCE_S
        self._has_begun = there == len(self.places) or (late and there > 0)
        if self._has_begun and there < len(self.places):
            logger.warning(
                "topology %s: %d of %d resident workers are there after %g s; the others wait for a core of Spark, and batches "
                "go on without them", self.topology, there, len(self.places), _PATIENCE_S,
            )  # fmt: skip
        return self._has_begun

    def ask(self, run: Run, works: Sequence[StageWork]) -> list[Done]:
        """Have workers work on a stage, and wait for all answers; `StepFailed` if a worker is lost."""
        with self.changed:
            for work in works:
                member = run.crew[work.place]
                if self.places[work.place].run != member.run or run.number not in self._runs:
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
        with self.changed:
            if self._runs.pop(run.number, None) is None:
                return
            for place in run.asked:
                if self.places[place].run == run.crew[place].run:
                    self.places[place].busy.add(run.number)
            # Where no rows wait and no worker is at work on it, the next sign of life tells it soon enough.
            told = run.used if run.asked or run.sent else ()
            members = [run.crew[place] for place in told if self.places[place].run == run.crew[place].run]
        for member in members:
            with suppress(PeerAway):  # then it learns of it by the next sign of life
                member.peer.send(AttemptOver(run.number))

    def cancel(self, attempt: TransactionAttempt) -> None:
        """End the runs of an attempt."""
        with self.changed:
            runs = [run for run in self._runs.values() if run.attempt == attempt]
        for run in runs:
            run.answers.put("the attempt was cancelled")
            self.end(run)

    def end_all(self) -> None:
        with self.changed:  # it is closed: no attempt begins any more
            for run in self._runs.values():
                run.answers.put("the topology is stopped")
        try:
            super().end_all()
        finally:
            self._slots.release()

    # ---- the thread of the mailbox, and those of jobs ---------------------------------------------------------------

    def word(self) -> Alive:
        return Alive(frozenset(self._runs), self._newest)

    def heed(self, place: ResidentPlace, news: Done) -> None:
        run = self._runs.get(news.number)
        place.busy.discard(news.number)
        if run is not None:
            run.asked.discard(news.place)
            run.answers.put(news)

    def on_loss(self, place: ResidentPlace, run: str, cause: str, problem: EnvironmentProblem | None) -> None:
        """Fail the attempts that the worker has something of; all, if no worker will do better."""
        self._last_loss = cause
        for each in self._runs.values():
            member = each.crew.get(place.number)
            is_used = member is not None and member.run == run and place.number in each.used
            if is_used or problem is not None:
                each.answers.put(cause if problem is None else str(problem))
