"""User code that gives more than a machine holds: refused while it is emitted, with step and tuple named, on both engines."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from states.memory import MemoryMapState
from tests.harness.topology_runs import Keep, RowsSpout, RowsState, keep, operation, run_all, topology_of
from trident import BatchFailedError, Stream, TridentTopology
from trident.drpc import LocalDRPC
from trident.engine import spark_runner
from trident.errors import DRPCExecutionException
from trident.fields import Fields
from trident.operations import BaseAggregator, BaseQueryFunction, BaseStateUpdater, Count, Function, arrow_function, col
from trident.operations.names import operation_name
from trident.spark.job_errors import JobFailed
from trident.spark.spark_resources import most_shipped
from trident.steps.failures import Bounds, TooManyRows, TupleErrors
from trident.steps.rows import Emitted

MOST: dict[str, Any] = {"max_rows_per_tuple": 50, "max_rows_per_step": 200, "max_batch_attempts": 1}


def numbers(topology: TridentTopology, *rows: int) -> Stream:
    return topology.new_stream("s", RowsSpout("n: int", {1: [(row,) for row in rows]}))


def forever(n: int) -> Iterator[int]:
    while True:
        yield n


def times(n: int) -> Iterator[int]:
    yield from range(n)


def emit_forever(collector: Any) -> None:
    while True:
        collector.emit([1])


Forever = operation("Forever", Function, "int", execute=lambda row, collector: emit_forever(collector))
Answers = operation(
    "Answers", BaseQueryFunction, "int",
    batch_retrieve=lambda state, args: [None] * len(args),
    execute=lambda row, result, collector: [collector.emit([n]) for n in times(row[0])],
)  # fmt: skip
Endless = operation(  # an aggregator, and a multi-reducer
    "Endless", BaseAggregator, "int",
    init=lambda *_: None, aggregate=lambda *_: None, execute=lambda *_: None,
    complete=lambda val, collector: emit_forever(collector),
)  # fmt: skip
Hundred = operation("Hundred", Endless, "int", complete=lambda val, out: [out.emit([number]) for number in range(100)])
EndlessUpdater = operation(
    "EndlessUpdater", BaseStateUpdater, "int", update_state=lambda state, rows, collector: emit_forever(collector)
)


@arrow_function("x: int", flat=True)
def lists(numbers: Any) -> Any:
    return pa.array([list(range(n)) for n in numbers.to_pylist()], pa.list_(pa.int32()))


@arrow_function("x: int", flat=True)
def parents(numbers: Any) -> Any:
    at = np.repeat(np.arange(len(numbers)), numbers.to_numpy())
    return pa.array(at), pa.array(at.astype(np.int32))


@arrow_function("x: int", flat=True)
def columns(rows: Any) -> Any:
    return pa.array(range(int(sum(rows.column(0).to_pylist()))), pa.int32())


TUPLE = r"TooManyRows: one tuple gave more than 50 rows. Does the function ever end\? .* raise the setting max_rows_per_tuple"
STEP = r"TooManyRows: the step makes {} rows or more of the {} of one partition of the batch; at most 200 are allowed"

# name -> (declaration over n = 3, 51, expected text)
HUGE: dict[str, tuple[Callable[[Stream], Any], str]] = {
    "a generator without end": (lambda s: s.each("n", forever, "x: int"), rf"'s/forever' on tuple \[n=3\]: {TUPLE}"),
    "a generator of too much": (lambda s: s.each("n", times, "x: int"), rf"'s/times' on tuple \[n=51\]: {TUPLE}"),
    "a function without end": (lambda s: s.each("n", Forever(), "x"), rf"'s/Forever' on tuple \[n=3\]: {TUPLE}"),
    "a flat_map": (lambda s: s.flat_map(lambda row: times(row[0])), rf"'s/flat_map' on tuple \[n=51\]: {TUPLE}"),
    "a query": (
        lambda s: s.state_query(topology_of(s).new_static_state(RowsState()), "n", Answers(), "x"),
        rf"'s/Answers@static0' on tuple \[n=51\]: {TUPLE}",
    ),
    "a query of a state": (
        lambda s: s.state_query(s.partition_persist(RowsState(), Keep(), "m: int"), "n", Answers(), "x"),
        rf"'s/Answers@s-persist' on tuple \[n=51\]: {TUPLE}",
    ),
    "a vectorised function of lists": (lambda s: s.each("n", lists), rf"'s/lists' on tuple \[n=51\]: {TUPLE}"),
    "a vectorised function of parents": (lambda s: s.each("n", parents), rf"'s/parents' on tuple \[n=51\]: {TUPLE}"),
    "a vectorised flat_map": (
        lambda s: s.filter("n", lambda n: n > 3).flat_map(columns),
        rf"'s/filter/columns' on tuple .*{TUPLE}",
    ),
    "an explosion": (
        lambda s: s.each("n", lambda n: list(range(n)), "l: array<int>").select(x=col("l").explode()),
        rf"'s/each/select' on tuple .*: {TUPLE}",
    ),
    "many tuples together": (
        lambda s: s.flat_map(lambda row: [[40]] * 10).global_().each("n", times, "x: int"),
        rf"'s/flat_map/global/times' on tuple \[n=40\]: {STEP.format(201, 20)}",
    ),
    "an aggregator": (lambda s: s.aggregate("n", Endless(), "x"), "'s/Endless': " + STEP.format(201, 2)),
    "a chain": (
        lambda s: s.chained_agg().aggregate("n", Hundred(), "x").aggregate("n", Hundred(), "y").chain_end(),
        "'s/aggregate': " + STEP.format(10000, 2),
    ),
    "a multi-reducer": (
        lambda s: topology_of(s).multi_reduce([s], Endless(), "x"),
        "'s/multi_reduce': " + STEP.format(201, 2),
    ),
    "a join": (
        lambda s: topology_of(s).join(*[s.flat_map(lambda row: [[1]] * 10), "n"] * 2, "n"),
        "'s/flat_map/join': " + STEP.format(400, 40),
    ),
    "an updater": (
        lambda s: s.partition_persist(RowsState(), EndlessUpdater(), "x", state_name="u").new_values_stream(),
        "'s/EndlessUpdater@u': " + STEP.format(201, 2),
    ),
    "a step behind a state": (
        lambda s: (
            s.persistent_aggregate(MemoryMapState(), Count(), "c").new_values_stream().each("c", forever, "x: bigint")
        ),
        rf"'s/Count@c/forever' on tuple \[c=2\]: {TUPLE}",
    ),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("case", HUGE)
def test_what_gives_too_much_is_ended_and_named(case: str, engine: str, topology: TridentTopology) -> None:
    declare, text = HUGE[case]
    keep(declare(numbers(topology, 3, 51)))
    with pytest.raises(BatchFailedError, match=rf"batch 1 failed once in step {text}"):
        run_all(topology, engine, **MOST)


@pytest.mark.parametrize("function", [times, lists, parents], ids=["generator", "lists", "parents"])
def test_what_is_allowed_passes_and_what_is_not_can_be_put_aside(
    function: Any, engine: str, topology: TridentTopology, tmp_path: Path
) -> None:
    kept = keep(numbers(topology, 50, 51, 2).each("n", function, "x: int").project("n"))
    run_all(topology, engine, **MOST, on_poison="dead_letter", dead_letter_dir=tmp_path)
    assert kept.rows == [(50,)] * 50 + [(2,)] * 2
    (letter,) = (json.loads(line) for line in next(tmp_path.glob("*.jsonl")).read_text("utf-8").splitlines())
    assert (letter["step"], letter["tuple"]) == (f"s/{operation_name(function)}", "[n=51]")
    assert letter["error"].startswith("TooManyRows: one tuple gave more than 50 rows")


def test_a_step_that_makes_no_more_of_its_tuples_has_no_bound(engine: str, topology: TridentTopology) -> None:
    kept = keep(numbers(topology, *range(500)).global_().each("n", lambda n: n, "x: int").map(lambda row: row))
    run_all(topology, engine, **MOST)
    assert len(kept.rows) == 500


def test_a_request_without_end_fails_alone(topology: TridentTopology) -> None:
    requests = topology.new_drpc_stream("f")
    requests.flat_map(lambda row: ([one] for one in times(int(row[0]))), "n: int").aggregate(Count(), "count")
    with LocalDRPC(topology, max_rows_per_tuple=50) as drpc:
        assert drpc.execute("f", "50") == [[50]]
        with pytest.raises(DRPCExecutionException, match="one tuple gave more than 50 rows"):
            drpc.execute("f", "1000000000")


@pytest.mark.long
@pytest.mark.slow
def test_a_text_beyond_what_arrow_holds_is_named_without_being_written_out() -> None:
    """3 GB of it, which costs a copy if it is looked at in the wrong way."""
    out = Emitted("s/each", Fields("n: int, x: string"), TupleErrors())
    out.emit([1, "y"])
    out.emit([2, "x" * 2**31])
    with pytest.raises(
        Exception, match=r"field 'x' is declared string, but got 'x{299}… \(2147483648 characters\)"
    ) as caught:
        out.columns(pa.table({}), Fields())
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize(
    ("declare", "step"),
    [
        (lambda s: s, "s/each/Keep@kept"),
        (lambda s: s.shuffle().parallelism_hint(2), "s/each/shuffle"),
        (lambda s: s.partition_by("n").parallelism_hint(2).filter("n", bool), "s/each/partition_by"),
    ],
    ids=["to the driver", "to the next stage", "hashed"],
)
def test_a_task_hands_spark_no_more_than_its_memory_holds(
    declare: Callable[[Stream], Stream],
    step: str,
    topology: TridentTopology,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trident.engine.spark_runner.most_shipped", lambda context: 10_000)
    keep(declare(numbers(topology, 20_000).each("n", lambda n: "x" * n, "x: string")))
    text = rf"batch 1 failed once in step '{step}': TooManyRows: one partition gives 2\d{{4}} bytes .* at most 10000 at"
    with pytest.raises(BatchFailedError, match=text):
        run_all(topology, "spark")


def test_each_of_two_tasks_may_hand_on_a_sixteenth_of_the_heap(spark: Any) -> None:
    heap = spark._jvm.java.lang.Runtime.getRuntime().maxMemory()
    assert most_shipped(spark.sparkContext) == heap // 16


def test_a_worker_that_ends_is_told_without_a_stack_trace(topology: TridentTopology, spark: Any) -> None:
    keep(numbers(topology, 1).each("n", lambda n: os._exit(3), "x: int"))
    with pytest.raises(
        BatchFailedError, match="in step 'spark': JobFailed: .*Job aborted.*Python worker exited"
    ) as caught:
        run_all(topology, "spark", max_batch_attempts=1)
    assert "\n" not in caught.value.cause
    assert ".scala:" not in caught.value.cause


def test_frames_of_java_are_left_out_wherever_spark_writes_them() -> None:
    said = """org.apache.spark.SparkException: Job aborted: Lost task 0.0 (TID 0): it was so
