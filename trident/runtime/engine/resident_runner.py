"""ResidentRunner: an attempt is messages to workers that stay, and not a Spark job (`workers="resident"`).

Each stage is one message to each worker that has something to do in it, and one answer. Rows of exchanges go from worker to
worker. A state's partition, and that of an exchange, belongs to one worker as long as this one is there: connections stay open.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

import cloudpickle

from trident.graph import PersistNode, QueryNode
from trident.runtime.engine.resident_pool import ResidentPool, Run
from trident.runtime.engine.resident_worker import StageWork
from trident.runtime.engine.spark_runner import ExecutorRunner
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.tasks import gathered
from trident.runtime.engine.worker import Order, Part, Program
from trident.runtime.steps.failures import StepFailed
from trident.spout.interfaces import TransactionAttempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(eq=False)
class KeptRun:
    """An attempt that is processed and whose rows wait in the workers, as long as this is kept."""

    run: Run


class ResidentRunner(ExecutorRunner):
    """Runs attempts on resident workers, as many as Spark has free cores, at most `parallelism`.

    `spare`: how many free slots are left to other jobs.
    """

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
        kept = KeptRun(run)
        weakref.finalize(kept, self.pool.end, run)
        return output, kept

    def _committed(self, kept: KeptRun, order: Order) -> TaskOutput:
        levels = range((self.program.processing or 0) + 1, len(self.program.levels) + 1)
        committed = self._through(kept.run, order, (), levels)
        self.pool.end(kept.run)
        return committed

    def _through(self, run: Run, order: Order, parts: Sequence[Part], stages: Iterable[int]) -> TaskOutput:
        """Run stages of an attempt, up to the first one that fails."""
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
        return gathered(outputs)

    def _owners(self, places: Sequence[int]) -> dict[str, list[int]]:
        """Return, by exchange, which worker has each partition: the same one for as long as it is there."""
        size = len(self.pool.places)
        owners = {}
        for entry in {entry for level in self.program.levels for entry in level}:
            exchange = self.program.exchanges[entry]
            node = exchange.node
            # A state is updated and queried at several levels, by the one worker that has it open.
            name = node.state if isinstance(node, (PersistNode, QueryNode)) else entry
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
    """Deal the parts of a batch out: many stay with their workers from batch to batch, few go to others each time."""
    places = list(run.crew)
    first = run.number if len(parts) < len(places) else 0
    dealt: dict[int, list[tuple[int, Part]]] = {}
    for index, part in enumerate(parts):
        dealt.setdefault(places[(first + index) % len(places)], []).append((index, part))
    return dealt
