"""A task that commits and that Spark runs again: its answer would end the first run, which may only be slow."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pyspark
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.operations import Count
from trident.planner import make_plan
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.worker import Order, Program, run_entry
from trident.runtime.executors import committing
from trident.runtime.executors.committing import CommittingProgram, CopyOfTask, committing_program
from trident.spout.interfaces import TransactionAttempt

Run = Callable[[int, bool], TaskOutput]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return how long tasks have slept."""
    pauses: list[float] = []
    monkeypatch.setattr(committing, "sleep", pauses.append)
    return pauses


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the task of a partition, as the one that Spark gives this number."""
    topology = TridentTopology("copies")
    rows = topology.new_stream("rows", FixedBatchSpout("word: string", 1, ["a"]))
    rows.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n", state_name="counts")
    plan = make_plan(topology.graph())

    def run(attempt_number: int, speculates: bool) -> TaskOutput:
        context = SimpleNamespace(attemptNumber=lambda: attempt_number)
        monkeypatch.setattr(pyspark.TaskContext, "get", lambda: context)
        program = Program("copies", plan.fragments, {}, {}, {}, plan.exchanges, plan.levels, speculates=speculates)
        made = committing_program(program, plan, ["counts"])
        assert made is not None
        (entry,) = made.commits
        order = Order(TransactionAttempt(1, 1 << 20))
        return run_entry(CommittingProgram(made.program), order, entry, 0, [])

    return run


def test_without_speculation_a_second_run_answers_that_the_batch_is_tried_again(run: Run, pauses: list[float]) -> None:
    failure = run(1, False).failure
    assert failure is not None
    assert "Spark ran a task that commits again" in failure.cause
    assert pauses == []


def test_with_speculation_a_copy_ends_without_an_answer_after_pauses_that_grow(run: Run, pauses: list[float]) -> None:
    for number in (1, 2, 3):
        with pytest.raises(CopyOfTask, match=f"run {number + 1} of a task that commits"):
            run(number, True)
    assert pauses == [1.0, 4.0, 16.0]
