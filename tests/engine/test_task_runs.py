"""Rows between stages: they pass through no other one, and are of one run of each task although Spark runs some again."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import cloudpickle
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import run_all
from trident import Fields, Stream, TridentTopology
from trident.engine import tasks
from trident.engine.dataframe_runner import numbers_for, partition_of
from trident.engine.fragment_runs import TaskOutput
from trident.engine.runners import InProcessRunner, tag_of
from trident.engine.spark_runner import KeptStages, SparkRunner
from trident.engine.tasks import Sent, merge_sent, routes_of, run_level_task, run_parts_task, unpack
from trident.engine.worker import Order, Part, Program
from trident.operations import Count, Split, Sum
from trident.plan import make_plan
from trident.run.batch_spouts import as_trident_spout
from trident.spout import IOpaquePartitionedTridentSpout
from trident.spout.interfaces import TransactionAttempt

Items = list[tuple[int, Sent]]
ATTEMPT, IDS, PARTS, WIDTH = TransactionAttempt(1, 1 << 20), 2048, 2, 3
salts = itertools.count()


def salt(id_: int) -> int:
    """Stands for a random number: never the same one again."""
    return next(salts) * 7919 % 101


class Job:
    """A job as Spark runs it: the bodies of its tasks, each perhaps more than once, and what each run reads."""

    def __init__(self, exchanges: int, source: Any = None, any_way: bool = False) -> None:
        topology = TridentTopology("t")
        spout = as_trident_spout(source or FixedBatchSpout("id: int", IDS, *[(at,) for at in range(IDS)]))
        stream = topology.new_stream("in", spout)
        for name in [f"salt{at}" for at in range(exchanges)]:
            stream = stream.each("id", salt, f"{name}: int").partition_by(name)
        stream.group_by("id").persistent_aggregate(MemoryMapState(), Count(), "n")
        plan = make_plan(topology.graph())
        commits = {node.id for node in plan.commits}
        fragments = {entry: fragment for entry, fragment in plan.fragments.items() if entry not in commits}
        coordinator, emitters = spout.get_coordinator({}), {"in": spout.get_emitter({})}
        program = Program("t", fragments, emitters, {}, {}, plan.exchanges, plan.levels).of_width(WIDTH)
        self.job = tasks.Job(f"job-{next(salts)}", cloudpickle.dumps(program), Order(ATTEMPT))
        self.routes = routes_of(program, any_way, apart=False, width=1)
        definition = coordinator.initialize_transaction(1, None)
        self.parts = [("in", part) for part in coordinator.parts(ATTEMPT, definition, PARTS)]

    def read(self, task: int) -> list[Any]:
        parts = iter([(task, self.parts[task])])
        return list(run_parts_task(self.job, self.routes, task, parts))

    def level(self, level: int, task: int, runs: Sequence[Items]) -> list[Any]:
        """Run a task of a level; it reads what these runs of the tasks before it sent to it."""
        here = self.routes.levels[level - 1][task]
        items = (sent for run in runs for to, sent in run if to == here)
        return list(run_level_task(self.job, self.routes, level, task, items))

    def last(self, level: int, runs_of_tasks: Sequence[Sequence[Items]]) -> TaskOutput:
        """Run the last stage, and put together what it gives."""
        return merge_sent(b for task, runs in enumerate(runs_of_tasks) for b in self.level(level, task, runs))


def counted(output: TaskOutput) -> Counter[int]:
    assert output.failure is None
    return Counter(row["id"] for tables in output.sinks.values() for table in tables for row in table.to_pylist())


ALL_ONCE = Counter(range(IDS))


def test_tasks_that_read_the_same_runs_give_each_row_once() -> None:
    job = Job(1)
    first, lost, second = job.read(0), job.read(1), job.read(1)
    assert counted(job.last(1, [[first, lost]] * WIDTH)) == ALL_ONCE
    assert counted(job.last(1, [[second, first]] * WIDTH)) == ALL_ONCE


@pytest.mark.parametrize("task", range(WIDTH))
def test_a_batch_whose_tasks_read_different_runs_fails_and_is_tried_again(task: int) -> None:
    job = Job(1)
    first, lost, second = job.read(0), job.read(1), job.read(1)
    runs = [[first, second if at == task else lost] for at in range(WIDTH)]
    failure = job.last(1, runs).failure
    assert failure is not None
    assert failure.retry
    assert failure.cause == (
        "stage 1 lost output of a task, most often with an executor, and Spark ran that task again after the output of "
        "its first run had been read"
    )


def test_a_task_that_reads_two_runs_of_one_task_runs_no_step() -> None:
    job = Job(1)
    first, lost, second = job.read(0), job.read(1), job.read(1)
    output = job.last(1, [[first, lost, second]] * WIDTH)
    assert output.failure is not None
    assert "Spark ran that task again" in output.failure.cause


def test_a_run_that_sends_no_row_to_a_task_is_known_there() -> None:
    job = Job(1)
    job.parts = job.parts[:1]
    lost, second = job.read(0), job.read(0)
    without_rows = [(to, sent) for to, sent in second if to != 2 or sent.item is None]
    assert job.last(1, [[second], [second], [without_rows]]).failure is None
    assert job.last(1, [[lost], [lost], [without_rows]]).failure is not None


def test_runs_are_told_apart_over_several_levels() -> None:
    job = Job(2)
    reads, again = [job.read(0), job.read(1)], job.read(1)
    middle = [job.level(1, task, reads) for task in range(WIDTH)]
    assert counted(job.last(2, [middle] * WIDTH)) == ALL_ONCE
    other = job.level(1, 2, reads)  # the same input, other salts
    assert job.last(2, [middle, middle, [*middle[:2], other]]).failure is not None
    newer = job.level(1, 2, [reads[0], again])  # one that all of the last stage read, but it read another run
    failure = job.last(2, [[*middle[:2], newer]] * WIDTH).failure
    assert failure is not None
    assert failure.cause.startswith("stage 1 lost output")


def test_the_driver_and_a_later_level_read_the_runs_that_the_levels_before_have_read() -> None:
    job = Job(2, any_way=True)
    reads, again = [job.read(0), job.read(1)], job.read(1)
    middle = [job.level(1, task, reads) for task in range(WIDTH)]

    def given(late: Sequence[Items], told: Sequence[Items]) -> TaskOutput:
        outputs = [item for task in range(WIDTH) for item in job.level(2, task, [*late, *middle])]
        return merge_sent(
            [*outputs, *(sent for run in [*told, *middle] for to, sent in run if to in job.routes.driver)]
        )

    assert counted(given(reads, reads)) == ALL_ONCE
    for late, told in ([reads[0], again], reads), (reads, [reads[0], again]):
        failure = given(late, told).failure
        assert failure is not None
        assert failure.cause.startswith("stage 1 lost output")


@pytest.mark.parametrize("any_way", [False, True])
def test_no_task_goes_on_behind_one_that_failed_and_its_failure_is_told(any_way: bool) -> None:
    job = Job(2, any_way=any_way)
    good = job.read(0)
    job.parts[1] = ("in", "no part at all")
    bad = job.read(1)
    middle = [job.level(1, task, [good, bad]) for task in range(WIDTH)]
    last = [item for task in range(WIDTH) for item in job.level(2, task, [good, bad, *middle])]
    outputs = [unpack(item) for item in last if isinstance(item, bytes)]
    assert [output for output in outputs if output.failure is None and output.level] == []
    told = [sent for run in [good, bad, *middle] for to, sent in run if to in job.routes.driver]
    failure = merge_sent([*last, *told]).failure
    assert failure is not None
    assert failure.step == "in"


def test_a_failure_that_only_a_lost_run_had_still_fails_the_batch() -> None:
    job = Job(1)
    good, again, part = job.read(0), job.read(1), job.parts[1]
    job.parts[1] = ("in", "no part at all")
    lost = job.read(1)
    job.parts[1] = part
    runs = [[good, lost if task == 2 else again] for task in range(WIDTH)]
    assert job.last(1, runs).failure is not None


class Restless(IOpaquePartitionedTridentSpout):
    """Two partitions that give other rows whenever they are read; rows and metadata say by which reading."""

    def get_output_fields(self) -> Fields:
        return Fields("id: int")

    def get_coordinator(self, conf: Any) -> Restless:
        return self

    def get_emitter(self, conf: Any) -> Restless:
        return self

    def get_partitions_for_batch(self) -> list[str]:
        return ["0", "1"]

    def emit_partition_batch_new(self, attempt: Any, collector: Any, partition: str, last_metadata: Any) -> int:
        reading = next(salts)
        for row in range(100):
            collector.emit([reading * 1000 + row])
        return reading


@pytest.mark.parametrize("exchanges", [1, 2])
def test_rows_and_metadata_of_a_batch_are_of_the_same_run_of_each_task(exchanges: int) -> None:
    job = Job(exchanges, Restless())
    first, lost, second = job.read(0), job.read(1), job.read(1)

    def output(*runs: Items) -> TaskOutput:
        before: Any = [list(runs)] * WIDTH
        for level in range(1, exchanges):
            before = [[job.level(level, task, before[task]) for task in range(WIDTH)]] * WIDTH
        return job.last(exchanges, before)

    for run in (lost, second):
        given = output(first, run)
        readings = {row // 1000 for row in counted(given)}
        assert {read.metadata for read in given.metadata["in"].values()} == readings
        assert [read.rows for read in given.metadata["in"].values()] == [100, 100]
    if exchanges == 1:
        mixed = job.last(1, [[first, lost], [first, second], [first, lost]])
        assert mixed.failure is not None
        assert mixed.metadata == {}


ROWS, ROUTED_WIDTH, SIZE = 400, 2, 1_000
ORDER = Order(ATTEMPT)
WIDE, SMALL = ROWS * SIZE // 2, 32_000  # texts compress to a half; a stage without them sends ids and counts


def double(id_: int) -> int:
    return id_ * 2


def declared(topology: TridentTopology, what: str) -> Any:
    """Declare two exchanges of ids; beside them texts, which the driver commits or the second exchange joins."""
    drawn = random.Random(7)
    rows = [(at, f"{at} " + "".join(drawn.choices("0123456789abcdefghijklmnopqrstuv", k=SIZE))) for at in range(ROWS)]
    spout = as_trident_spout(FixedBatchSpout("id: bigint, text: string", ROWS, *rows))
    stream = topology.new_stream("in", spout)
    ids = stream.project("id").partition_by("id").each("id", double, "twice: bigint")
    if what == "later":
        ids = topology.join(stream, "id", ids.project("id", "twice"), "id", "id, text, twice")
        ids = ids.each("text", len, "length: bigint").project("id", "twice", "length")
    else:
        stream.group_by("text").persistent_aggregate(MemoryMapState(), Count(), "n", state_name="texts")
        ids = ids.partition_by("twice")
    ids.group_by("id").persistent_aggregate(MemoryMapState(), Count(), "n")
    return spout


def program_of(what: str) -> tuple[Program, list[Part]]:
    topology = TridentTopology("t")
    spout = declared(topology, what)
    plan = make_plan(topology.graph())
    commits = {node.id for node in plan.commits}
    fragments = {entry: fragment for entry, fragment in plan.fragments.items() if entry not in commits}
    program = Program("t", fragments, {"in": spout.get_emitter({})}, {}, {}, plan.exchanges, plan.levels).of_width(
        ROUTED_WIDTH
    )
    assert len(program.levels) == 2
    coordinator = spout.get_coordinator({})
    definition = coordinator.initialize_transaction(1, None)
    return program, [("in", part) for part in coordinator.parts(ATTEMPT, definition, ROUTED_WIDTH)]


class Stage(NamedTuple):
    """What Spark has counted of a stage that ran."""

    tasks: int
    read: int
    written: int


def stages_of(spark: Any, tag: str) -> list[Stage]:
    """Return the stages of all jobs with a tag that ran, in their order."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty(30_000)
    store, found = context.statusStore(), {}
    for job in context.statusTracker().getJobIdsForTag(tag):
        ids = store.job(job).stageIds()
        for at in range(ids.size()):
            stage = store.lastStageAttempt(ids.apply(at))
            if stage.numCompleteTasks():
                found[ids.apply(at)] = Stage(stage.numTasks(), stage.shuffleReadBytes(), stage.shuffleWriteBytes())
    return [found[id_] for id_ in sorted(found)]


