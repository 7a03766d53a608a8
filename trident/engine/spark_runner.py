"""SparkRunner: each attempt is one Spark job, or two if it is committed later."""

from __future__ import annotations

import logging
import pickle
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JError

from trident.engine.fragment_runs import TaskOutput, merge_outputs
from trident.engine.runners import Runner, pickle_program, tag_of
from trident.engine.tasks import Job, Routes, Sent, merge_sent, routes_of, run_level_task, run_parts_task, skips
from trident.engine.worker import Order, Part, Program, with_empty_parts
from trident.errors import describe
from trident.spark.job_errors import said_as_failure
from trident.spark.spark_resources import most_shipped
from trident.spout.interfaces import TransactionAttempt
from trident.steps.failures import StepFailed

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

Shuffle = Any  # what a stage sends, as an object of the JVM. Spark keeps its files until this is forgotten.

ASKED_FROM = 32 << 20
"""From so many shuffled bytes the question is worth its few milliseconds; fewer fit into any executor's memory."""

_COUNTED_MS = 1_000  # Spark counts in a thread of its own, which is some milliseconds behind
_NUMBER = struct.Struct("!q")


class ExecutorRunner(Runner):
    """What runs tasks in Spark's executors has in common: a batch is processed and committed at once, or committed later."""

    def __init__(
        self, spark: SparkSession, program: Program, parallelism: int | None, owned: bool, **of_tasks: Any
    ) -> None:
        self._spark, self._owned, self.commits = spark, owned, program.commits
        context = self._context = spark.sparkContext
        self.parallelism = parallelism or context.defaultParallelism
        self.program = replace(program.of_width(self.parallelism), most_shipped=most_shipped(context), **of_tasks)
        self._id, self._pickled = uuid.uuid4().hex, pickle_program(self.program)

    def process(self, parts: Sequence[Part], order: Order) -> TaskOutput:
        """Run all parts, and the levels behind them; if the order has no txids, those that commit wait for `commit`."""
        parts = with_empty_parts(self.program, parts)
        if not parts and not self.program.levels:
            return TaskOutput()
        # Without txids the batch before is not recorded yet: what this job processes waits for one that may commit.
        keeps = bool(self.commits) and not order.txids
        last = (self.program.processing or 0) if keeps else len(self.program.levels)
        output, kept = self._run(parts, order, last, keeps)
        return output if kept is None or output.failure is not None else replace(output, kept=kept)

    def commit(self, output: TaskOutput, order: Order) -> TaskOutput:
        return merge_outputs([replace(output, kept=None), self._commit_kept(output.kept, order)])

    def _run(self, parts: Sequence[Part], order: Order, last: int, keeps: bool) -> tuple[TaskOutput, Any]:
        """Run all stages up to the last; return what they give, and what the others need to commit it, if it is kept."""
        raise NotImplementedError

    def _commit_kept(self, kept: Any, order: Order) -> TaskOutput:
        raise NotImplementedError

    def close(self) -> None:
        if self._owned:
            from trident.spark.session import stop_session

            stop_session(self._spark)


