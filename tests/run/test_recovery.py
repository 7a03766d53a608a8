"""Log and store that do not belong together are found at the start, and each way out leads on (R8)."""

import collections
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spouts import FeederBatchSpout, FixedBatchSpout
from states.memory import MemoryBackingMap, MemoryData
from tests.harness.crashing_stores import DictMap
from tests.harness.topology_runs import Keep, OneSpout, RowsSpout, RowsState, run_all, start
from tests.replay.set_back import Killed
from trident import BatchFailedError, Fields, TridentTopology
from trident.errors import FencedError, ReplayMismatchError, StateMismatchError, StatePlaceError
from trident.log.file_log import FileLog
from trident.log.records import AdoptRecord, LayoutRecord, Record, StartRecord
from trident.operations import BaseStateUpdater, Count
from trident.run import recovery
from trident.run.batch_spouts import BatchSpoutExecutor
from trident.run.running import RunningTopology
from trident.spout.interfaces import SpoutType, TransactionAttempt
from trident.state import SENTINEL_KEY, OpaqueMap, OpaqueValue, Sentinel, StateSpec, map_state
from trident.testing.backend.schedules import Add

Store = dict[Any, Any]
BeforePut = Callable[[Sequence[OpaqueValue]], None]


class EmptyableMap(DictMap):
    def reset(self) -> None:
        self.entries.clear()


@contextmanager
def dying_at(record: type[Record], after: int = 0) -> Iterator[None]:
    """Let the driver die in place of writing a record of that kind, after some of them."""
    written, left = FileLog.append, [after]

    def append(self: FileLog, one: Record, durable: bool = True) -> None:
        if isinstance(one, record):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
        written(self, one, durable)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileLog, "append", append)
        with pytest.raises(Killed):
            yield


class World:
    """One store, one source that does not repeat itself, one log; topologies come and go."""

    def __init__(self, log: Path) -> None:
        self.log, self.feeder = log, FeederBatchSpout("k: string")
        self.store: dict[int, Store] = {partition: {} for partition in range(4)}
        self.shared = False

    def topology(self, partitions: int = 2) -> TridentTopology:
        topology = TridentTopology("t")

        def backing(conf: Any, partition: int, count: int) -> EmptyableMap:
            return EmptyableMap(self.store[0 if self.shared else partition])

        stream = topology.new_stream("s", self.feeder).group_by("k")
        stream.persistent_aggregate(map_state(backing), Count(), "count").parallelism_hint(partitions)
        return topology

    def start(self, partitions: int = 2, engine: str = "in_process", **conf: Any) -> RunningTopology:
        return start(self.topology(partitions), engine, log_dir=self.log, **conf)

    def run(self, *words: str, partitions: int = 2, **conf: Any) -> dict[str, int | None]:
        with self.start(partitions, **conf) as running:
            self.feeder.feed([[word] for word in words])
            return self.read(running)

    @staticmethod
    def read(running: RunningTopology) -> dict[str, int | None]:
        return dict(zip("abcd", running.state("count").multi_get(list("abcd")), strict=True))

    def lose_store(self) -> None:
        for entries in self.store.values():
            entries.clear()

    def lose_log(self) -> None:
        shutil.rmtree(self.log)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "log")


LOST = {
    "the store was emptied": (
        r"(?s)^the store of state 'count' was emptied, and the log has written to it up to batch 1 of .*"
        r"partition 0 of state 'count': the log expects batch 1 attempt 1048576 of inc.*the store has no commit at all"
    ),
    "the log was lost": "the log expects no commit of incarnation .*, the store has batch 1 attempt",
    "the store is another one's": "the log expects batch 1 .* the store has batch 1 attempt .* of incarnation",
}


@pytest.mark.parametrize("what", LOST)
def test_a_store_and_a_log_that_do_not_belong_together_are_found(world: World, what: str, tmp_path: Path) -> None:
    world.run("a", "b", "c", "d")
    if what == "the store was emptied":
        world.lose_store()
    elif what == "the log was lost":
        world.lose_log()
    else:
        other = World(tmp_path / "other")
        other.run("a", "b", "c", "d")
        world.store = other.store
    before = {partition: dict(entries) for partition, entries in world.store.items()}
    with pytest.raises(StateMismatchError, match=LOST[what]):
        world.start()
    assert world.store == before


