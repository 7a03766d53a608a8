"""Tasks that commit: where states may be committed by them, and what becomes of a second run of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark
import pytest
import redis

from spouts import FeederBatchSpout, FixedBatchSpout
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.harness.commands import until
from tests.harness.servers import Server
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import QUICK, start
from trident import Config, TridentCollector, TridentTopology, TridentTuple
from trident.errors import ConfigError
from trident.operations import BaseStateUpdater, Count, MapGet, ReducerAggregator, Split, Sum
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

LINES = [(f"the cow {number % 7} jumped over moon {number}",) for number in range(60)]


class Longest(ReducerAggregator[int]):
    output_type = "int"

    def init(self) -> int:
        return 0

    def reduce(self, current: int, tuple: TridentTuple) -> int:
        return max(current, len(tuple[0]))


@pytest.fixture
def url(redis_server: Server) -> str:
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
    return f"redis://127.0.0.1:{redis_server.port}/0"


def declare(url: str, name: str, placement: str) -> tuple[TridentTopology, dict[str, Any]]:
    """Count words; behind that, count counts; beside it a sum, a reducer, and lookups that are counted."""
    topology = TridentTopology(name)
    words = topology.new_stream("lines", FixedBatchSpout("line: string", 20, *LINES)).each("line", Split(), "word")
    state = RedisState.opaque(url)
    counts = words.group_by("word").persistent_aggregate(state, Count(), "n", state_name="counts").parallelism_hint(3)
    again = counts.new_values_stream().group_by("n").persistent_aggregate(state, Count(), "times", state_name="again")
    total = words.persistent_aggregate(state, Count(), "total", state_name="total").parallelism_hint(2)
    longest = words.group_by("word").persistent_aggregate(state, "word", Longest(), "long", state_name="longest")
    before = words.state_query(counts, "word", MapGet(), "n")
    seen = before.group_by("word").persistent_aggregate(state, "n", Sum(), "sum", state_name="seen")
    states = {"counts": counts, "again": again, "total": total, "longest": longest, "seen": seen}
    for each in states.values():
        each.placement(placement)
    return topology, states


def values_of(url: str, name: str, placement: str, pending: int, log: Path) -> dict[str, Any]:
    topology, states = declare(url, name, placement)
    config = Config.of(
        {**QUICK, "engine": "spark", "max_spout_pending": pending, "log_dir": str(log), "parallelism": 2}
    )
    with topology.start(config) as running:
        running.process_all_available()
        placements = {placed.where for placed in running.placements.values()}
        assert placements == {placement}
        assert all(f"committed by the {placement}" in running.explain() for placement in placements)
        found = {name: sorted(running.state(state).get_tuples()) for name, state in states.items() if name != "total"}
        return {**found, "total": running.state(states["total"]).get()}


@pytest.mark.long
@pytest.mark.parametrize("pending", [1, 3])
def test_executors_and_driver_come_to_the_same_values(spark: Any, url: str, tmp_path: Path, pending: int) -> None:
    by_driver = values_of(url, f"d{pending}", "driver", pending, tmp_path / "d")
    by_executors = values_of(url, f"e{pending}", "executors", pending, tmp_path / "e")
    assert by_executors == by_driver
    assert by_driver["total"] == 6 * len(LINES) + len(LINES)


def test_a_store_that_cannot_fence_is_refused_by_name(tmp_path: Path) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("word: string", 1, ["a"]))
    stream.group_by("word").persistent_aggregate(sqlite_state(str(tmp_path / "db")), Count(), "n", state_name="counts")
    with pytest.raises(
        ConfigError, match=r"state 'counts' cannot be committed in executors: its store .* cannot refuse"
    ):
        topology.start(engine="spark", state_placement="executors", log_dir=str(tmp_path / "log"))


def test_small_batches_of_engine_auto_are_committed_here_and_large_ones_by_executors(
    spark: Any, url: str, tmp_path: Path
) -> None:
    topology, feeder = TridentTopology("auto"), FeederBatchSpout("word: string")
    words = topology.new_stream("words", feeder)
    counts = words.group_by("word").persistent_aggregate(RedisState.opaque(url), Count(), "n").parallelism_hint(2)
    config = Config.of({**QUICK, "engine": "auto", "auto_bytes": 1000, "log_dir": str(tmp_path / "log")})
    with topology.start(config, state_placement="executors") as running:
        for size in (1, 3000, 2, 4000, 3):
            feeder.feed([[f"w{number % 7}"] for number in range(size)])
            running.process_all_available()
        assert [entry["engine"] for entry in running.recent_progress] == ["in_process", "spark"] * 2 + ["in_process"]
        assert sum(count for _, count in running.state(counts).get_tuples()) == 7006
        assert running.state(counts).multi_get(["w0", "w1"]) == [1004, 1003]


@pytest.mark.long
@pytest.mark.parametrize(("paused_at", "what"), [(1, "committed"), (3, "processed and committed")])
def test_a_commit_that_tasks_do_not_end_is_called_so_and_tried_again(
    spark: Any, url: str, redis_server: Server, tmp_path: Path, paused_at: int, what: str
) -> None:
    topology, words = TridentTopology("late"), [(f"w{number}",) for number in range(4)]
    state = RedisState.opaque(url, timeout_s=60)
    stream = topology.new_stream("words", FixedBatchSpout("word: string", 1, *words)).group_by("word")
    counts = stream.persistent_aggregate(state, Count(), "n")
    client = redis.Redis(port=redis_server.port)

    def pause(point: str, attempt: TransactionAttempt) -> None:
        if (point, attempt.txid) == ("recorded", paused_at):
            client.client_pause(600_000, all=False)  # writes wait, reads do not

    # Of a batch that is processed before the one before it is recorded, the commit is a job of its own.
    conf = {"message_timeout_s": 8, "max_batch_attempts": 50, "state_placement": "executors"}
    pending = 3 if paused_at == 1 else 1
    with (
        client,
        start(topology, "spark", pause, log_dir=str(tmp_path / "log"), max_spout_pending=pending, **conf) as running,
    ):
        try:
            said = f"not {what} within message_timeout_s=8 seconds"
            until(lambda: running.status["lastFailure"] == said, f"the batch fails: {said}")
        finally:
            client.client_unpause()
        running.process_all_available()
        assert running.state(counts).multi_get([word for (word,) in words]) == [1] * 4


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
