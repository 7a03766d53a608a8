"""A task that commits and that Spark runs again: its answer would end the first run, which may only be slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import TridentCollector, TridentTopology, TridentTuple
from trident.operations import BaseStateUpdater, Count
from trident.planner import make_plan
from trident.runtime.commit import committing
from trident.runtime.commit.committing import CommittingProgram, CopyOfTask, committing_program
from trident.runtime.engine.routing import RowFrame, route
from trident.runtime.engine.task_output import TaskOutput
from trident.runtime.engine.worker import Order, Program, run_entry
from trident.runtime.steps.failures import TupleErrors
from trident.runtime.steps.rows import StepRun
from trident.runtime.windows.window_rows import window_input
from trident.spout.interfaces import TransactionAttempt
from trident.state import Sentinel, Txid, Winners

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
        monkeypatch.setattr(
            "trident.state.backing_map._warnings_left", False
        )  # set by what believes that it is a worker
        program = Program("copies", plan.fragments, {}, {}, {}, plan.exchanges, plan.levels, speculates=speculates)
        made = committing_program(program, plan, ["counts"])
        (entry,) = made.commits
        order = Order(TransactionAttempt(1, 1 << 20))
        return run_entry(CommittingProgram(made), order, entry, 0, [])

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


# ---- a second run that has no rows ----------------------------------------------------------------------------------------

EPOCH = 1 << 20


def declared(kind: str) -> tuple[TridentTopology, dict[str, Any]]:
    """Return a topology with one commit of a kind, and the rows that its task gets for a text."""
    topology = TridentTopology("runs")
    rows = topology.new_stream("rows", FixedBatchSpout("word: string", 1, ["a"]))
    if kind == "an aggregate":
        rows.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n", state_name="kept")
        return topology, {"word": pa.string(), "n": pa.int64()}
    if kind == "partition_persist":
        rows.partition_persist(MemoryMapState(), ["word"], Once(), state_name="kept")
    else:
        rows.group_by("word").tumbling_window(2, MemoryMapState(), Count(), "n", state_name="kept")
    return topology, {"word": pa.string()}


class Once(BaseStateUpdater[Any]):
    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        state.multi_put([(row["word"],) for row in tuples], [1] * len(tuples))


@pytest.mark.parametrize("kind", ["an aggregate", "partition_persist", "a window"])
@pytest.mark.parametrize("first", ["rows", "no rows"])
def test_of_two_runs_of_a_task_one_commits_also_if_the_other_has_no_rows(kind: str, first: str) -> None:
    """The executor dies after the first run's commit, Spark repeats both stages, and a filter gives nothing this time."""
    topology, columns = declared(kind)
    plan = make_plan(topology.graph())
    made = committing_program(Program("runs", plan.fragments, {}, {}, {}, plan.exchanges, plan.levels), plan, ["kept"])
    (entry,) = made.commits

    def ran(words: Sequence[str], attempt: int, expected: Sentinel | None = None, batch: int = 1) -> TaskOutput:
        values = {"word": list(words), "n": [1] * len(words)}
        table = pa.table({name: pa.array(values[name], type_) for name, type_ in columns.items()})
        frames = list(pieces(table)) if words else []
        winners = Winners(((1, EPOCH + 1),)) if batch > 1 else Winners()
        txids = {"kept": [Txid(batch, attempt, winners, "log", expected)]}
        order = Order(TransactionAttempt(batch, attempt), txids=txids)
        program = CommittingProgram(made)  # another process
        return run_entry(program, order, entry, 0, frames)

    def pieces(table: pa.Table) -> Iterator[RowFrame]:
        sink = next(sink for sink in made.fragments["rows"].sinks if sink.target == entry)
        if sink.window is None:
            yield RowFrame(entry, 0, 0, ("rows", 0, 0), table)
            return
        run = StepRun(TransactionAttempt(1, EPOCH), TupleErrors(), lambda name: None)
        yield from route(sink, made.exchanges[entry], [window_input(sink.window, table, run)], ("rows", 0, 0), run)

    outcomes = [ran(words, EPOCH) for words in ((["a"], []) if first == "rows" else ([], ["a"]))]
    assert outcomes[0].failure is None
    assert outcomes[0].touched == {"kept": [0]}
    failure = outcomes[1].failure
    assert failure is not None
    assert failure.cause.startswith("SecondRunError")
    assert failure.retry
    # The next attempt has no rows either, and what the lost run wrote counts as never written.
    assert ran([], EPOCH + 1).touched == {"kept": [0]}
    after = ran(["a"], EPOCH + 1, Sentinel("log", 1, EPOCH + 1), batch=2)
    assert after.failure is None, after.failure
