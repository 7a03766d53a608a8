"""States that tasks of Spark commit: the same values as a plain dict, or as those that the driver commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext

import trident
from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.redis import RedisState
from tests.harness.commands import until
from tests.harness.topology_runs import QUICK
from tests.run.test_partitions_of_states import AddUp, totals
from trident import TridentCollector, TridentTopology, TridentTuple
from trident.errors import BatchFailedError, ConfigError, FencedError
from trident.operations import BaseStateUpdater, Count, MapGet, Sum
from trident.state import StateConf, StateFactory
from trident.state.txid import RETRY_BITS, Txid, epoch_of
from trident.testing.backend.schedules import Add

ROWS = [(f"user{number % 7}", number) for number in range(40)]
BATCH = 20
HINTS = (3,)  # of 1 to 8, which tests/run/test_partitions_of_states.py has; a total was lost with 3
FIELDS = "user: string, number: bigint"


@pytest.mark.sample(1)
@pytest.mark.parametrize("placement", ["driver", "executors"])
def test_states_of_several_partitions_are_as_a_plain_dict(
    spark: Any, redis_url: str, tmp_path: Path, placement: str
) -> None:
    topology, state, log = TridentTopology("sums"), RedisState.opaque(redis_url), str(tmp_path)
    rows = topology.new_stream("rows", FixedBatchSpout(FIELDS, BATCH, *ROWS))
    by_user, states = rows.partition_by("user"), dict[int, Any]()
    for hint in HINTS:
        sums = by_user.partition_persist(state, ["user", "number"], AddUp(), "user, total", state_name=f"sums{hint}")
        states[hint] = sums.parallelism_hint(hint)
        rows.persistent_aggregate(state, "number", Sum(), "n", state_name=f"total{hint}").parallelism_hint(hint)
    for hint in HINTS[:1]:
        # Behind a query, and behind another state, each user's rows are still in one partition.
        asked = by_user.state_query(states[hint], "user", MapGet(), "before: bigint").project("user", "before")
        again = asked.partition_persist(
            state, ["user", "before"], AddUpOr0(), "user, total", state_name=f"again{hint}"
        ).parallelism_hint(hint)
        again.new_values_stream().partition_persist(
            state, ["user", "total"], AddUpLast(), "user, total", state_name=f"last{hint}"
        ).parallelism_hint(2)
    before, wanted = totals(ROWS[:BATCH]), totals(ROWS)
    expected = {
        **{f"sums{hint}": wanted for hint in HINTS},
        **{f"total{hint}": sum(wanted.values()) for hint in HINTS},
        "again3": {user: before[user] * rows_of(user) for user in before},
        "last3": {user: before[user] * rows_of(user) for user in before},
    }
    with topology.start(**QUICK, engine="spark", state_placement=placement, log_dir=log, parallelism=2) as running:
        running.process_all_available()
        assert {placed.where for placed in running.placements.values()} == {placement}
        views = {name: running.state(name) for name in expected}
        found = {name: view.get() if "total" in name else dict(view.get_tuples()) for name, view in views.items()}
        assert found == expected
        frame = running.state("sums3").to_dataframe(spark)
        assert {row["key"]: row["value"] for row in frame.collect()} == wanted
    for hint in HINTS:
        with trident.open_state(topology, f"sums{hint}", log_dir=log) as reader:
            assert dict(zip(wanted, reader.multi_get(list(wanted)), strict=True)) == wanted
        with trident.open_state(topology, f"total{hint}", log_dir=log) as reader:
            assert reader.get() == sum(wanted.values())


def rows_of(user: str) -> int:
    """How many rows of a user are in the second batch."""
    return sum(each == user for each, _ in ROWS[BATCH:])


class AddUpOr0(AddUp):
    """Adds up what a query found."""

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        added: Counter[str] = Counter()
        for user, before in tuples:
            added[user] += before or 0
        keys = [(user,) for user in added]
        for (user,), total in zip(keys, state.multi_update(keys, [Add(n) for n in added.values()]), strict=True):
            collector.emit([user, total])


class AddUpLast(BaseStateUpdater[Any]):
    """Keeps the last total."""

    output_types = ("string", "bigint")

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        state.multi_put([(row["user"],) for row in tuples], [row["total"] for row in tuples])


@pytest.mark.long
def test_a_key_updated_by_two_tasks_ends_the_topology_uncommitted(spark: Any, redis_url: str, tmp_path: Path) -> None:
    def declared(by_user: bool, rows: int) -> tuple[TridentTopology, Any]:
        topology = TridentTopology("sums")
        stream = topology.new_stream("rows", FixedBatchSpout(FIELDS, BATCH, *ROWS[:rows]))
        spread = stream.partition_by("user") if by_user else stream.shuffle()
        state = RedisState.opaque(redis_url)
        sums = spread.partition_persist(state, ["user", "number"], AddUp(), "user, total", state_name="sums")
        return topology, sums.parallelism_hint(3)

    conf: dict[str, Any] = {
        **QUICK,
        "engine": "spark",
        "state_placement": "executors",
        "log_dir": str(tmp_path),
        "parallelism": 2,
    }
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


def test_tasks_do_not_commit_what_cannot_be_taken_back_and_must_be_compared_first(
    redis_url: str, tmp_path: Path
) -> None:
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
def test_a_paused_task_overwrites_no_key_that_came_to_another_partition(
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


# ---- a Delta table ---------------------------------------------------------------------------------------------------


def test_a_query_that_sees_its_batch_leaves_the_state_to_the_driver(spark: Any, tmp_path: Path) -> None:
    topology = TridentTopology("t")
    words = topology.new_stream("lines", FixedBatchSpout("word: string", 2, ("a",), ("b",), ("a",)))
    counts = words.group_by("word").persistent_aggregate(DeltaState.opaque(tmp_path / "n"), Count(), "n")
    words.state_query(counts, "word", MapGet(), "now", sees="this_batch")
    with pytest.raises(ConfigError, match="cannot be committed in executors: a query of it sees its own batch"):
        topology.start(**QUICK, engine="spark", log_dir=str(tmp_path / "log"), state_placement="executors")
