"""The windows of Trident's operations, by a clock that the test moves, against a plain list of what happened when."""

from __future__ import annotations

import random

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.explain.drawing import edges_of_plan, operations_of_plan
from trident.observe.batch_committed import BatchCommitted, Phases, Read
from trident.observe.time_series import BUCKETS, WINDOWS_S
from trident.operations import Count, Split
from trident.planner import make_plan
from trident.runtime.commit.committer import Committed
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.loop.operation_totals import OperationTotals, read_statistics

PHASES = Phases(0.001, 0.002, 0.003, 0.004, 0.005)
MS = 1_000_000
START = 5000.0


def batch(txid: int, at: float, rows: int, tries: int = 1) -> tuple[BatchCommitted, TaskOutput, Committed]:
    """A batch that took 3 ms in the source, 2 ms in the step, 1 ms in the combiner and 4 ms in the commit."""
    event = BatchCommitted(
        "t", "run", 0, txid, 0, tries, "in_process", Read({"s": rows}, {"s": None}), PHASES, at, 1.0, {}, {"count": rows},
        {}, 0, 0, 0, {},
    )  # fmt: skip
    figures = {"s": [rows, 6 * MS, 2 * rows, 2 * MS, rows, 1 * MS]}
    return event, TaskOutput(figures=figures), Committed(took_ns={"s/Split/Count@count": 4 * MS})


@pytest.mark.parametrize("seed", range(5))
def test_windows_have_what_was_committed_within_them(seed: int) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("line", 1, ["a b"])).each("line", Split(), "word")
    stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n", state_name="count")
    graph = topology.graph()
    plan = make_plan(graph)
    operations, edges = operations_of_plan(graph, plan), edges_of_plan(plan)
    randomly, now = random.Random(seed), START
    totals = OperationTotals(plan, [], now)
    happened: list[tuple[float, int, int]] = []
    for txid in range(1, 400):
        now += randomly.choice((0.0, 1.5, 40.0, 700.0, 20_000.0))
        rows, tries = randomly.randint(0, 9), randomly.choice((1, 1, 1, 3))
        for _ in range(tries - 1):
            totals.add_failure("s/Split", now)
        event, output, committed = batch(txid, now, rows, tries)
        totals.add_batch(event, output, committed, in_executors=False)
        happened.append((now, rows, tries))
        if randomly.random() < 0.3:
            check(totals, happened, now + randomly.choice((0.0, 5.0)), operations, edges)
    check(totals, happened, now, operations, edges)


def check(totals: OperationTotals, happened: list[tuple[float, int, int]], now: float, operations, edges) -> None:  # type: ignore[no-untyped-def]
    statistics = read_statistics(totals, operations, edges, now)
    for window_s in (*WINDOWS_S, 0):
        window = statistics.over(window_s)
        bucket = window_s / BUCKETS
        if window_s:
            assert window.seconds <= window_s + bucket
        within = [each for each in happened if each[0] >= now - window.seconds]
        rows, batches = sum(each[1] for each in within), len(within)
        figures = window.figures
        assert (figures.batches, figures.tuples) == (batches, rows)
        assert figures.retries == figures.failed == sum(each[2] - 1 for each in within)
        source, step, state = (each.figures for each in window.components.values())
        assert (source.emitted, step.executed, step.emitted, state.executed) == (rows, rows, 2 * rows, 2 * rows)
        assert (state.keys, state.commits) == (rows, batches)
        assert [each.busy_s for each in (source, step, state)] == pytest.approx(
            [0.003 * batches, 0.002 * batches, 0.005 * batches]
        )
        if rows:
            assert step.execute_latency_ms == pytest.approx(2 * batches / rows)
        if batches:
            assert figures.complete_latency_ms == pytest.approx(15)
            assert state.commit_latency_ms == pytest.approx(4)
    latest = statistics.over(600)
    busy = latest.components["s/Split"].figures
    assert busy.capacity == pytest.approx(busy.busy_s / max(latest.seconds, 1e-9), rel=1e-6)