@pytest.mark.parametrize("loss", ["lose_store", "lose_log"])
def test_keeping_the_totals_takes_the_store_as_it_is(loss: str, engine: str, world: World) -> None:
    world.run("a", "b", "a")
    world.run("a", "c")
    getattr(world, loss)()
    before = {"a": 3, "b": 1, "c": 1, "d": None} if loss == "lose_log" else dict.fromkeys("abcd")
    policy = "keep_totals" if loss == "lose_log" else "keep_totals_even_if_wrong"
    with world.start(engine=engine, state_recovery=policy) as running:
        assert running.txid == 2
        assert world.read(running) == before
        world.feeder.feed([["a"], ["d"]])
        assert world.read(running) == {**before, "a": (before["a"] or 0) + 1, "d": 1}
    assert world.run("a")["a"] == (before["a"] or 0) + 2  # without keeping anything: they belong together again


def test_discarding_totals_empties_the_state(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world.run("a", "b", "a")
    other = World(tmp_path / "other")
    other.run("c", "c", "d")
    world.store = other.store
    assert world.run("a", state_recovery="discard_totals") == {"a": 1, "b": None, "c": None, "d": None}
    assert "state count: emptied; its totals count the batches from 2 on" in caplog.text
    assert world.run("a") == {"a": 2, "b": None, "c": None, "d": None}


def test_a_state_that_lost_only_its_sentinels_is_emptied_with_a_new_log(world: World) -> None:
    world.run("a", "b", "a")
    for entries in world.store.values():
        for key in [key for key in entries if key[0] == SENTINEL_KEY]:
            del entries[key]
    left = {partition: dict(entries) for partition, entries in world.store.items()}
    with pytest.raises(StateMismatchError, match="the store of state 'count' was emptied"):
        world.start()
    assert world.store == left
    world.lose_log()
    assert world.run("d", state_recovery="discard_totals") == {"a": None, "b": None, "c": None, "d": 1}
    assert world.run("a") == {"a": 1, "b": None, "c": None, "d": 1}


def test_a_starter_that_was_replaced_empties_no_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run("a", "b")
    world.lose_log()
    before = {partition: dict(entries) for partition, entries in world.store.items()}
    # After the stores were compared, before they are emptied:
    monkeypatch.setattr(recovery.logger, "warning", lambda *_: FileLog.open(world.log, "t", takeover=True).close())
    with pytest.raises(FencedError, match="has taken over"):
        world.start(state_recovery="discard_totals")
    assert world.store == before


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 4), (4, 2)])
def test_another_number_of_partitions_leaves_the_keys_where_they_are(world: World, before: int, after: int) -> None:
    world.shared = True  # one store for all partitions, as with a server
    world.run("a", "b", "c", "d", partitions=before)
    world.run("a", partitions=before)
    assert world.run("a", "b", partitions=after) == {"a": 3, "b": 2, "c": 1, "d": 1}
    assert world.run("d", partitions=after) == {"a": 3, "b": 2, "c": 1, "d": 2}
    assert world.run("c", partitions=before) == {"a": 3, "b": 2, "c": 2, "d": 2}


@pytest.mark.parametrize("then", [2, 3])
def test_a_start_that_was_killed_while_it_claimed_places_is_made_up_for(world: World, then: int) -> None:
    world.shared = True
    world.run("a", "b", "c")
    assert world.run("a")["a"] == 2
    with dying_at(LayoutRecord):
        world.start(partitions=4)
    assert world.run("a", partitions=then)["a"] == 3
    assert world.run("a", partitions=then)["a"] == 4


def test_another_number_of_partitions_does_not_hide_a_lost_store(world: World) -> None:
    world.shared = True
    world.run("a", "b", "c", "d")
    world.lose_store()
    with pytest.raises(StateMismatchError, match="partition 0 of state 'count'"):
        world.start(partitions=3)
    assert world.store[0] == {}


def test_a_partition_that_was_never_touched_goes_on(world: World) -> None:
    world.run("a", partitions=4)
    held = [partition for partition, entries in world.store.items() if any(key[0] != SENTINEL_KEY for key in entries)]
    assert len(held) == 1
    assert world.run("a", "b", "c", "d", partitions=4) == {"a": 2, "b": 1, "c": 1, "d": 1}


def test_what_a_crash_left_behind_is_undone_by_the_replay(world: World) -> None:
    world.run("a", "b", "c", "d")
    topology = world.topology()
    with start(topology, "in_process", log_dir=world.log) as running:
        attempt = running.log_state.epoch << 20
        incarnation = running.log_state.incarnation
    # As a driver leaves it that died in the middle of batch 2: one partition written, the other only begun.
    for entries in (world.store[0], world.store[1]):
        for key in list(entries):
            if len(key) == 3:
                entries[key] = Sentinel(incarnation, 2, attempt, "t/count", sealed=False)
            elif key[0] != SENTINEL_KEY:
                entries[key] = OpaqueValue(2, attempt, entries[key].curr, 99)
    with world.start() as running:
        assert world.read(running) == {"a": 1, "b": 1, "c": 1, "d": 1}
        world.feeder.feed([["a"], ["b"]])
        assert world.read(running) == {"a": 2, "b": 2, "c": 1, "d": 1}
        world.feeder.feed([["c"]])
        assert world.read(running) == {"a": 2, "b": 2, "c": 2, "d": 1}