def rows_of(output: TaskOutput) -> Any:
    assert output.failure is None, output.failure
    tables = [table for target in sorted(output.sinks) for table in output.sinks[target]]
    return sorted(str(row) for table in tables for row in table.to_pylist()), output.rows


def in_process(program: Program, parts: list[Part]) -> Any:
    return rows_of(InProcessRunner(program, ROUTED_WIDTH).process(parts, ORDER))


@pytest.mark.parametrize("what", ["driver", "later"])
def test_rows_pass_through_no_stage_in_between(spark: Any, what: str) -> None:
    program, parts = program_of(what)
    runner = SparkRunner(spark, program, ROUTED_WIDTH, owned=False)
    assert rows_of(runner.process(parts, ORDER)) == in_process(program, parts)
    first, between, last = stages_of(spark, tag_of(runner._id, ATTEMPT))
    assert first.written > WIDE
    assert max(between.read, between.written) < SMALL
    assert last.read > WIDE
    own = ROUTED_WIDTH if what == "driver" else 0  # tasks without Python, which hand the driver what is its own
    assert (between.tasks, last.tasks) == (ROUTED_WIDTH, ROUTED_WIDTH + own)


@pytest.mark.sample(2)
@pytest.mark.parametrize("what", ["driver", "later"])
@pytest.mark.parametrize("processing", [0, 1])
def test_a_job_that_commits_reads_what_the_job_before_has_left(spark: Any, what: str, processing: int) -> None:
    program, parts = program_of(what)
    runner = SparkRunner(spark, replace(program, processing=processing, commits={"some"}), ROUTED_WIDTH, owned=False)
    output = runner.process(parts, ORDER)
    before = len(stages_of(spark, tag := tag_of(runner._id, ATTEMPT)))
    assert before == processing + 2
    output = runner.commit(output, ORDER)
    assert rows_of(output) == in_process(program, parts)
    stages = stages_of(spark, tag)
    assert len(stages) - before == 2 - processing, "a stage of the first job ran again"
    if processing:
        assert max(stages[1].read, stages[1].written) < SMALL
    else:
        assert max(stages[2].read, stages[2].written) < SMALL


