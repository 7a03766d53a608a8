"""`ResidentRunner`: an attempt is messages to workers that stay, and not a Spark job (`workers="resident"`).

Each stage is one message to each worker that has something to do in it, and one answer. Rows of exchanges go from worker to
worker. Attempts take the workers that are there when they begin; if one of these is lost, those that it worked on fail.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import cloudpickle

from trident.engine.fragment_runs import TaskOutput
from trident.engine.resident_worker import AttemptOver, DriverHeartbeat, StageResult, StageWork, run_resident
from trident.engine.spark_runner import ExecutorRunner
from trident.engine.tasks import merge_sent
from trident.engine.worker import Order, Part, Program
from trident.errors import EnvironmentProblem
from trident.graph import PersistNode, QueryNode
from trident.spark.mailbox import MailboxPeer, PeerAway
from trident.spark.spark_resources import Slots
from trident.spark.worker_group import LOOK_S, WorkerGroup, WorkerPlace
from trident.spout.interfaces import TransactionAttempt
from trident.steps.failures import Failure, StepFailed, failure_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_PATIENCE_S = 10.0  # for workers that are on their way, before batches go on without them
_START_S = 120.0  # for the first worker


@dataclass(eq=False)
class KeptRun:
    """An attempt that is processed and whose rows wait in the workers, as long as this is kept."""

    run: Run


class ResidentRunner(ExecutorRunner):
    """Runs attempts on resident workers, as many as Spark has free cores but the spare ones, at most `parallelism`."""

    def __init__(
        self, spark: SparkSession, program: Program, parallelism: int | None, owned: bool, spare: int = 0
    ) -> None:
        super().__init__(spark, program, parallelism, owned, resident=True)
        self._destinations = self.program.destinations
        self.pool = ResidentPool(self._context, program.topology, self.parallelism, self._id, self._pickled, spare)

    def _run(self, parts: Sequence[Part], order: Order, last: int, keeps: bool) -> tuple[TaskOutput, Any]:
        try:
            run = self.pool.begin(order.attempt)
        except StepFailed as error:
            return TaskOutput(failure=error.failure), None
        output = self._through(run, order, parts, range(last + 1))
        if not keeps or output.failure is not None:
            self.pool.end(run)
            return output, None
        return output, self.pool.keep(run)

    def _commit_kept(self, kept: KeptRun, order: Order) -> TaskOutput:
        levels = range((self.program.processing or 0) + 1, len(self.program.levels) + 1)
        committed = self._through(kept.run, order, (), levels)
        self.pool.end(kept.run)
        return committed

    def _through(self, run: Run, order: Order, parts: Sequence[Part], stages: Iterable[int]) -> TaskOutput:
        owners, sent = self._owners(list(run.crew)), bytes(cloudpickle.dumps(order))
        crew = {place: member.peer.address for place, member in run.crew.items()}
        outputs: list[bytes] = []
        try:
            for stage in stages:
                tasks = self._tasks(stage, owners) if stage else _dealt(parts, run)
                commits = bool(self.commits) and stage > (self.program.processing or 0)
                works = []
                for place, mine in tasks.items():
                    packed, expects = cloudpickle.dumps(mine), run.sent.get(place, {})
                    works.append(StageWork(run.number, place, sent, stage, commits, packed, crew, owners, expects))
                answers = self.pool.ask(run, works)
                outputs += [output for answer in answers for output in answer.outputs]
                if any(answer.failed for answer in answers):
                    break
        except StepFailed as error:
            return TaskOutput(failure=error.failure)
        return merge_sent(outputs)

    def _owners(self, places: Sequence[int]) -> dict[str, list[int]]:
        """Return, by exchange, which worker has each partition: the same one for as long as it is there."""
        size = len(self.pool.places)
        owners = {}
        for entry in {entry for level in self.program.levels for entry in level}:
            exchange = self.program.exchanges[entry]
            node = exchange.node
            # A state is updated and queried at several levels, by the one worker that has it open.
            name = node.state if isinstance(node, (PersistNode, QueryNode)) else entry
            # By numbers of places, not of those that are there: a worker that is lost moves its own partitions and no others.
            wanted = [(crc32(name.encode()) + at) % size for at in range(exchange.partitions or 1)]
            owners[entry] = [at if at in places else places[at % len(places)] for at in wanted]
        return owners

    def _tasks(self, stage: int, owners: Mapping[str, Sequence[int]]) -> dict[int, list[tuple[int, str, int]]]:
        tasks: dict[int, list[tuple[int, str, int]]] = {}
        for task, (entry, partition) in enumerate(self._destinations[stage - 1]):
            tasks.setdefault(owners[entry][partition], []).append((task, entry, partition))
        return tasks

    def cancel(self, attempt: TransactionAttempt) -> None:
        self.pool.cancel(attempt)

    def close(self) -> None:
        try:
            self.pool.close()
        finally:
            super().close()


def _dealt(parts: Sequence[Part], run: Run) -> dict[int, list[tuple[int, Part]]]:
    # Many parts stay with their workers from batch to batch, few go to others each time.
    places = list(run.crew)
    first = run.number if len(parts) < len(places) else 0
    dealt: dict[int, list[tuple[int, Part]]] = {}
    for index, part in enumerate(parts):
        dealt.setdefault(places[(first + index) % len(places)], []).append((index, part))
    return dealt


class CrewMember(NamedTuple):
    """A worker that was there when an attempt began."""

    run: str
    peer: MailboxPeer


@dataclass(eq=False)
class Run:
    """An attempt on the workers that were there when it began.

    `answers`: what they said, or why there will be no more answers.
    `sent`: by receiver and sender, how many messages with rows there were.
    """

    number: int
    attempt: TransactionAttempt
    crew: Mapping[int, CrewMember]
    answers: SimpleQueue[StageResult | str] = field(default_factory=SimpleQueue)
    asked: set[int] = field(default_factory=set)  # the places of those whose answers are awaited
    used: set[int] = field(default_factory=set)  # the places of those that have something of it
    sent: dict[int, dict[int, int]] = field(default_factory=dict)


@dataclass(eq=False)
class ResidentPlace(WorkerPlace):
    """`busy`: the numbers of attempts that have ended, and that the worker is still at work on."""

    busy: set[int] = field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        return self.peer is not None and self.peer.is_connected and not self.busy

    def forget(self) -> None:
        super().forget()
        self.busy.clear()


class ResidentPool(WorkerGroup[ResidentPlace]):
    """The resident workers of a topology, at most `most`, as its driver sees them; any thread may use it."""

    kind = "resident "

    def __init__(
        self, context: SparkContext, topology: str, most: int, program_id: str, program: bytes, spare: int = 0
    ) -> None:
        self._slots = Slots(context, topology)
        places = [ResidentPlace(number) for number in range(self._slots.take_free(most, spare))]
        super().__init__(context, topology, places, run_resident, program, program_id)
        self._runs: dict[int, Run] = {}
        self._dropped = SimpleQueue[Run]()
        self._newest = 0
        self._has_begun = False
        self._began, self._last_loss = monotonic(), ""
        self.open()

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
                each.number: CrewMember(each.run, each.peer)
                for each in self.places
                if each.peer is not None and each.is_ready
            }
            run = self._runs[self._newest] = Run(self._newest, attempt, crew)
            return run

    def _is_ready(self) -> bool:
        if self.problem is not None:
            raise StepFailed(failure_of("spark", self.problem, retry=False))
        # Only the first batch waits for all; later ones go on with those that are left.
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

    def ask(self, run: Run, works: Sequence[StageWork]) -> list[StageResult]:
        """Have workers work on a stage, and wait for all answers; `StepFailed` if a worker is lost."""
        with self.changed:
            # Of the very worker that was there: a new one in its place has none of the rows that it was sent.
            for work in works:
                member = run.crew[work.place]
                if self.places[work.place].run != member.run or run.number not in self._runs:
                    cause = f"resident worker {work.place} was lost, or the attempt ended"
                    raise StepFailed(Failure("spark", None, cause))
            run.used.update(work.place for work in works)
        for work in works:
            run.asked.add(work.place)  # before its answer can come
            try:
                run.crew[work.place].peer.send(work)
            except PeerAway as error:
                run.asked.discard(work.place)
                cause = f"resident worker {work.place} takes no work: {error}"
                raise StepFailed(Failure("spark", None, cause)) from error
        done: list[StageResult] = []
        # Who loses a worker, or ends the attempt, puts the cause there: this does not wait for ever.
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

    def keep(self, run: Run) -> KeptRun:
        """Keep an attempt for as long as what is returned: the loop drops a dead one, and its runner is not told."""
        kept = KeptRun(run)
        # Python may find that it was dropped in any thread, whatever lock that holds; the one of the mailbox ends it soon.
        weakref.finalize(kept, self._dropped.put, run)
        return kept

    def _look(self) -> None:
        while not self._dropped.empty():
            self.end(self._dropped.get())
        super()._look()

    def end(self, run: Run) -> None:
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

    def word(self) -> DriverHeartbeat:
        return DriverHeartbeat(frozenset(self._runs), self._newest)

    def heed(self, place: ResidentPlace, news: StageResult) -> None:
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
