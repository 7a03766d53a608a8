"""Hints of 1 to 8: whatever partitions a state has, writers lose nothing and every reader asks where the writer wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryBackingMap, MemoryData, MemoryMapState
from tests.harness.crashing_stores import DictMap, FailsOnce
from tests.harness.topology_runs import QUICK, operation
from trident import Stream, TridentCollector, TridentTopology, TridentTuple
from trident.errors import BatchFailedError, KeyConflictError
from trident.operations import BaseQueryFunction, BaseStateUpdater, Count, SnapshotGet, Sum
from trident.plan import make_plan
from trident.state import StateSpec, StateType, map_state
from trident.testing.backend.schedules import Add

ROWS = [(f"user{number % 7}", number) for number in range(60)]
BATCH = 20
FIELDS = "user: string, number: bigint"
NUMBERS = count()

every_exact_kind = pytest.mark.parametrize(
    "kind", [StateType.OPAQUE, StateType.TRANSACTIONAL], ids=lambda kind: kind.value
)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class AddUp(BaseStateUpdater[Any]):
    """Adds the numbers, of which there may be none, of each user; emits the new totals."""

    output_types = ("string", "bigint")

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        added: Counter[str] = Counter()
        for user, number in tuples:
            added[user] += number or 0
        keys = [(user,) for user in added]
        for (user,), total in zip(keys, state.multi_update(keys, [Add(n) for n in added.values()]), strict=True):
            collector.emit([user, total])


def totals(rows: Sequence[tuple[str, int]] = ROWS) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for user, number in rows:
        sums[user] += number
    return dict(sums)


def declare(
    hint: int,
    spec: Any = None,
    before: Callable[[Stream], Stream] = lambda stream: stream.partition_by("user"),
    rows: Sequence[tuple[str, int]] = ROWS,
    batch: int = BATCH,
    name: str = "",
) -> tuple[TridentTopology, Any]:
    topology = TridentTopology(name or f"sums{next(NUMBERS)}")
    stream = before(topology.new_stream("rows", FixedBatchSpout(FIELDS, batch, *rows)))
    state = spec or MemoryMapState()
    sums = stream.partition_persist(state, ["user", "number"], AddUp(), "user, total", state_name="sums")
    return topology, sums.parallelism_hint(hint)


def ended(topology: TridentTopology, **conf: Any) -> Any:
    with topology.start(**QUICK, engine="in_process", **conf) as running:
        running.process_all_available()
    return running


def failed(topology: TridentTopology) -> str:
    with pytest.raises(BatchFailedError) as raised, topology.start(**QUICK, engine="in_process") as running:
        running.process_all_available()
    assert running.status["failures"] == 1  # another try would end in the same way
    return str(raised.value)


def with_a_query(stream: Stream) -> Stream:
    asked = stream.persistent_aggregate(MemoryMapState(), Count(), "n", state_name="asked")
    return stream.partition_by("user").state_query(asked, SnapshotGet(), "n")


def behind_a_state(stream: Stream) -> Stream:
    """Each batch gives the users of the batch, each with the number of rows that it has had so far."""
    counts = stream.group_by("user").persistent_aggregate(MemoryMapState(), Count(), "number", state_name="counts")
    return counts.parallelism_hint(3).new_values_stream()


def user_number(row: Any, partitions: int) -> int:
    return int(row["user"][-1]) % partitions


BEFORE: dict[str, Callable[[Stream], Stream]] = {
    "partition": lambda stream: stream.partition(user_number),
    "then a query": with_a_query,
    "identity_partition": lambda stream: stream.partition_by("user").identity_partition(),
    "one part of a spout": lambda stream: stream,
}
"""Beside those of tests/run/random_cases.py."""


@pytest.mark.slow
@every_exact_kind
@pytest.mark.parametrize("before", BEFORE)
def test_no_update_of_a_partition_persist_is_lost_with_1_to_8_partitions(before: str, kind: StateType) -> None:
    for hint in range(1, 9):
        topology, sums = declare(hint, MemoryMapState(kind=kind), BEFORE[before])
        view, wanted = ended(topology).state(sums), totals()
        assert dict(zip(wanted, view.multi_get(list(wanted)), strict=True)) == wanted, hint
        assert sorted(view.get_tuples()) == sorted(view.rows_at_once()) == sorted(wanted.items()), hint


def test_a_state_behind_another_has_the_rows_in_the_partitions_of_that_one() -> None:
    counted: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    for start in range(0, len(ROWS), BATCH):
        counted.update(user for user, _ in ROWS[start : start + BATCH])
        wanted.update({user: counted[user] for user in {user for user, _ in ROWS[start : start + BATCH]}})
    for hint in range(1, 9):
        topology, sums = declare(hint, before=behind_a_state)
        assert dict(ended(topology).state(sums).get_tuples()) == wanted, hint


@every_exact_kind
@pytest.mark.parametrize("before", ["shuffle", "broadcast"])
def test_a_key_updated_by_two_partitions_is_refused_before_any_write(before: str, kind: StateType) -> None:
    entries: dict[Any, Any] = {}
    spec = map_state(lambda conf, partition, count: DictMap(entries), kind)
    topology, _ = declare(4, spec, lambda stream: getattr(stream, before)(), name="sums")
    message = failed(topology)
    assert "KeyConflictError: partitions 0 and " in message
    assert "of state 'sums' both update the key ('user" in message
    assert "with partition_by and the fields that the key is made of" in message
    assert not [key for key in entries if str(key[0]).startswith("user")]
    # With the tuples of a key in one partition the same batch comes to what it would have come to before.
    declared, sums = declare(4, spec, name="sums")
    assert dict(zip(totals(), ended(declared).state(sums).multi_get(list(totals())), strict=True)) == totals()


# Puts `1`, `1.0` and True, which a dict takes for one key and a store does not.
Own = operation(
    "Own", BaseStateUpdater, None,
    update_state=lambda state, rows, collector: state.multi_put([(row["key"],) for row in rows], [row["key"] for row in rows]),
)  # fmt: skip


def test_long_keys_and_keys_that_only_python_takes_for_equal_are_told_apart() -> None:
    def declared(*keys: str) -> TridentTopology:
        topology = TridentTopology("keys")
        rows = topology.new_stream("rows", FixedBatchSpout("key: string", 10, *[(key,) for key in keys])).shuffle()
        rows.partition_persist(MemoryMapState(), ["key"], Own(), state_name="own").parallelism_hint(2)
        return topology

    long = "x" * 500
    view = ended(declared(long + "a", long + "b")).state("own")
    assert view.multi_get([long + "a", long + "b", long]) == [long + "a", long + "b", None]
    assert "both update a long key in batch 1" in failed(declared(long, long))


class RemoveOdd(BaseStateUpdater[Any]):
    """Removes the users of odd numbers, adds the even ones."""

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        state.multi_remove([(row["user"],) for row in tuples if row["number"] % 2])
        even = {row["user"]: row["number"] for row in tuples if not row["number"] % 2}
        state.multi_update([(user,) for user in even], [Add(number) for number in even.values()])


@every_exact_kind
@pytest.mark.parametrize("there", [False, True])
def test_a_key_removed_by_one_partition_and_written_by_another_is_refused(there: bool, kind: StateType) -> None:
    before = [("a", 2), ("b", 2)] if there else []
    topology = TridentTopology(f"sums{next(NUMBERS)}")
    stream = topology.new_stream("rows", FixedBatchSpout(FIELDS, 2, *before, ("a", 4), ("a", 1)))
    apart = stream.partition(lambda row, count: row["number"] % count)
    apart.partition_persist(MemoryMapState(kind=kind), FIELDS, RemoveOdd(), state_name="sums").parallelism_hint(2)
    assert "KeyConflictError: partitions 0 and 1 of state 'sums' both update the key ('a',)" in failed(topology)


def apart(kind: StateType = StateType.OPAQUE) -> tuple[list[MemoryData], StateSpec]:
    """Return a state whose partitions have nothing in common."""
    data = [MemoryData() for _ in range(8)]
    return data, map_state(lambda conf, partition, count: MemoryBackingMap[Any](data[partition]), kind)


@every_exact_kind
def test_readers_ask_all_partitions_of_a_store_that_keeps_them_apart(kind: StateType) -> None:
    for hint in range(1, 9):
        data, spec = apart(kind)
        topology, sums = declare(hint, spec, lambda stream: stream.partition(user_number))
        view, wanted = ended(topology).state(sums), totals()
        assert sum(bool(len(each)) for each in data) == min(hint, 7)
        assert dict(zip(wanted, view.multi_get(list(wanted)), strict=True)) == wanted, hint
        assert sorted(view.get_tuples()) == sorted(view.rows_at_once()) == sorted(wanted.items()), hint
        assert view.multi_get(["nobody"]) == [None]


def test_different_values_of_a_key_in_partitions_that_are_apart_are_no_answer() -> None:
    rows = [(f"user{(number * 3 + number // 7) % 7}", number) for number in range(63)]
    topology, sums = declare(4, apart()[1], lambda stream: stream.shuffle(), rows, batch=7)
    with pytest.raises(KeyConflictError, match=r"of state 'sums' have different values of \('user0',\)"):
        ended(topology).state(sums).multi_get(["user0"])


class Noted:
    """A user's own state, of which each partition knows its own rows only."""

    in_memory = True

    def __init__(self) -> None:
        self.rows: dict[int, list[str]] = {}
        self.partition = 0

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Noted:
        one = Noted()
        one.rows, one.partition = self.rows, partition_index
        return one

    def begin_commit(self, txid: int) -> None:
        pass

    def commit(self, txid: int) -> None:
        pass

    def note(self, users: Sequence[str]) -> None:
        self.rows.setdefault(self.partition, []).extend(users)

    def noted(self) -> int:
        return len(self.rows.get(self.partition, ()))