def test_a_job_that_commits_refuses_rows_that_were_lost_and_made_again(spark: Any) -> None:
    program, parts = program_of("later")
    runner = SparkRunner(spark, replace(program, processing=1, commits={"some"}), ROUTED_WIDTH, owned=False)
    output = runner.process(parts, ORDER)
    assert isinstance(output.kept, KeptStages)
    (dependency,) = [output.kept.sent[0].rdd().dependencies().apply(0)]
    tracker = spark.sparkContext._jsc.sc().env().mapOutputTracker()
    tracker.unregisterAllMapAndMergeOutput(dependency.shuffleId())
    failure = runner.commit(output, ORDER).failure
    assert failure is not None
    assert failure.retry
    assert re.match("stage 1 lost output of a task", failure.cause)


def test_a_level_reads_only_the_stages_that_send_to_it() -> None:
    program, _ = program_of("driver")
    assert routes_of(program, any_way=False, apart=False, width=3).sources == ((0,), (1,))
    assert routes_of(program, any_way=True, apart=False, width=3).sources == ((0,), (0, 1))
    later, _ = program_of("later")
    routes = routes_of(later, any_way=False, apart=False, width=3)
    assert routes.sources == ((0,), (0, 1))
    assert (routes.driver, routes_of(later, any_way=False, apart=True, width=3).driver) == (range(4, 4), range(4, 5))
    assert routes_of(program, any_way=False, apart=True, width=3).driver == range(4, 7)


