"""SharingRunner: batches that wait share one Spark job, because a job's fixed cost is more than a small batch takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from trident.runtime.engine.gathering import GatheredJob, Gathering
from trident.runtime.engine.pace import SharingLimits
from trident.runtime.engine.runners import Part, Runner
from trident.runtime.engine.spark_runner import SparkRunner
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.tasks import gathered
from trident.runtime.engine.worker import Order, Program, with_empty_parts
from trident.spout.interfaces import TransactionAttempt

Given = Callable[[], TaskOutput]
"""Puts the output of an attempt together, in the thread of that attempt."""


class SharingRunner:
    """Runs attempts that wait in one job, the outcome of each apart; one that finds no other running starts at once.

    `runner`: runs the jobs; the driver commits what they give.
    `most_pending`: how many batches may be in flight at most.
    """

    here = False
    commits: Collection[str] = ()

    def __init__(self, runner: SparkRunner, most_pending: int, limits: SharingLimits | None = None) -> None:
        self._runner, self.most_pending = runner, most_pending
        self.program: Program = runner.program
        self.parallelism, self.operations = runner.parallelism, runner.operations
        self.gathering: Gathering[Given] = Gathering(self._run, self._stop, limits or SharingLimits())

    def process(self, attempt: TransactionAttempt, parts: Sequence[Part], order: Order | None = None) -> TaskOutput:
        """Run all parts, in a job with those of other attempts if there are any."""
        parts = with_empty_parts(self.program, parts)
        if not parts and not self.program.levels:
            return TaskOutput()
        result = self.gathering.result_of(attempt, parts)
        if result is None:
            return TaskOutput()
        output = result.given()
        self.gathering.learn(output.seconds / self.parallelism, output.bytes_collected)
        return replace(output, shared=result.shared)

    def _run(self, job: GatheredJob[Given]) -> list[Given]:
        batches = [(one.attempt, one.parts) for one in job.attempts]
        if not job.is_shared:
            output = self._runner.process(*batches[0])
            return [lambda: output]
        return [partial(gathered, outputs) for outputs in self._runner.process_together(job.name, batches)]

    def _stop(self, job: GatheredJob[Given]) -> None:
        if job.is_shared:
            self._runner.cancel_job(job.name)
        else:
            self._runner.cancel(job.attempts[0].attempt)

    def commit(self, output: TaskOutput, order: Order) -> TaskOutput:
        return output

    def of_size(self, size: int | None) -> Runner:
        return self

    def wants(self, in_flight: int) -> bool:
        """Want more batches in flight while they are small."""
        return self.gathering.wants(in_flight, self.most_pending)

    def cancel(self, attempt: TransactionAttempt) -> None:
        self.gathering.cancel(attempt)

    def close(self) -> None:
        self._runner.close()