class SparkRunner(ExecutorRunner):
    """Runs each attempt as one Spark job: a stage with a task per part, and a stage per level of exchanges."""

    # RDDs: on two cores, a batch of 10k sentences took 50 ms with them, 74 ms as `mapInArrow` and 61 to 95 ms as a plan of
    # native expressions, most of it planning. Spark does what only it can: scheduling, shipping, replacing lost executors.

    def __init__(self, spark: SparkSession, program: Program, parallelism: int | None, owned: bool) -> None:
        speculates = spark.sparkContext.getConf().get("spark.speculation", "false") or ""
        super().__init__(spark, program, parallelism, owned, speculates=speculates.lower() == "true")
        routes = partial(routes_of, self.program, width=self.parallelism)
        self._stages_of = cache(lambda any_way, apart: Stages(self._context, routes(any_way, apart)))

    def _run(self, parts: Sequence[Part], order: Order, last: int, keeps: bool) -> tuple[TaskOutput, Any]:
        job, sent = Job(self._id, self._pickled, order), list[Shuffle]()
        stages = self._stages_of(skips(parts, order), keeps)
        output = self._run_job(order.attempt, lambda: self._rows(stages, job, sent, last, parts).collect())
        return output, KeptStages(stages, sent, output.sources) if keeps else None

    def _commit_kept(self, kept: KeptStages, order: Order) -> TaskOutput:
        job = Job(self._id, self._pickled, order._replace(sources=kept.sources))
        last, sent = len(self.program.levels), list(kept.sent)
        return self._run_job(order.attempt, lambda: self._rows(kept.stages, job, sent, last).collect())

    def _run_job(self, attempt: TransactionAttempt, collect: Callable[[], list[bytes | Sent]]) -> TaskOutput:
        """Run a job, tagged so that it can be cancelled, and put its output together."""
        context, tag = self._context, tag_of(self._id, attempt)
        try:
            with said_as_failure(context):
                context.addJobTag(tag)
                rows = collect()
        except StepFailed as error:
            return TaskOutput(failure=error.failure)
        finally:
            # Where the JVM is gone, that is the failure already.
            with suppress(Py4JError, OSError):
                context.removeJobTag(tag)
        output = merge_sent(rows)
        if output.bytes_shuffled >= ASKED_FROM:
            output.bytes_spilled = bytes_spilled(context, tag)
        return output

    def _rows(self, stages: Stages, job: Job, sent: list[Shuffle], last: int, parts: Sequence[Part] = ()) -> RDD[Any]:
        """Lower the stages behind those that have sent, up to `last`, and add what they send; return what the driver gets."""
        before, routes = len(sent), stages.routes
        for stage in range(before, last + 1):
            if stage:
                run = partial(run_level_task, job, routes, stage)
                arrived = stages.read([sent[source] for source in routes.sources[stage - 1]], routes.levels[stage - 1])
            else:
                run = partial(run_parts_task, job, routes)
                # One task also without parts, because the exchanges behind it run in every batch.
                arrived = self._context.parallelize(list(enumerate(parts)), max(1, len(parts)))
            rows = arrived.mapPartitionsWithIndex(run)
            if stage == len(routes.levels):
                # What earlier stages had for the driver was read by the job that ran them.
                told = sent[before:]
                return rows.union(stages.read(told, routes.driver)) if routes.driver and told else rows
            sent.append(stages.shuffle(rows))
        return stages.read(sent[before:], routes.driver)

    def cancel(self, attempt: TransactionAttempt) -> None:
        self._context.cancelJobsWithTag(tag_of(self._id, attempt))


class Stages:
    """What the stages of jobs of the same routes send, in Spark's shuffles; made once, and used by many jobs."""

    # A stage reads its destinations from several of them at once: the JVM puts shuffles of one partitioner together,
    # partition by partition, and leaves out those that a stage does not read. What the driver reads passes through no Python
    # worker.

    def __init__(self, context: SparkContext, routes: Routes) -> None:
        jvm = context._jvm  # noqa: SLF001 - what PySpark's own partitionBy and union do
        assert jvm is not None
        self.routes, self._context, self._jvm = routes, context, jvm
        self._partitioner = jvm.PythonPartitioner(routes.count, 0)
        self._prune = jvm.org.apache.spark.rdd.PartitionPruningRDD.create
        # A set of Scala is a function that says whether a number is in it.
        self._filter = cache(lambda numbers: jvm.PythonUtils.toSeq(list(numbers)).toSet())

    def shuffle(self, rows: RDD[Any]) -> Shuffle:
        """Return the shuffle of a stage that gives pairs: the number of a destination, and what is sent there."""
        numbered = rows.mapPartitions(_shuffle_bytes)
        numbered._bypass_serializer = True  # type: ignore[attr-defined]  # noqa: SLF001 - as above
        pairs = self._jvm.PairwiseRDD(numbered._jrdd.rdd()).asJavaPairRDD()  # noqa: SLF001 - as above
        return pairs.partitionBy(self._partitioner)

    def read(self, shuffles: Sequence[Shuffle], numbers: range) -> RDD[Any]:
        """Return what was sent to some destinations, a partition each."""
        from pyspark import RDD
        from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer

        first, *others = shuffles
        for other in others:
            first = first.union(other)  # of equal partitioners: partition by partition
        values = self._jvm.PythonRDD.valueOfPair(first)
        # Else Spark would start a task for each destination, those of other levels included.
        if len(numbers) < self.routes.count:
            values = self._prune(values.rdd(), self._filter(numbers)).toJavaRDD()
        # The serializer of Spark's sessions: PySpark unites RDDs of one serializer without a look at their items.
        return RDD(values, self._context, AutoBatchedSerializer(CPickleSerializer()))


class KeptStages(NamedTuple):
    """The stages of a batch that is processed: the job that commits it reads what they sent, as long as this is kept."""

    stages: Stages
    sent: list[Shuffle]
    sources: Mapping[int, str]  # by stage, the digest of its runs of which the driver was told


def _shuffle_bytes(items: Iterable[tuple[int, Any]]) -> Iterator[bytes]:
    # As PySpark's shuffle writes it: a number, then a batch, here of one item.
    for to, item in items:
        yield _NUMBER.pack(to)
        yield pickle.dumps([item], pickle.HIGHEST_PROTOCOL)


def bytes_spilled(context: SparkContext, tag: str) -> int:
    # No batch depends on it: where Spark does not tell, it is 0.
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
