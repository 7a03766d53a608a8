"""Batches that share Spark jobs: each gets what it would have got alone, whatever becomes of the others."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import start, touch
from tests.runtime.engine.test_gathering import WAIT_S, wait_until
from trident import TridentCollector, TridentTopology, TridentTuple
from trident.operations import Count, Function
from trident.planner import make_plan
from trident.runtime.engine.pace import SharingLimits
from trident.runtime.engine.routing import with_partitions
from trident.runtime.engine.runners import InProcessRunner, Part
from trident.runtime.engine.shared_jobs import SharingRunner
from trident.runtime.engine.spark_runner import SparkRunner
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.worker import Program
from trident.runtime.spouts.batch_spouts import as_trident_spout
from trident.spout.interfaces import TransactionAttempt

ROWS, WIDTH = 6, 2


class Act(Function):
    """Does to a batch what a row says: nothing, an exception, the end of the worker, a call that hangs."""

    output_types = ("bigint",)

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        id_, what = tuple.values
        if what == "raise":
            raise ValueError(f"row {id_}")
        mark = Path(self.folder, f"{what}{id_}")
        while what == "die" and not list(Path(self.folder).glob("die once*")):
            time.sleep(0.001)  # else the job may end before the other worker has died
        if what == "die" or (what == "die once" and not mark.exists()):
            mark.touch()
            os._exit(9)
        while what == "hang" or (what == "wait" and not Path(self.folder, "go on").exists()):
            time.sleep(0.001)
        collector.emit([id_ % 7])


class Batches:
    """A program and the parts of batches; `levels` exchanges lie between the spout and the state."""

    def __init__(self, folder: Path, levels: int, acts: list[str]) -> None:
        rows = [
            (at * ROWS + row, act if row == ROWS // 2 else "nothing")
            for at, act in enumerate(acts)
            for row in range(ROWS)
        ]
        self.attempts = [TransactionAttempt(at + 1, 1 << 20) for at in range(len(acts))]
        topology, spout = (
            TridentTopology("t"),
            as_trident_spout(FixedBatchSpout("id: bigint, what: string", ROWS, *rows)),
        )
        stream = topology.new_stream("in", spout)
        for _ in range(levels):
            stream = stream.partition_by("id")
        stream.each(["id", "what"], Act(folder), "seven").group_by("seven").persistent_aggregate(
            MemoryMapState(), Count(), "n"
        )
        plan = make_plan(topology.graph())
        commits = {node.id for node in plan.commits}
        fragments = {entry: fragment for entry, fragment in plan.fragments.items() if entry not in commits}
        wide = with_partitions(plan.exchanges, WIDTH)
        self.program = Program("t", fragments, {"in": spout.get_emitter({})}, {}, {}, wide, plan.levels)
        coordinator, definition = spout.get_coordinator({}), None
        self.parts: list[list[Part]] = []
        for attempt in self.attempts:
            definition = coordinator.initialize_transaction(attempt.txid, definition)
            self.parts.append([("in", part, False) for part in coordinator.parts(attempt, definition, WIDTH)])


def said(output: TaskOutput) -> Any:
    """What a batch comes to: its partial counts together, or its failure."""
    if output.failure is not None:
        return output.failure.step, output.failure.cause
    counts: dict[int, int] = {}
    for tables in output.sinks.values():
        for table in tables:
            for key, count in zip(*(table.column(at).to_pylist() for at in range(2)), strict=True):
                counts[key] = counts.get(key, 0) + count
    return counts, output.rows


class Together:
    """Attempts that are processed by one runner at the same time: behind the first, which waits, all others gather."""

    def __init__(
        self, spark: Any, folder: Path, levels: int, acts: list[str], limits: SharingLimits | None = None
    ) -> None:
        self.folder, self.batches = folder, Batches(folder, levels, ["wait", *acts])
        self.runner = SharingRunner(SparkRunner(spark, self.batches.program, WIDTH, owned=False), 16, limits)
        self.runner.gathering.learn(0.0, 0)
        self.pool = ThreadPoolExecutor(len(acts) + 1)
        self.results: list[Future[TaskOutput]] = []
        for attempt, parts in zip(self.batches.attempts, self.batches.parts, strict=True):
            came = self.runner.gathering.came
            self.results.append(self.pool.submit(self.runner.process, attempt, parts))
            wait_until(lambda came=came: self.runner.gathering.came > came)  # type: ignore[misc]

    def go_on(self) -> None:
        (self.folder / "go on").touch()

    def expected(self) -> Iterator[Any]:
        """Process one batch after the other in this process."""
        alone = InProcessRunner(self.batches.program, WIDTH)
        for attempt, parts in zip(self.batches.attempts, self.batches.parts, strict=True):
            yield said(alone.process(attempt, parts))


@pytest.mark.sample(1)
@pytest.mark.parametrize("levels", [0, 1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_each_batch_of_a_shared_job_gets_what_it_gets_alone(spark: Any, tmp_path: Path, levels: int, seed: int) -> None:
    rng = random.Random(f"{seed} {levels}")
    acts = rng.choices(["nothing", "raise"], [3, 1], k=rng.randint(3, 9))
    together = Together(spark, tmp_path, levels, acts)
    together.go_on()
    results = [result.result(WAIT_S) for result in together.results]
    assert [said(result) for result in results] == list(together.expected())
    assert [result.failure is not None for result in results] == [False, *(act == "raise" for act in acts)]
    assert {result.shared for result in results[1:] if result.failure is None} <= {len(acts)}


@pytest.mark.sample(1)
@pytest.mark.parametrize("levels", [0, 1])
def test_a_batch_that_ends_its_worker_fails_alone(spark: Any, tmp_path: Path, levels: int) -> None:
    acts = ["nothing", "die once", "nothing", "raise", "die"]
    together = Together(spark, tmp_path, levels, acts)
    together.go_on()
    *results, died = together.results[1:]
    failure = died.result(WAIT_S).failure
    assert failure is not None
    assert "Python worker exited unexpectedly" in failure.cause
    outputs = [result.result(WAIT_S) for result in results]
    assert [output.failure is None for output in outputs] == [True, True, True, False]
    assert [said(output) for output in outputs] == list(islice(together.expected(), 1, 5))


def test_cancelled_batches_take_nothing_from_the_others(spark: Any, tmp_path: Path) -> None:
    together = Together(spark, tmp_path, 1, ["nothing"] * 6)
    for at in (2, 6):
        together.runner.cancel(together.batches.attempts[at])
    together.go_on()
    results = [result.result(WAIT_S) for result in together.results]
    fine, expected = (0, 1, 3, 4, 5), list(together.expected())
    assert [said(results[at]) for at in fine] == [expected[at] for at in fine]
    assert [results[at].shared for at in fine] == [1, 4, 4, 4, 4]


@pytest.mark.long
def test_a_batch_that_hangs_holds_up_no_other(spark: Any, tmp_path: Path) -> None:
    together = Together(spark, tmp_path, 0, ["nothing", "hang", "nothing"], SharingLimits(patience_s=0.5, patience=0.0))
    together.go_on()
    outputs = [together.results[at].result(WAIT_S) for at in (1, 3)]
    assert [sum(said(output)[0].values()) for output in outputs] == [ROWS, ROWS]
    assert not together.results[2].done()
    together.runner.cancel(together.batches.attempts[2])
    failure = together.results[2].result(WAIT_S).failure
    assert failure is not None
    assert "cancelled" in failure.cause


def test_a_topology_with_a_backlog_shares_jobs_and_every_failure_is_of_the_batch_that_failed(
    spark: Any, tmp_path: Path
) -> None:
    rng, batches = random.Random(4), 60
    failing = sorted(rng.sample(range(10, batches), 4))
    rows = [(number, "raise" if number in failing else "nothing") for number in range(batches)]
    topology = TridentTopology("t")
    counts = (
        topology.new_stream("in", FixedBatchSpout("id: bigint, what: string", 1, *rows))
        .each(["id", "what"], FailOnce(tmp_path), "seven: bigint")
        .group_by("seven")
        .persistent_aggregate(MemoryMapState(), Count(), "n")
    )
    with start(topology, "spark", progress_kept=batches) as running:
        running.process_all_available()
        assert running.state(counts).multi_get(list(range(7))) == [len(range(at, batches, 7)) for at in range(7)]
        failures, progress = running.status["failures"], running.recent_progress
    tried_again = {entry["batchId"]: entry["numAttempts"] for entry in progress if entry["numAttempts"] > 1}
    # An attempt may have failed unseen, because an earlier batch of the same job failed too.
    assert tried_again.keys() <= {number + 1 for number in failing}
    assert failures == sum(tries - 1 for tries in tried_again.values()) > 0
    assert max(entry["batchesInJob"] for entry in progress) > 3
    assert progress[0]["batchesInJob"] == 1


class FailOnce(Function):
    """Raises at the first call for a row that says so."""

    output_types = ("bigint",)

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        id_, what = tuple.values
        if what == "raise":
            folder = Path(self.folder, str(id_))
            folder.mkdir(exist_ok=True)
            if touch(folder) == 0:
                raise RuntimeError(f"row {id_}")
        collector.emit([id_ % 7])
