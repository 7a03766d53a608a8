"""Tasks that commit: where states may be committed by them, what becomes of their outputs; both placements agree."""

import json
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
from tests.harness.topology_runs import QUICK, operation, start
from trident import Config, TridentCollector, TridentTopology, TridentTuple
from trident.engine.fragment_runs import TaskOutput
from trident.engine.routing import RowFrame, route
from trident.engine.worker import Order, Program, run_entry
from trident.errors import ConfigError
from trident.operations import BaseQueryFunction, BaseStateUpdater, Count, Filter, MapGet, ReducerAggregator
from trident.plan import make_plan
from trident.run import committing
from trident.run.committing import CommittingProgram, CopyOfTask, committing_program
from trident.spout.interfaces import TransactionAttempt
from trident.state import Sentinel, Txid, Winners
from trident.steps.failures import TupleErrors
from trident.steps.rows import StepRun
from trident.testing.backend.schedules import Add
from trident.windows.window_rows import window_input

Most = operation("Most", ReducerAggregator, init=lambda: 0, reduce=lambda current, row: max(current, row[0]))


def test_a_store_that_cannot_fence_is_refused_by_name(tmp_path: Path) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", FixedBatchSpout("word: string", 1, ["a"]))
    stream.group_by("word").persistent_aggregate(sqlite_state(str(tmp_path / "db")), Count(), "n", state_name="counts")
    with pytest.raises(
        ConfigError, match=r"state 'counts' cannot be committed in executors: its store .* cannot refuse"
    ):
        topology.start(engine="spark", state_placement="executors", log_dir=str(tmp_path / "log"))


def test_auto_commits_small_batches_here_and_large_ones_in_executors(
    spark: Any, redis_url: str, tmp_path: Path
) -> None:
    topology, feeder = TridentTopology("auto"), FeederBatchSpout("word: string")
    words = topology.new_stream("words", feeder)
    counts = words.group_by("word").persistent_aggregate(RedisState.opaque(redis_url), Count(), "n").parallelism_hint(2)
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
    spark: Any, redis_url: str, redis_server: Server, tmp_path: Path, paused_at: int, what: str
) -> None:
    topology, words = TridentTopology("late"), [(f"w{number}",) for number in range(4)]
    state = RedisState.opaque(redis_url, timeout_s=60)
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


Once = operation(
    "Once", BaseStateUpdater, None,
    update_state=lambda state, rows, out: state.multi_put([(row["word"],) for row in rows], [1] * len(rows)),
)  # fmt: skip


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


TTL_S = 90_000
BATCH = 15
ROWS: list[tuple[Any, ...]] = [
    (None if number % 5 == 0 else f"ü{number % 3}", b"\x00\xff" * (number % 2), number) for number in range(30)
]


class KeepOrRemove(BaseStateUpdater[Any]):
    """Adds up the values of each pair of keys; one that is divisible by seven removes its key. Emits what it removed."""

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        added: dict[tuple[Any, ...], int] = {}
        removed: set[tuple[Any, ...]] = set()
        for name, data, number in tuples:
            if number % 7 == 0:
                removed.add((name, data))
            else:
                added[name, data] = added.get((name, data), 0) + number
        state.multi_update(list(added), [Add(number) for number in added.values()])
        state.multi_remove(sorted(removed, key=str))
        for key in sorted(removed, key=str):
            collector.emit([*key])


Doubled = operation(  # reads in bulk, and emits twice what it found; nothing where there is nothing
    "Doubled", BaseQueryFunction,
    batch_retrieve=lambda state, args: state.multi_get([tuple(row.values) for row in args]),
    execute=lambda row, result, collector: None if result is None else collector.emit([result * 2]),
)  # fmt: skip


def refuses(n: int) -> int:
    """Raise at the count 3 of a key, behind a state."""
    if n == 3:
        raise ValueError("three")
    return n


class Counting(Filter):
    """Counts the tuples that it sees."""

    def prepare(self, conf: Any, context: Any) -> None:
        self.seen = context.register_counter("seen")

    def is_keep(self, tuple: TridentTuple) -> bool:
        self.seen.incr()
        return True


