"""States that tasks of Spark commit: as a plain dict or the driver has them; and what their workers keep open."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark import TaskContext

import trident
from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.redis import RedisState
from tests.harness.commands import until
from tests.harness.crashing_stores import DictMap
from tests.harness.servers import Server
from tests.harness.topology_runs import QUICK, operation
from tests.run.test_partitions_of_states import AddUp, totals
from tests.windows import lives
from tests.windows.lives import BY_TIME, DELAYS, LEFT, RIGHT, SESSIONS, SLIDING, WITHIN
from tests.windows.test_timers import Ends
from trident import Config, TridentTopology
from trident.errors import BatchFailedError, ConfigError, FencedError
from trident.operations import BaseStateUpdater, Count, MapGet, Sum, TumblingCountWindow, TumblingDurationWindow, col
from trident.plan import make_plan
from trident.run.committing import MOST_KEPT, WorkerStates
from trident.state import StateConf, StateFactory, StateSpec, map_state
from trident.state.txid import RETRY_BITS, Txid, epoch_of
from trident.storekit import record_fence as guards

ROWS = [(f"user{number % 7}", number) for number in range(40)]
BATCH = 20
FIELDS = "user: string, number: bigint"


@pytest.mark.sample(1)
@pytest.mark.parametrize("placement", ["driver", "executors"])
def test_states_of_partitions_are_as_a_plain_dict(spark: Any, redis_url: str, tmp_path: Path, placement: str) -> None:
    topology, state, log = TridentTopology("sums"), RedisState.opaque(redis_url), str(tmp_path)
    rows = topology.new_stream("rows", FixedBatchSpout(FIELDS, BATCH, *ROWS))
    by_user, hint = (
        rows.partition_by("user"),
        3,
    )  # of 1 to 8, which `test_partitions_of_states.py` has: one was lost with 3
    sums = by_user.partition_persist(state, ["user", "number"], AddUp(), "user, total", state_name="sums")
    sums = sums.parallelism_hint(hint)
    rows.persistent_aggregate(state, "number", Sum(), "n", state_name="total").parallelism_hint(hint)
    # Behind a query, and behind another state, each user's rows are still in one partition.
    asked = by_user.state_query(sums, "user", MapGet(), "before: bigint").project("user", "before")
    again = asked.partition_persist(state, ["user", "before"], AddUp(), "user, total", state_name="again")
    new = again.parallelism_hint(hint).new_values_stream()
    new.partition_persist(state, ["user", "total"], AddUpLast(), state_name="last").parallelism_hint(2)
    before, wanted = totals(ROWS[:BATCH]), totals(ROWS)
    expected = {
        "sums": wanted,
        "total": sum(wanted.values()),
        "again": {user: before[user] * rows_of(user) for user in before},
        "last": {user: before[user] * rows_of(user) for user in before},
    }
    with topology.start(**QUICK, engine="spark", state_placement=placement, log_dir=log, parallelism=2) as running:
        running.process_all_available()
        assert {placed.where for placed in running.placements.values()} == {placement}
        views = {name: running.state(name) for name in expected}
        found = {name: view.get() if "total" in name else dict(view.get_tuples()) for name, view in views.items()}
        assert found == expected
        frame = running.state("sums").to_dataframe(spark)
        assert {row["key"]: row["value"] for row in frame.collect()} == wanted
    with trident.open_state(topology, "sums", log_dir=log) as reader:
        assert dict(zip(wanted, reader.multi_get(list(wanted)), strict=True)) == wanted
    with trident.open_state(topology, "total", log_dir=log) as reader:
        assert reader.get() == sum(wanted.values())


def rows_of(user: str) -> int:
    """How many rows of a user are in the second batch."""
    return sum(each == user for each, _ in ROWS[BATCH:])


AddUpLast = operation(  # keeps the last total
    "AddUpLast", BaseStateUpdater, None,
    update_state=lambda state, rows, out: state.multi_put([(row["user"],) for row in rows], [row["total"] for row in rows]),
)  # fmt: skip


@pytest.mark.long
def test_a_key_updated_by_two_tasks_ends_the_topology_uncommitted(spark: Any, redis_url: str, tmp_path: Path) -> None:
    def declared(by_user: bool, rows: int) -> tuple[TridentTopology, Any]:
        topology = TridentTopology("sums")
        stream = topology.new_stream("rows", FixedBatchSpout(FIELDS, BATCH, *ROWS[:rows]))
        spread = stream.partition_by("user") if by_user else stream.shuffle()
        state = RedisState.opaque(redis_url)
        sums = spread.partition_persist(state, ["user", "number"], AddUp(), "user, total", state_name="sums")
        return topology, sums.parallelism_hint(3)

    conf: dict[str, Any] = {**QUICK, "engine": "spark", "state_placement": "executors", "parallelism": 2}
    conf["log_dir"] = str(tmp_path)
    topology, _ = declared(by_user=True, rows=BATCH)
    with topology.start(**conf) as running:
        running.process_all_available()
    topology, _ = declared(by_user=False, rows=2 * BATCH)
    refused = pytest.raises(BatchFailedError, match=r"KeyConflictError: .* of state 'sums' both update the key \('user")
    with refused, topology.start(**conf) as running:
        running.process_all_available()
    topology, sums = declared(by_user=True, rows=2 * BATCH)
    with trident.open_state(topology, "sums", log_dir=str(tmp_path)) as reader:
        assert dict(reader.get_tuples()) == totals(ROWS[:BATCH])
    with topology.start(**conf) as running:
        running.process_all_available()
        assert dict(running.state(sums).get_tuples()) == totals(ROWS)


def test_tasks_do_not_commit_what_must_be_compared_first(redis_url: str, tmp_path: Path) -> None:
    for hint, where in ((1, "executors"), (2, "driver")):
        topology = TridentTopology(f"sums{hint}")
        rows = topology.new_stream("rows", FixedBatchSpout(FIELDS, BATCH, *ROWS)).partition_by("user")
        state = RedisState.transactional(redis_url)
        sums = rows.partition_persist(state, ["user", "number"], AddUp(), "user, total", state_name="sums")
        sums.parallelism_hint(hint)
        text = topology.explain({"sums": "executors"})
        assert text
        if where == "driver":
            with pytest.raises(
                ConfigError, match="no two of them write one must be known before a state that is transactional"
            ):
                topology.start(state_placement="executors", log_dir=str(tmp_path / str(hint)))


@dataclass(frozen=True)
class Schedule:
    """Of the tasks of batch 2: the first one that has `ann` waits before it writes, until the next attempt has written her.

    It is a grouping (`ann` goes to partition 1 first, then to partition 0), a factory of states, and holds the files by which
    processes see how far the others are.
    """

    folder: Path
    factory: StateFactory | None = None

    def choose(self, row: Sequence[Any], partitions: int) -> int:
        return 1 if row[0] == "bob" or (row[1] == 2 and not self.has("waits")) else 0

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> Any:
        assert self.factory is not None
        state = self.factory.make_state(conf, partition_index, num_partitions)
        if TaskContext.get() is not None:
            state.begin_commit = partial(self.begin, state.begin_commit, partition_index)
            state.commit = partial(self.commit, state.commit, partition_index)
        return state

    def begin(self, begin_commit: Callable[[Txid], None], partition: int, txid: Txid) -> None:
        if partition == 1 and txid == 2 and self.has("waits"):
            until(lambda: self.has("woken"), "the first attempt's task has written, or was refused")
        begin_commit(txid)

    def commit(self, commit: Callable[[Txid], None], partition: int, txid: Txid) -> None:
        if partition == 1 and txid == 2 and not self.has("waits"):
            self.note("waits")
            until(lambda: self.has("written"), "the next attempt has written")
            try:
                commit(txid)
            except FencedError:
                self.note("refused")
            finally:
                self.note("woken")
            return
        commit(txid)
        if partition == 0 and self.has("waits") and txid.attempt > epoch_of(txid.attempt) << RETRY_BITS:
            self.note("written")

    def has(self, what: str) -> bool:
        return (self.folder / what).exists()

    def note(self, what: str) -> None:
        (self.folder / what).touch()


@pytest.mark.long
@pytest.mark.parametrize("pending", [1, 2], ids=["one job", "two jobs"])
def test_a_paused_task_overwrites_no_key_of_another_partition(
    spark: Any, redis_url: str, tmp_path: Path, pending: int
) -> None:
    conf = spark.sparkContext._jsc.sc().conf()  # the live one, not a copy
    conf.set("spark.python.task.killTimeout", "300s")  # a task that is stopped is not ended
    topology, schedule = TridentTopology("sums"), Schedule(tmp_path, RedisState.opaque(redis_url).factory)
    rows = topology.new_stream("rows", FixedBatchSpout(FIELDS, 2, ("ann", 1), ("bob", 1), ("ann", 2), ("bob", 2)))
    spread = rows.partition(schedule.choose)
    sums = spread.partition_persist(schedule, ["user", "number"], AddUp(), "user, total", state_name="sums")
    sums.parallelism_hint(2)
    try:
        with topology.start(
            **QUICK, engine="spark", state_placement="executors", log_dir=str(tmp_path / "log"), message_timeout_s=4,
            max_spout_pending=pending,
        ) as running:  # fmt: skip
            running.process_all_available()
            assert dict(running.state("sums").get_tuples()) == {"ann": 3, "bob": 3}
    finally:
        conf.remove("spark.python.task.killTimeout")
    assert schedule.has("refused")


def test_a_query_that_sees_its_batch_leaves_the_state_to_the_driver(spark: Any, tmp_path: Path) -> None:
    topology = TridentTopology("t")
    words = topology.new_stream("lines", FixedBatchSpout("word: string", 2, ("a",), ("b",), ("a",)))
    counts = words.group_by("word").persistent_aggregate(DeltaState.opaque(tmp_path / "n"), Count(), "n")
    words.state_query(counts, "word", MapGet(), "now", sees="this_batch")
    with pytest.raises(ConfigError, match="cannot be committed in executors: a query of it sees its own batch"):
        topology.start(**QUICK, engine="spark", log_dir=str(tmp_path / "log"), state_placement="executors")


TIMED = "key: string, n: bigint, at: bigint"
DAY = TumblingDurationWindow.of(timedelta(days=1), zone="Europe/Berlin").by_event_time("at", delay=timedelta(hours=2))


def declare(name: str, url: str, partitions: int) -> tuple[TridentTopology, list[Any]]:
    topology, state = TridentTopology(name), RedisState.opaque(url)
    rows = topology.new_stream("s", FixedBatchSpout(TIMED, 30, *lives.ROWS))
    by_time = rows.group_by("key").window(BY_TIME, state, Count(), "n", state_name="timed").parallelism_hint(partitions)
    again = rows.group_by("key").window(SLIDING, state, "n", Sum(), "sum", bounds="start, end", state_name="sliding")
    whole = rows.tumbling_window(7, state, "n", Sum(), "sum", bounds="start, end", state_name="whole")
    counted = rows.group_by("key").window(TumblingCountWindow.of(4), state, "n", Sum(), "sum", state_name="counted")
    sessions, late = rows.group_by("key").window_with_late_rows(
        SESSIONS, state, Count(), "m", bounds="first, last", state_name="sessions", parallelism=partitions
    )
    ends = rows.group_by("key").process(state, Ends(), "end: bigint, m: int", event_time="at", state_name="ends")
    hours = rows.select(
        "key", "n", at=col("n") * 3_600_000 + 1_729_900_000_000
    )  # about 2024-10-27, in Berlin a longer day
    by_day = hours.group_by("key").window(DAY, state, "n", Sum(), "sum", bounds="start, end", state_name="days")
    left, right = (
        topology.new_stream(side, FixedBatchSpout(TIMED, 20, *given))
        for side, given in (("left", LEFT), ("right", RIGHT))
    )
    joined = topology.join_within(
        left, "key", right, "key", "key, l, l_at, r, r_at", times="at", within=WITHIN, delay=DELAYS, state=state,
        state_name="joined",
    ).parallelism_hint(partitions)  # fmt: skip
    return topology, [
        sessions.group_by("key", "first", "last").persistent_aggregate(
            state, "m", Sum(), "total", state_name="of_sessions"
        ),
        late.group_by("key").persistent_aggregate(state, "n", Sum(), "total", state_name="of_late"),
        ends.parallelism_hint(partitions)
        .group_by("key", "end")
        .persistent_aggregate(state, "m", Sum(), "total", state_name="of_ends"),
        by_time.group_by("key").persistent_aggregate(state, "n", Sum(), "total", state_name="of_timed"),
        again.parallelism_hint(partitions)
        .group_by("key", "end")
        .persistent_aggregate(state, "sum", Sum(), "total", state_name="of_sliding"),
        whole.group_by("start").persistent_aggregate(state, "sum", Sum(), "total", state_name="of_whole"),
        counted.parallelism_hint(partitions)
        .group_by("key")
        .persistent_aggregate(state, "sum", Sum(), "total", state_name="of_counted"),
        by_day.parallelism_hint(partitions)
        .group_by("key", "start")
        .persistent_aggregate(state, "sum", Sum(), "total", state_name="of_days"),
        joined.group_by("l", "r").persistent_aggregate(state, Count(), "times", state_name="of_joined"),
    ]


def values_of(name: str, url: str, partitions: int, log: Path, **conf: Any) -> list[Any]:
    topology, states = declare(name, url, partitions)
    config = Config.of({**QUICK, "engine": "spark", "log_dir": str(log), "parallelism": 2, **conf})
    with topology.start(config) as running:
        running.process_all_available()
        assert {placed.where for placed in running.placements.values()} == {conf["state_placement"]}
        return [sorted(running.state(state).get_tuples()) for state in states]


@pytest.mark.long
@pytest.mark.parametrize(("pending", "partitions"), [(1, 1), (1, 2), (3, 2)])
def test_executors_fire_as_drivers(
    spark: Any, redis_server: Server, tmp_path: Path, pending: int, partitions: int
) -> None:
    url = f"redis://127.0.0.1:{redis_server.port}/0"
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
    by_driver = values_of("d", url, 1, tmp_path / "d", max_spout_pending=1, state_placement="driver")
    assert all(by_driver)
    conf = {"max_spout_pending": pending, "state_placement": "executors"}
    assert values_of("e", url, partitions, tmp_path / "e", **conf) == by_driver


def states_of(spec: StateSpec) -> WorkerStates:
    topology = TridentTopology("workers")
    lines = topology.new_stream("lines", FixedBatchSpout("word: string", 1, ["a"]))
    lines.group_by("word").persistent_aggregate(spec, Count(), "n", state_name="counts")
    return WorkerStates("workers", make_plan(topology.graph()).states, {})


class Closing(DictMap):
    """Notes that it was closed."""

    closed: list[int]

    def close(self) -> None:
        self.closed.append(self.partition)

    def __init__(self, partition: int, closed: list[int]) -> None:
        super().__init__()
        self.partition, self.closed = partition, closed


@pytest.fixture
def closed() -> list[int]:
    return []


@pytest.fixture
def spec(closed: list[int]) -> StateSpec:
    return map_state(lambda conf, partition, count: Closing(partition, closed), "opaque")


def test_only_the_partitions_used_last_stay_open(spec: StateSpec, closed: list[int]) -> None:
    states = states_of(spec)
    opened = [states.partition_state("counts", partition, 99) for partition in range(MOST_KEPT + 3)]
    assert states.partition_state("counts", 0, 99) is opened[0]
    assert closed == []  # a task may be using all of them
    states.tidy()
    assert closed == [1, 2, 3]
    assert states.partition_state("counts", 0, 99) is opened[0]
    assert states.partition_state("counts", 1, 99) is not opened[1]
    states.close()
    assert sorted(closed[3:]) == [0, 1, *range(4, MOST_KEPT + 3)]


def test_what_no_task_uses_is_closed(spec: StateSpec, closed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("trident.run.committing.monotonic", lambda: now[0])
    states = states_of(spec)
    for partition in range(3):
        now[0] += 25
        states.partition_state("counts", partition, 3)
    now[0] += 5
    states.tidy()
    assert closed == []
    now[0] += 35  # partition 0 was used 90 seconds ago, 1 65 seconds ago, 2 40 seconds ago
    states.tidy()
    assert closed == [0, 1]


def test_a_worker_repeats_no_warning(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("stores")
    monkeypatch.setattr(guards, "_warned", set())
    with caplog.at_level(logging.WARNING):
        guards.warn_once(logger, "Redis a:1", "there is no persistence")
        monkeypatch.setattr("trident.state.backing_map._warnings_left", True)
        guards.warn_once(logger, "Redis b:1", "there is no persistence")
    assert [record.getMessage() for record in caplog.records] == ["Redis a:1: there is no persistence"]