class SharedNoted(Noted):
    """One that says that each partition sees what all hold."""

    shares_keys = True

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Noted:
        return self


Note = operation(
    "Note", BaseStateUpdater, None,
    update_state=lambda state, rows, collector: state.note([row["user"] for row in rows]),
)  # fmt: skip
Noticed = operation(
    "Noticed", BaseQueryFunction,
    batch_retrieve=lambda state, args: [state.noted()] * len(args),
    execute=lambda row, result, collector: collector.emit([result]),
)  # fmt: skip


@pytest.mark.parametrize("hint", [2, 3])
def test_a_state_of_the_users_gets_the_rows_as_they_were_partitioned(hint: int) -> None:
    noted = Noted()
    topology = TridentTopology("notes")
    rows = topology.new_stream("rows", FixedBatchSpout(FIELDS, BATCH, *ROWS)).partition(user_number)
    rows.partition_persist(noted, ["user"], Note(), state_name="noted").parallelism_hint(hint)
    ended(topology)
    assert {at: set(users) for at, users in noted.rows.items()} == {
        at: {user for user, _ in ROWS if int(user[-1]) % hint == at} for at in range(hint)
    }


def test_a_query_of_a_users_partitions_needs_to_know_that_one_sees_all() -> None:
    def declared(state: Noted) -> tuple[TridentTopology, Any]:
        topology = TridentTopology("notes")
        rows = topology.new_stream("rows", FixedBatchSpout(FIELDS, BATCH, *ROWS))
        noted = rows.partition_by("user").partition_persist(state, ["user"], Note(), state_name="noted")
        asked = rows.state_query(noted.parallelism_hint(2), "user", Noticed(), "before")
        kept = asked.group_by("before").persistent_aggregate(MemoryMapState(), Count(), "n", state_name="kept")
        return topology, kept

    topology, _ = declared(Noted())
    with pytest.raises(BatchFailedError, match="state 'noted' has 2 partitions, .* shares_keys = True in Noted; else"):
        ended(topology, allow_inexact=True, max_batch_attempts=1)
    topology, kept = declared(SharedNoted())
    found = dict(ended(topology, allow_inexact=True).state(kept).get_tuples())
    assert found == {0: BATCH, BATCH: BATCH, 2 * BATCH: BATCH}