def declare_all(redis_url: str, name: str, placement: str) -> tuple[TridentTopology, dict[str, Any]]:
    topology = TridentTopology(name)
    spout = FixedBatchSpout("name: string, data: binary, number: bigint", BATCH, *ROWS)
    rows = topology.new_stream("rows", spout)
    state = RedisState.opaque(redis_url, ttl_s=TTL_S)
    pairs = rows.group_by("name", "data")
    counts = pairs.persistent_aggregate(state, Count(), "n", state_name="counts").parallelism_hint(2)
    sums = rows.partition_by("name", "data").partition_persist(
        RedisState.opaque(redis_url),
        ["name", "data", "number"],
        KeepOrRemove(),
        "a: string, b: binary",
        state_name="sums",
    )
    removed = sums.new_values_stream().group_by("a").persistent_aggregate(state, Count(), "r", state_name="removed")
    behind = counts.new_values_stream().each("n", Counting()).each("n", refuses, "kept: bigint")
    kept = behind.group_by("kept").persistent_aggregate(state, Count(), "k", state_name="kept")
    found = rows.state_query(counts, ["name", "data"], Doubled(), "twice").group_by("twice")
    twice = found.persistent_aggregate(RedisState.transactional(redis_url), Count(), "t", state_name="twice")
    now = counts.new_values_stream().state_query(counts, ["name", "data"], MapGet(), "now", sees="this_batch")
    same = now.group_by("now").persistent_aggregate(state, Count(), "s", state_name="same")
    most = rows.group_by("name").persistent_aggregate(state, "number", Most(), "most", state_name="most")
    total = rows.persistent_aggregate(state, Count(), "total", state_name="total").parallelism_hint(2)
    states = {"counts": counts, "sums": sums, "removed": removed, "kept": kept, "twice": twice, "same": same}
    states |= {"most": most, "total": total}
    for each in states.values():
        each.placement(placement)
    return topology, states


def outcome(redis_url: str, placement: str, pending: int, folder: Path) -> dict[str, Any]:
    topology, states = declare_all(redis_url, placement, placement)
    letters = folder / "letters"
    with topology.start(
        **QUICK, engine="spark", log_dir=str(folder / "log"), parallelism=1, max_batch_attempts=2,
        on_poison="dead_letter", dead_letter_dir=letters, max_spout_pending=pending,
    ) as running:  # fmt: skip
        running.process_all_available()
        assert {placed.where for placed in running.placements.values()} == {placement}
        assert f"committed by the {placement}" in running.explain()
        found: dict[str, Any] = {
            name: sorted(running.state(state).get_tuples(), key=str)
            for name, state in states.items()
            if name != "total"
        }
        found["total"] = running.state(states["total"]).get()
        found["metrics"] = running.status["metrics"]
        found["left out"] = running.log_state.totals["dead_letters"]
    read = [json.loads(line) for file in letters.iterdir() for line in file.read_text("utf-8").splitlines()]
    found["letters"] = sorted((each["txid"], each["step"], each["tuple"], each["error"]) for each in read)
    return found


@pytest.mark.long
@pytest.mark.parametrize("pending", [1, 3])
def test_states_do_the_same_in_both_placements(
    pending: int, spark: Any, redis_url: str, redis_server: Server, tmp_path: Path
) -> None:
    driver = outcome(redis_url, "driver", pending, tmp_path / "driver")
    executors = outcome(redis_url, "executors", pending, tmp_path / "executors")
    assert executors == driver
    with redis.Redis(port=redis_server.port) as client:
        ttls = {client.ttl(name) for name in client.scan_iter("executors/counts:[\x01-\x1f]*")}
    assert ttls
    assert all(TTL_S - 600 < ttl <= TTL_S for ttl in ttls)
    assert (None, b"", 3) in driver["counts"]
    assert driver["total"] == len(ROWS)
    assert driver["letters"]
    assert driver["left out"] == len(driver["letters"])
    assert driver["metrics"]["Counting/seen"] == sum(n for _, n in driver["same"])
    removed = {(name, data) for name, data, number in ROWS if number % 7 == 0}
    assert removed
    assert sum(n for _, n in driver["removed"]) >= len(removed)
