"""SparkRunner: each attempt is one Spark job, or two if it is committed later.

What the stages of a job wrote to disk because memory was short, as Spark counted it: a sign that batches are
too large.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError

from trident.errors import describe
from trident.runtime.engine.hops import Sent, routes_of, skips
from trident.runtime.engine.runners import Runner, captures, of_width, pickled
from trident.runtime.engine.stage_chain import Body, KeptStages, Stages
from trident.runtime.engine.task_output import TaskOutput, merge_outputs
from trident.runtime.engine.tasks import Job, gathered, run_level_task, run_parts_task, run_task
from trident.runtime.engine.worker import Order, Part, Program, with_empty_parts
from trident.runtime.steps.failures import failure_of
from trident.spark.job_errors import job_failure, jvm_gone
from trident.spark.spark_resources import most_shipped
from trident.spout.interfaces import TransactionAttempt

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession


class SparkRunner(Runner):
    """Runs each attempt as one Spark job: a stage with a task per part, and a stage per level of exchanges.

    The job uses Spark's RDDs: on two cores, a batch of 10k sentences took 50 ms with RDDs, 74 ms as
    `mapInArrow` and 61 to 95 ms as a plan of native expressions, most of it planning. Spark does what only it can:
    scheduling, shipping, replacing lost executors.
    """

    def __init__(
        self,
        spark: SparkSession,
        program: Program,
        parallelism: int | None,
        owned: bool,
        commits: Collection[str] = (),
    ) -> None:
        self._spark, self._owned, self.commits = spark, owned, commits
        self._context = spark.sparkContext
        self.parallelism = parallelism or self._context.defaultParallelism
        speculates = self._context.getConf().get("spark.speculation", "false") or ""
        self.program = replace(
            of_width(program, self.parallelism),
            most_shipped=most_shipped(self._context), speculates=speculates.lower() == "true",
        )  # fmt: skip
        self._stages: dict[tuple[bool, bool], Stages] = {}
        self._id, self._pickled = uuid.uuid4().hex, pickled(self.program)

    def process(self, attempt: TransactionAttempt, parts: Sequence[Part], order: Order | None = None) -> TaskOutput:
        """Run all parts as one job, tagged so that it can be cancelled."""
        parts = with_empty_parts(self.program, parts)
        if not parts and not self.program.levels:
            return TaskOutput()
        job = Job(self._id, self._pickled, order or Order(attempt, captures(parts)))
        if order is None and self.commits:
            return self._process_and_keep(job, parts)
        return self._collected(attempt, lambda: self._rows(job, parts).collect())

    def _process_and_keep(self, job: Job, parts: Sequence[Part]) -> TaskOutput:
        stages = self._stages_of(skips(parts), apart=True)
        first = self._read(parts).mapPartitionsWithIndex(partial(run_parts_task, job, stages.routes))
        sent = stages.until(1 + (self.program.processing or 0), first, _levels(job, stages))
        output = self._collected(job.order.attempt, stages.told(sent).collect)
        return output if output.failure else replace(output, kept=KeptStages(stages, sent, output.sources))

    def commit(self, output: TaskOutput, order: Order) -> TaskOutput:
        """Commit what a job processed and Spark keeps; return the output of both."""
        kept = output.kept
        assert isinstance(kept, KeptStages), output
        job = Job(self._id, self._pickled, replace(order, sources=kept.sources))
        rows = partial(kept.stages.rest, kept.sent, _levels(job, kept.stages), told=len(kept.sent))
        committed = self._collected(order.attempt, lambda: rows().collect())
        return merge_outputs([replace(output, kept=None), committed])

    def _collected(self, attempt: TransactionAttempt, collect: Callable[[], list[bytes | Sent]]) -> TaskOutput:
        """Run a job, tagged so that it can be cancelled, and put its output together."""
        from pyspark.errors import PySparkException

        context, tag = self._context, self._tag(attempt)
        try:
            context.addJobTag(tag)
            rows = collect()
        except (Py4JJavaError, PySparkException) as error:
            return TaskOutput(failure=job_failure(error, context))
        except (Py4JError, OSError) as error:
            return TaskOutput(failure=failure_of("spark", jvm_gone(error), retry=False))
        finally:
            with suppress(Py4JError, OSError):
                context.removeJobTag(tag)
        output = gathered(rows)
        if output.bytes_shuffled >= ASKED_FROM:
            output.bytes_spilled = bytes_spilled(context, tag)
        return output

    def _rows(self, job: Job, parts: Sequence[Part]) -> RDD[Any]:
        """Return what a job gives that does all the work of an attempt."""
        rows = self._read(parts)
        if not self.program.levels:
            return rows.mapPartitions(partial(run_task, job))
        stages = self._stages_of(skips(parts))
        first = rows.mapPartitionsWithIndex(partial(run_parts_task, job, stages.routes))
        body = _levels(job, stages)
        return stages.rest(stages.until(1, first, body), body)

    def _read(self, parts: Sequence[Part]) -> RDD[tuple[int, Part]]:
        return self._context.parallelize(list(enumerate(parts)), max(1, len(parts)))

    def _stages_of(self, any_way: bool, apart: bool = False) -> Stages:
        """Return what puts the stages of a job together; see `routes_of`."""
        found = self._stages.get((any_way, apart))
        if found is None:
            routes = routes_of(self.program, any_way, apart, self.parallelism)
            found = self._stages[any_way, apart] = Stages(self._context, routes)
        return found

    def cancel(self, attempt: TransactionAttempt) -> None:
        self._context.cancelJobsWithTag(self._tag(attempt))

    def close(self) -> None:
        if self._owned:
            from trident.spark.session import stop_session

            stop_session(self._spark)

    def _tag(self, attempt: TransactionAttempt) -> str:
        # Another topology in the same session has attempts of the same number. A tag must not have a comma.
        return f"{self._id}/{attempt.txid}:{attempt.attempt}"


def _levels(job: Job, stages: Stages) -> Callable[[int], Body]:
    return lambda stage: partial(run_level_task, job, stages.routes, stage)


logger = logging.getLogger(__name__)

ASKED_FROM = 32 << 20
"""From so many shuffled bytes the question is worth its few milliseconds; fewer fit into any executor's memory."""

_COUNTED_MS = 1_000  # Spark counts in a thread of its own, which is some milliseconds behind


def bytes_spilled(context: SparkContext, tag: str) -> int:
    """Return the bytes of all jobs with a tag; 0 if Spark does not tell, because no batch depends on it."""
    spark = context._jsc.sc()  # noqa: SLF001 - PySpark has no public question
    try:
        spark.listenerBus().waitUntilEmpty(_COUNTED_MS)
        store, total = spark.statusStore(), 0
        for job in spark.statusTracker().getJobIdsForTag(tag):
            stages = store.job(job).stageIds()
            for at in range(stages.size()):
                total += int(store.lastStageAttempt(stages.apply(at)).diskBytesSpilled())
    except Py4JError as error:
        logger.debug("spilled bytes are unknown: %s", describe(error))
        return 0
    return total
