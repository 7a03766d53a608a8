"""Rows for a later level, or for the driver, pass through no stage in between; those without columns are counted."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import start
from trident import Stream, TridentTopology
from trident.operations import Count, Split, Sum
from trident.planner import make_plan
from trident.runtime.engine.dataframe_runner import numbers_for, partition_of
from trident.runtime.engine.runners import InProcessRunner, tag_of
from trident.runtime.engine.spark_runner import KeptStages, SparkRunner
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.tasks import routes_of
from trident.runtime.engine.worker import Order, Part, Program
from trident.runtime.spouts.batch_spouts import as_trident_spout
from trident.spout.interfaces import TransactionAttempt

ROWS, WIDTH, SIZE = 400, 2, 1_000
ATTEMPT = TransactionAttempt(1, 1 << 20)
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
        WIDTH
    )
    assert len(program.levels) == 2
    coordinator = spout.get_coordinator({})
    definition = coordinator.initialize_transaction(1, None)
    return program, [("in", part) for part in coordinator.parts(ATTEMPT, definition, WIDTH)]


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
    return rows_of(InProcessRunner(program, WIDTH).process(parts, ORDER))


@pytest.mark.parametrize("what", ["driver", "later"])
def test_rows_pass_through_no_stage_in_between(spark: Any, what: str) -> None:
    program, parts = program_of(what)
    runner = SparkRunner(spark, program, WIDTH, owned=False)
    assert rows_of(runner.process(parts, ORDER)) == in_process(program, parts)
    first, between, last = stages_of(spark, tag_of(runner._id, ATTEMPT))
    assert first.written > WIDE
    assert max(between.read, between.written) < SMALL
    assert last.read > WIDE
    own = WIDTH if what == "driver" else 0  # tasks without Python, which hand the driver what is its own
    assert (between.tasks, last.tasks) == (WIDTH, WIDTH + own)


@pytest.mark.sample(2)
@pytest.mark.parametrize("what", ["driver", "later"])
@pytest.mark.parametrize("processing", [0, 1])
def test_a_job_that_commits_reads_what_the_job_before_has_left(spark: Any, what: str, processing: int) -> None:
    program, parts = program_of(what)
    runner = SparkRunner(spark, replace(program, processing=processing, commits={"some"}), WIDTH, owned=False)
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
    runner = SparkRunner(spark, replace(program, processing=1, commits={"some"}), WIDTH, owned=False)
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


# ---- DataFrames: the numbers that Spark sends to each partition are those that we take ---------------------------------


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


# ---- rows without columns --------------------------------------------------------------------------------------------


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
    with start(topology, engine) as running:
        running.process_all_available()
        assert running.state(total).get() == expected