def test_a_partition_that_fails_fails_the_batch() -> None:
    data, failures = dict[Any, Any](), [1]
    topology = TridentTopology(f"sums{next(NUMBERS)}")
    rows = topology.new_stream("rows", FixedBatchSpout(FIELDS, len(ROWS), *ROWS)).group_by("user")
    spec = map_state(lambda *_: FailsOnce(data, failures), "opaque", num_partitions=4)
    sums = rows.persistent_aggregate(spec, "number", Sum(), "total")
    with topology.start(**QUICK, engine="in_process") as running:
        running.process_all_available()
        assert (running.status["failures"], failures) == (1, [])
        assert running.state(sums).multi_get([(user,) for user in totals()]) == list(totals().values())


def test_the_stream_has_as_many_partitions_as_the_state_that_keeps_them() -> None:
    topology, _ = declare(5, before=with_a_query)
    plan = make_plan(topology.graph())
    assert plan.exchanges["rows/partition_by"].partitions == 5
    assert [sink.kept for sink in plan.fragments["rows/partition_by"].sinks] == [5]  # to the query
    assert [sink.kept for sink in plan.fragments[plan.fragments["rows/partition_by"].sinks[0].target].sinks] == [5]
    topology, _ = declare(1)
    plan = make_plan(topology.graph())
    assert plan.exchanges["rows/partition_by"].partitions is None