class Two:
    """Two states of one topology over one source; `shared`: both in the same place."""

    def __init__(self, log: Path, shared: bool = False) -> None:
        self.log, self.feeder = log, FeederBatchSpout("k: string")
        self.stores: dict[str, Store] = {"sum": {}, "rows": {}}
        self.places = {"sum": "sum", "rows": "sum" if shared else "rows"}

    def start(self, **conf: Any) -> RunningTopology:
        topology = TridentTopology("t")
        stream = topology.new_stream("s", self.feeder)
        for name, place in self.places.items():
            backing = partial(self._open, place)
            stream.group_by("k").persistent_aggregate(map_state(backing), Count(), name)
        return start(topology, "in_process", log_dir=self.log, **conf)

    def _open(self, place: str, conf: Any, partition: int, count: int) -> EmptyableMap:
        return EmptyableMap(self.stores[place])

    def run(self, *words: str, **conf: Any) -> list[int]:
        with self.start(**conf) as running:
            self.feeder.feed([[word] for word in words])
            running.process_all_available()
            return [running.state(name).multi_get(["a"])[0] for name in self.places]


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path / "log")


def lose_end_of_log(log: Path, lose: Callable[[], Any]) -> None:
    """What `lose` does is in the stores and not in the log; its epochs are free again."""
    copy = log.with_name("copy")
    shutil.copytree(log, copy)
    lose()
    shutil.rmtree(log)
    shutil.move(copy, log)


def lose_batch(two: Two) -> None:
    """Its three tuples are in both stores; where the source stands is not known either."""
    lose_end_of_log(two.log, lambda: two.run("a", "a", "a"))
    two.feeder = FeederBatchSpout("k: string")


def test_the_totals_of_all_states_are_kept_or_none(two: Two) -> None:
    assert two.run("a", "a") == [2, 2]
    lose_batch(two)
    with pytest.raises(StateMismatchError, match="state 'sum'"):
        two.start()
    assert two.run("a", state_recovery="keep_totals") == [6, 6]


@pytest.mark.parametrize("after", [0, 1])
def test_a_start_that_dies_while_it_keeps_totals_is_made_up_for(two: Two, after: int) -> None:
    two.run("a", "a")
    lose_batch(two)
    with dying_at(AdoptRecord, after):
        two.start(state_recovery="keep_totals")
    with pytest.raises(StateMismatchError):
        two.start()
    assert two.run("a", state_recovery="keep_totals") == [6, 6]
    assert two.run("a") == [7, 7]


def test_a_start_that_dies_with_its_claims_on_kept_states_is_made_up_for(world: World) -> None:
    world.shared = True
    world.run("a", "b", "c", "d")
    world.lose_log()
    with world.start(state_recovery="keep_totals") as running:
        assert running.txid == 1
    with dying_at(LayoutRecord):
        world.start(partitions=4)
    assert world.run("a")["a"] == 2


@pytest.mark.parametrize("words", [["a"], []], ids=["with a batch", "to its first start"])
def test_a_log_rolled_back_across_a_start_is_found_however_often_it_is_started(two: Two, words: list[str]) -> None:
    two.run(*words)
    lose_end_of_log(two.log, lambda: two.run("a"))
    for _ in range(3):  # the second start has an epoch above that of the driver that was lost
        with pytest.raises(StateMismatchError, match="of a driver that this log does not know"):
            two.start()