@pytest.mark.parametrize("partitions", [1, 2, 7, 64])
def test_there_is_a_number_for_each_partition(partitions: int) -> None:
    numbers = numbers_for(partitions)
    assert [partition_of(number, partitions) for number in numbers] == list(range(partitions))


@pytest.mark.parametrize("partitions", [2, 5])
def test_spark_sends_each_number_where_we_think(partitions: int, spark: Any) -> None:
    from pyspark.sql.functions import spark_partition_id

    ids = spark.range(-50, 50).selectExpr("cast(id AS int) AS number")
    rows = ids.repartition(partitions, "number").withColumn("at", spark_partition_id()).collect()
    assert {row.number: row["at"] for row in rows} == {n: partition_of(n, partitions) for n in range(-50, 50)}


Ways = Callable[[TridentTopology, Stream], Stream]

WAYS: dict[str, tuple[Ways, int]] = {
    "merged with itself": (lambda t, words: t.merge(words.project("word"), words.project("word")), 8),
    "merged behind a partitioning": (
        lambda t, words: t.merge(words.partition_by("word").project("word"), words.project("word")), 8,
    ),
    "shuffled": (lambda t, words: words.shuffle(), 4),
    "in one partition": (lambda t, words: words.global_(), 4),
    "filtered": (lambda t, words: words.partition_by("word").filter("word", lambda word: True), 4),
    "merged, then shuffled": (lambda t, words: t.merge(words, words).shuffle(), 8),
}  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize("way", WAYS)
def test_every_row_is_counted(way: str, engine: str) -> None:
    make, expected = WAYS[way]
    topology = TridentTopology("counted")
    lines = topology.new_stream("lines", FixedBatchSpout("line: string", 2, ["the cow"], ["the dog"]))
    counted = make(topology, lines.each("line", Split(), "word: string")).aggregate(Count(), "c")
    total = counted.persistent_aggregate(MemoryMapState(), "c", Sum(), "total", state_name="total")
    running = run_all(topology, engine)
    assert running.state(total).get() == expected