\tat org.apache.spark.rdd.RDD.iterator(RDD.scala:338)
\t... 1 more

This stopped SparkContext was created at:
org.apache.spark.api.java.JavaSparkContext.<init>(JavaSparkContext.scala:59)
java.base/jdk.internal.reflect.NativeConstructorAccessorImpl.newInstance0(Native Method)
Driver stacktrace:"""

    assert str(JobFailed.of(said)) == (
        "org.apache.spark.SparkException: Job aborted: Lost task 0.0 (TID 0): it was so "
        "This stopped SparkContext was created at:"
    )


def test_a_jvm_that_is_gone_is_told(topology: TridentTopology, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(spark_runner.SparkRunner, "_rows", gone)
    keep(numbers(topology, 1))
    text = r"failed once in step 'spark': EnvironmentProblem: Spark's JVM does not answer any more .*memory"
    with pytest.raises(BatchFailedError, match=text):
        run_all(topology, "spark")


def test_the_bounds_of_a_topology_are_its_settings() -> None:
    assert Bounds.of({}) == Bounds(1_000_000, 10_000_000)
    assert Bounds.of(MOST) == Bounds(50, 200)
    with pytest.raises(
        TooManyRows, match="at most 200 are allowed. Use smaller batches or more partitions, or raise the setting max_"
    ):
        Bounds.of(MOST).check_step(201, 200)
    Bounds.of(MOST).check_step(201, 201)