def test_a_starter_that_was_replaced_lays_no_later_claim(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asleep, written = [True], FileLog.append

    def overtaken(self: FileLog, one: Record, durable: bool = True) -> None:
        written(self, one, durable)
        if isinstance(one, StartRecord) and asleep.pop():
            asleep.append(False)
            assert world.run("a", "b", "c", takeover=True)["a"] == 1
            asleep.append(False)

    with monkeypatch.context() as slow:
        slow.setattr(FileLog, "append", overtaken)
        with pytest.raises(FencedError):
            world.start()
    assert world.run("a")["a"] == 2


def test_what_a_log_knows_of_one_state_stands_when_another_one_is_kept(two: Two) -> None:
    two.run("a", "a")
    with two.start() as running:
        attempt = running.log_state.epoch << 20
    # A failed attempt of batch 2 left this value; the state was not touched since.
    two.stores["rows"]["a",] = OpaqueValue(2, attempt, 2, 99)
    two.stores["sum"][SENTINEL_KEY, 0] = Sentinel("of another log", 9, attempt, "t/sum")
    with two.start(state_recovery="keep_totals_even_if_wrong") as running:
        assert running.log_state.adopted == {"sum": 9}
        assert [running.state(name).multi_get(["a"]) for name in ("sum", "rows")] == [[2], [2]]


def test_a_state_that_was_never_touched_may_be_gone(world: World) -> None:
    with world.start():
        pass
    world.lose_store()
    assert world.run("a")["a"] == 1


def test_a_partition_that_is_added_over_what_another_log_wrote_is_found(world: World) -> None:
    world.run("a", partitions=1)
    world.store[1] = {(SENTINEL_KEY, 0): Sentinel("other", 3, 1 << 20), ("b",): OpaqueValue(3, 1 << 20, None, 30)}
    world.store[1][SENTINEL_KEY, 1] = Sentinel("other", 3, 1 << 20)
    with pytest.raises(StateMismatchError, match="partition 1 of state 'count'"):
        world.start(partitions=2)


def test_partitions_may_have_names_of_their_own(tmp_path: Path) -> None:
    class Named:
        def make_state(self, conf: Any, partition: int, partitions: int) -> OpaqueMap:
            return OpaqueMap(DictMap(stores[partition]), f"counts[{partition}]", partition)

    stores: list[Store] = [{}, {}]
    for wanted in (1, 2):
        topology, feeder = TridentTopology("t"), FixedBatchSpout("k: string", 1, *[["a"]] * wanted)
        stream = topology.new_stream("s", feeder).group_by("k")
        stream.persistent_aggregate(StateSpec(Named(), 2), Count(), "count")
        running = run_all(topology, "in_process", log_dir=tmp_path, allow_changed_topology=True)
        assert running.state("count").multi_get(["a"]) == [wanted]


def test_two_states_in_one_place_are_refused_at_the_start(tmp_path: Path) -> None:
    two = Two(tmp_path / "log", shared=True)
    with pytest.raises(StatePlaceError, match="'t/rows' wants to keep its values belongs to 't/sum'"):
        two.start()
    assert [key for key in two.stores["sum"] if key[0] != SENTINEL_KEY] == []


@pytest.mark.parametrize("policy", ["refuse", "discard_totals"])
def test_a_place_of_another_topology_is_refused_and_never_emptied(tmp_path: Path, policy: str) -> None:
    store: Store = {}

    def count(name: str, **conf: Any) -> RunningTopology:
        topology = TridentTopology(name)
        stream = topology.new_stream("s", FixedBatchSpout("k: string", 1, ["a"])).group_by("k")
        stream.persistent_aggregate(map_state(lambda *_: EmptyableMap(store)), Count(), "count")
        return run_all(topology, "in_process", log_dir=tmp_path / name, **conf)

    count("one")
    before = dict(store)
    with pytest.raises(StatePlaceError, match="'two/count' wants to keep its values belongs to 'one/count'"):
        count("two", state_recovery=policy)
    assert store == before


class Fenced(MemoryBackingMap[Any]):
    """One store for all partitions, as a server has it; each partition has a sentinel of its own."""

    def __init__(self, server: dict[int, MemoryData], partition: int, before_put: BeforePut) -> None:
        super().__init__(server.setdefault(partition, MemoryData()))
        self.data.values.entries = server.setdefault(-1, MemoryData()).values.entries
        self.before_put = before_put

    def multi_put(self, keys: Sequence[Any], values: Sequence[OpaqueValue]) -> None:
        self.before_put(values)
        super().multi_put(keys, values)


class AddKeys(BaseStateUpdater[Any]):
    """Counts the tuples of each key."""

    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        counts = collections.Counter(row["k"] for row in tuples)
        state.multi_update([(key,) for key in counts], [Add(n) for n in counts.values()])


def fenced_in_its_sleep(
    topology: Callable[[int, Any], TridentTopology], old: int, new: int, committed: int, keys: list[str], log: Path
) -> None:
    """Let a driver sleep in the put of a batch, another one take over and end, and check that the first one is refused."""
    asleep, awake, server = threading.Event(), threading.Event(), dict[int, MemoryData]()

    def sleep(values: Sequence[OpaqueValue]) -> None:
        if values[0].txid > committed:
            asleep.set()
            assert awake.wait(30)

    def of(before_put: BeforePut) -> Any:
        return lambda conf, partition, count: Fenced(server, partition, before_put)

    sleeper = start(topology(old, of(sleep)), "in_process", log_dir=log)
    try:
        assert asleep.wait(30)
        with start(topology(new, of(lambda values: None)), "in_process", log_dir=log, takeover=True) as other:
            other.process_all_available()
            awake.set()
            with pytest.raises(FencedError):
                sleeper.await_termination()
            assert other.state("count").multi_get(keys) == [3] * len(keys)
    finally:
        awake.set()
        with suppress(FencedError):
            sleeper.stop()


@pytest.mark.parametrize("committed", [0, 1])
def test_a_takeover_fences_the_old_driver_where_keys_change_partitions(committed: int, tmp_path: Path) -> None:
    def topology(place: int, backing: Any) -> TridentTopology:
        made = TridentTopology("t")
        stream = made.new_stream("s", FixedBatchSpout("k: string", 2, *[(key,) for key in "ab" * 3]))
        spread = stream.partition(lambda row, count: place)
        spread.partition_persist(map_state(backing), ["k"], AddKeys(), state_name="count").parallelism_hint(2)
        return made

    fenced_in_its_sleep(topology, 0, 1, committed, list("ab"), tmp_path)


@pytest.mark.parametrize("committed", [0, 1])
def test_a_takeover_with_fewer_partitions_fences_those_that_went(committed: int, tmp_path: Path) -> None:
    keys = list("abcdefgh")

    def topology(partitions: int, backing: Any) -> TridentTopology:
        made = TridentTopology("t")
        spout = FixedBatchSpout("k: string", len(keys), *[(key,) for key in keys * 3])
        stream = made.new_stream("s", spout).group_by("k")
        stream.persistent_aggregate(map_state(backing, num_partitions=partitions), Count(), "count")
        return made

    fenced_in_its_sleep(topology, 4, 2, committed, keys, tmp_path)


class Broken(RowsState):
    """Commits nothing."""

    def commit(self, txid: int) -> None:
        raise ConnectionError("away")


def test_a_spout_that_has_other_rows_than_were_defined_cannot_replay(tmp_path: Path) -> None:
    replayed = "ReplayMismatchError: batch 1 was defined as the rows 0 to 2"
    for rows, state, said in (([[1], [2]], Broken(), "ConnectionError: away"), ([[0]], RowsState(), replayed)):
        topology = TridentTopology("t")
        topology.new_stream("s", FixedBatchSpout("x: bigint", 2, *rows)).partition_persist(state, Keep(), "y: bigint")
        with pytest.raises(BatchFailedError, match=said):
            run_all(topology, "in_process", log_dir=tmp_path, max_batch_attempts=1)


def test_a_batch_that_an_earlier_version_defined_is_emitted_again() -> None:
    spout = BatchSpoutExecutor(RowsSpout("x: bigint", {1: ([1], [2])}))
    former = {"rows": 2, "bytes": 16, "crc": 1}  # of the bytes of a table
    assert sum(part.table.num_rows for part in spout.parts(TransactionAttempt(1, 0), former, 1)) == 2
    with pytest.raises(ReplayMismatchError, match="gave other rows"):
        spout.parts(TransactionAttempt(2, 0), former, 1)


class Counter(OneSpout):
    """A spout that numbers its definitions, so that it shows when it is asked for one."""

    fields = Fields("x: bigint")

    def __init__(self, kind: SpoutType) -> None:
        self.spout_type, self.asked = kind, 0

    def initialize_transaction(self, txid: int, previous: Any) -> Any:
        self.asked += 1
        return {"asked": self.asked} if txid == 1 else None

    def emit(self, part: Any) -> Iterator[Any]:
        yield pa.record_batch({"x": [part["asked"]]})


@pytest.mark.parametrize(("kind", "defined"), [(SpoutType.TRANSACTIONAL, 1), (SpoutType.OPAQUE, 3)])
def test_a_replay_uses_the_logged_definition_or_asks_for_another(kind: SpoutType, defined: int, tmp_path: Path) -> None:
    class Twice(RowsState):
        left = 2

        def commit(self, txid: int) -> None:
            super().commit(txid)
            self.left -= 1
            if self.left >= 0:
                raise ConnectionError("away")

    rows, topology = Twice(), TridentTopology("t")
    topology.new_stream("s", Counter(kind)).partition_persist(rows, Keep(), "y: bigint")
    with pytest.raises(BatchFailedError):
        run_all(topology, "in_process", log_dir=tmp_path, max_batch_attempts=1)
    run_all(topology, "in_process", log_dir=tmp_path)
    first = (1,) if kind is SpoutType.TRANSACTIONAL else rows.batches[1][0]
    assert rows.batches == {1: [first]}
    assert first[0] >= defined
