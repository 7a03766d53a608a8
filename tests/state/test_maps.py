"""What the three maps promise, and the holes of Storm's maps that they close."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from states.memory import MemoryBackingMap, MemoryData
from tests.harness.crashing_stores import DictMap, LateMap, commit
from trident.errors import CommitOrderError, ConfigError, FencedError, StaleTransactionError, UnsupportedOperation
from trident.state import (
    CachedMap,
    CodecSerializer,
    IBackingMap,
    MapStateFactory,
    MicroBatchIBackingMap,
    NonTransactionalMap,
    OpaqueMap,
    OpaqueValue,
    Sentinel,
    SerializedMap,
    Snapshot,
    SnapshottableMap,
    StateConf,
    StateType,
    TransactionalMap,
    TransactionalValue,
    Txid,
    Winners,
    map_state,
)
from trident.testing import Faults, FaultyMap, InjectedFault
from trident.testing.backend.schedules import Add, Append

KINDS = [OpaqueMap, TransactionalMap, NonTransactionalMap]
every_kind = pytest.mark.parametrize("new_map", KINDS, ids=lambda kind: kind.__name__)


@every_kind
def test_a_replay_counts_once_where_the_kind_promises_it(new_map: Any) -> None:
    state = new_map(DictMap())
    commit(state, 1, a=5)
    commit(state, 2, a=7)
    assert commit(state, 2, a=7) == [19 if new_map is NonTransactionalMap else 12]


@every_kind
@pytest.mark.parametrize("store", [DictMap, LateMap])
def test_a_key_may_be_updated_in_several_calls_of_a_batch(new_map: Any, store: Callable[..., Any]) -> None:
    state = new_map(store({}))
    commit(state, 1, a=5)
    state.begin_commit(2)
    assert state.multi_update([("a",)], [Add(1)]) == [6]
    assert state.multi_get([("a",), ("b",)]) == [6, None]
    assert state.multi_update([("a",), ("b",)], [Add(1), Add(4)]) == [7, 4]
    assert state.multi_get([("a",), ("b",)]) == [7, 4]
    state.commit(2)
    assert state.multi_get([("a",), ("b",)]) == [7, 4]


@pytest.mark.parametrize("store", [DictMap, LateMap])
def test_prev_is_what_was_there_before_the_batch_however_often_it_updates(store: Callable[..., Any]) -> None:
    backing = store({})
    state = OpaqueMap(backing)
    commit(state, 1, a=5)
    state.begin_commit(2)
    for _ in range(3):
        state.multi_update([("a",)], [Add(1)])
    state.commit(2)
    assert backing.entries == {("a",): OpaqueValue(2, 0, prev=5, curr=8)}


def test_a_crash_between_two_updates_of_a_key_loses_neither_of_a_transactional_batch() -> None:
    faults = Faults()
    state = TransactionalMap(FaultyMap(DictMap(), faults))
    state.begin_commit(1)
    state.multi_update([("a",)], [Add(1)])
    faults.fail(1, "before")
    with pytest.raises(InjectedFault):
        state.multi_update([("a",)], [Add(2)])
    state.begin_commit(1)
    assert [state.multi_update([("a",)], [Add(n)]) for n in (1, 2)] == [[1], [3]]
    state.commit(1)
    assert state.multi_get([("a",)]) == [3]


@pytest.mark.parametrize("new_map", [OpaqueMap, NonTransactionalMap])
def test_within_a_commit_a_failed_put_does_not_look_written(new_map: Any) -> None:
    faults = Faults()
    state = new_map(FaultyMap(DictMap(), faults))
    commit(state, 1, a=1)
    state.begin_commit(2)
    faults.fail(2, "before")  # the put: the read comes first
    with pytest.raises(InjectedFault):
        state.multi_update([("a",)], [Add(5)])
    assert state.multi_get([("a",)]) == [1]


@every_kind
def test_an_empty_update_asks_nothing_of_the_store(new_map: Any) -> None:
    store = DictMap()
    state = new_map(store)
    assert commit(state, 1) == []
    assert state.multi_get([]) == []
    assert (store.gets, store.puts) == ([], [])


@every_kind
def test_a_key_twice_in_one_update_is_refused_before_anything_is_read(new_map: Any) -> None:  # H11
    store = DictMap()
    state = new_map(store)
    state.begin_commit(1)
    with pytest.raises(ValueError, match=r"key \('a',\) occurs more than once in one update of state 'state'"):
        state.multi_update([("b",), ("a",), ("a",)], [Add(1), Add(1), Add(2)])
    assert (store.gets, store.puts) == ([], [])


@every_kind
def test_an_update_outside_a_commit_is_refused(new_map: Any) -> None:
    state = new_map(DictMap())
    commit(state, 1, a=1)
    with pytest.raises(CommitOrderError, match="updated outside begin_commit and commit"):
        state.multi_update([("a",)], [Add(1)])


@every_kind
def test_a_commit_needs_its_own_begin(new_map: Any) -> None:
    state = new_map(MemoryBackingMap())
    with pytest.raises(CommitOrderError, match=r"commit\(1\) .* without its begin_commit: no commit began"):
        state.commit(1)
    state.begin_commit(Txid(1, 4))
    with pytest.raises(CommitOrderError, match="the commit that began is of batch 1"):
        state.commit(2)
    with pytest.raises(CommitOrderError):
        state.commit(Txid(1, 5))
    state.commit(Txid(1, 4))
    with pytest.raises(CommitOrderError):
        state.commit(1)


@every_kind
@pytest.mark.parametrize("empty", [[], {}, set()], ids=repr)
def test_an_updater_that_changes_its_argument_harms_nothing_stored(new_map: Any, empty: Any) -> None:
    before = [1]
    store = DictMap()
    state = new_map(store)
    state.begin_commit(1)
    state.multi_put([("a",)], [before])
    state.commit(1)
    state.begin_commit(2)
    state.multi_update([("a",)], [Append(2)])
    first = state.multi_update([("a",)], [Append(3)])
    second = state.multi_update([("a",)], [Append(4)])
    state.commit(2)
    assert before == [1]
    assert (first, second) == ([[1, 2, 3]], [[1, 2, 3, 4]])
    if new_map is OpaqueMap:
        assert store.entries[("a",)] == OpaqueValue(2, 0, [1], [1, 2, 3, 4])


def test_only_values_that_can_change_are_copied_for_the_updater() -> None:
    fixed, nested = (1, "a"), (1, ["a"])
    seen: list[Any] = []

    class Look:
        def update(self, stored: Any) -> Any:
            seen.append(stored)
            return stored

    state = OpaqueMap(DictMap())
    state.begin_commit(1)
    state.multi_put([("fixed",), ("nested",)], [fixed, nested])
    state.commit(1)
    state.begin_commit(2)
    state.multi_update([("fixed",), ("nested",)], [Look(), Look()])
    assert seen[0] is fixed
    assert seen[1] == nested
    assert seen[1][1] is not nested[1]


def test_h1_a_key_that_the_replay_no_longer_contains_counts_once() -> None:
    state = OpaqueMap(DictMap())
    commit(state, Txid(1, 0, Winners()), a=5)
    commit(state, Txid(2, 0, Winners(((1, 0),))), a=7)  # fails elsewhere after this
    commit(state, Txid(2, 1, Winners(((1, 0),))), z=1)  # the replay has no a
    winners = Winners(((1, 0), (2, 1)))
    assert state.multi_get_at([("a",), ("z",)], Snapshot(2, winners)) == [5, 1]
    assert commit(state, Txid(3, 1, winners), a=1) == [6]


@pytest.mark.parametrize(("new_map", "healthy"), [(OpaqueMap, 13), (TransactionalMap, 13), (NonTransactionalMap, 13)])
def test_h4_a_writer_that_slept_is_fenced_by_the_store(new_map: Any, healthy: int) -> None:
    data = MemoryData()

    def at(txid: int, attempt: int, last: Sentinel | None) -> Txid:
        return Txid(txid, attempt, Winners(((1, 0), (2, 1))), "log", last)

    commit(new_map(MemoryBackingMap(data)), at(1, 0, None), a=5)
    asleep: Any = new_map(MemoryBackingMap(data))
    second = at(2, 0, Sentinel("log", 1, 0))
    asleep.begin_commit(second)
    awake = new_map(MemoryBackingMap(data))
    commit(awake, at(2, 1, Sentinel("log", 1, 0)), a=7)
    commit(awake, at(3, 1, Sentinel("log", 2, 1)), a=1)

    def wake_up() -> None:
        asleep.multi_update([("a",)], [Add(7)]) if new_map is NonTransactionalMap else asleep.multi_put([("b",)], [7])
        asleep.commit(second)

    with pytest.raises(FencedError, match="has taken over"):
        wake_up()
    assert awake.multi_get([("a",), ("b",)]) == [healthy, None]


def test_h4_a_two_method_store_tells_a_writer_that_slept_at_its_next_begin() -> None:
    store = DictMap()
    commit(OpaqueMap(store), Txid(1, 1, Winners(), "log"), a=5)
    with pytest.raises(FencedError, match="attempt 0 of incarnation log, but batch 1 attempt 1"):
        OpaqueMap(store).begin_commit(Txid(1, 0, Winners(), "log"))


@pytest.mark.parametrize("new_map", [OpaqueMap, TransactionalMap])
def test_h5_a_stored_txid_above_the_current_one_is_an_error_and_nothing_is_written(new_map: Any) -> None:
    store = DictMap()
    state = new_map(store)
    commit(state, 5, a=5)
    before = dict(store.entries)
    with pytest.raises(StaleTransactionError, match=r"batch 3 is behind batch 5 stored for \('a',\) in state 'state'"):
        commit(state, 3, b=1, a=1)
    assert store.entries == before
    with pytest.raises(StaleTransactionError):
        state.multi_get([("a",)]) and state.commit(3)
    assert commit(state, 5, a=5) == [5]


@pytest.mark.parametrize("new_map", [OpaqueMap, TransactionalMap])
def test_reads_within_a_commit_see_what_its_updates_would_start_from(new_map: Any) -> None:
    state = new_map(DictMap())
    commit(state, 1, a=5)
    commit(state, 2, a=7)
    state.begin_commit(2)
    assert state.multi_get([("a",), ("b",)]) == [5 if new_map is OpaqueMap else 12, None]
    state.begin_commit(3)
    assert state.multi_get([("a",)]) == [12]


def test_a_snapshot_sees_committed_batches_only() -> None:
    state = OpaqueMap(DictMap())
    commit(state, 1, a=5)
    commit(state, 2, a=7, b=1)
    assert state.multi_get([("a",), ("b",)]) == [12, 1]
    assert state.multi_get_at([("a",), ("b",), ("c",)], Snapshot(1)) == [5, None, None]
    assert state.multi_get_at([("a",), ("b",)], Snapshot(2)) == [12, 1]
    assert state.multi_get_at([], Snapshot(2)) == []
    with pytest.raises(StaleTransactionError, match=r"batch 0 is behind batch 2 stored for \('a',\)") as caught:
        state.multi_get_at([("c",), ("a",)], Snapshot(0))
    assert (caught.value.txid, caught.value.stored_txid) == (0, 2)


def test_the_store_begins_after_the_claim_and_ends_before_the_commit_returns() -> None:
    calls: list[str] = []

    class Spy(MemoryBackingMap[Any]):
        def begin(self, txid: Txid) -> None:
            calls.append(f"begin {int(txid)} with {self.read_sentinel()}")

        def end(self, txid: Txid) -> None:
            calls.append(f"end {int(txid)} with {len(self)} keys")

    commit(TransactionalMap(Spy()), Txid(1, 4, Winners(), "log"), a=1)
    assert calls == ["begin 1 with batch 1 attempt 4 of incarnation log", "end 1 with 1 keys"]


def test_a_sentinel_under_a_reserved_key_is_one_of_the_commits_own_puts() -> None:
    store = LateMap({})
    state = OpaqueMap(store)
    state.begin_commit(Txid(1, 4, Winners(), "log"))
    assert store.entries == {}
    state.commit(1)
    assert state.read_sentinel() == Sentinel("log", 1, 4)


def test_a_store_that_cannot_be_emptied_says_so() -> None:
    with pytest.raises(UnsupportedOperation, match=r"empty state 'counts': a DictMap has no reset\(\).*key prefix"):
        OpaqueMap(DictMap(), "counts").reset()


def test_close_closes_a_store_that_has_something_to_close() -> None:
    closed: list[bool] = []

    class Closing(DictMap):
        def close(self) -> None:
            closed.append(True)

    OpaqueMap(Closing()).close()
    OpaqueMap(DictMap()).close()
    assert closed == [True]


def test_a_transactional_replay_writes_nothing() -> None:
    store = DictMap()
    state = TransactionalMap(store)
    commit(state, 1, a=5)
    store.puts.clear()
    assert commit(state, 1, a=5) == [5]
    assert store.puts == []
    assert store.entries == {("a",): TransactionalValue(1, 5)}


@every_kind
def test_an_answer_of_the_wrong_length_is_an_error_and_nothing_is_written(new_map: Any) -> None:
    class Short(DictMap):
        def multi_get(self, keys: Any) -> list[Any]:
            return super().multi_get(keys)[1:]

    store = Short()
    with pytest.raises(ValueError, match="(shorter|longer) than argument"):
        commit(new_map(store), 1, a=1, b=1)
    assert store.entries == {}


def test_what_a_map_cannot_do_is_said_of_the_map_that_its_owner_wrote() -> None:
    state = OpaqueMap(CachedMap(SerializedMap(DictMap(), CodecSerializer()), 10))
    said = r"a DictMap cannot list its keys; .* give your own map key_pages\(\)"
    with pytest.raises(UnsupportedOperation, match=said):
        state.key_pages()
    with pytest.raises(UnsupportedOperation, match=r"a DictMap has no reset\(\)"):
        state.reset()


def test_the_single_value_is_kept_under_the_fixed_key() -> None:
    store = DictMap()
    state = SnapshottableMap(NonTransactionalMap(store), "$ALL$")
    assert state.get() is None
    state.begin_commit(1)
    assert state.update(Add(5)) == 5
    state.set(7)
    assert state.update(Add(1)) == 8
    state.commit(1)
    assert (state.get(), store.entries) == (8, {("$ALL$",): 8})
    assert SnapshottableMap(NonTransactionalMap(store), ("x", 1)).snapshot_key == ("x", 1)
    assert SnapshottableMap(NonTransactionalMap(store)).snapshot_key == ("$GLOBAL$",)


def test_a_map_without_earlier_values_says_so() -> None:
    state = SnapshottableMap(TransactionalMap(DictMap()))
    assert state.facts.multi_get_at is None
    with pytest.raises(UnsupportedOperation, match="as of batch 4: a TransactionalMap keeps the latest value only"):
        state.get_at(Snapshot(4))


@pytest.mark.parametrize(
    ("size", "chunks"), [(0, [5]), (1, [1, 1, 1, 1, 1]), (2, [2, 2, 1]), (5, [5]), (9, [5])], ids=lambda item: str(item)
)
def test_chunks_are_no_larger_than_said_and_in_order(size: int, chunks: list[int]) -> None:
    store = DictMap()
    keys = [(n,) for n in range(5)]
    MicroBatchIBackingMap(store, max_multi_put=size).multi_put(keys, list(range(5)))
    assert MicroBatchIBackingMap(store, max_multi_get=size).multi_get(keys) == list(range(5))
    assert [len(call) for call in store.puts] == [len(call) for call in store.gets] == chunks
    assert [key for call in store.puts for key in call] == [key for call in store.gets for key in call] == keys


def test_chunking_is_off_by_default_and_bad_sizes_are_refused() -> None:
    assert (MicroBatchIBackingMap(DictMap()).max_multi_get, MicroBatchIBackingMap(DictMap()).max_multi_put) == (0, 0)
    with pytest.raises(ValueError, match=r"chunk sizes are 1 \(get\) and -1 \(put\); give"):
        MicroBatchIBackingMap(DictMap(), 1, -1)
    with pytest.raises(ValueError, match="write 2 keys with 1 values"):
        MicroBatchIBackingMap(DictMap(), 1, 1).multi_put([("a",), ("b",)], [1])


ENTRIES: dict[int, MemoryData] = {}


def open_backing(conf: StateConf, partition_index: int, num_partitions: int) -> IBackingMap[Any]:
    return MemoryBackingMap(ENTRIES.setdefault(partition_index, MemoryData()))


@pytest.fixture(autouse=True)
def empty_stores() -> None:
    ENTRIES.clear()


@pytest.mark.parametrize(
    "kind", ["opaque", "transactional", "non-transactional", "non_transactional", StateType.OPAQUE]
)
def test_map_state_makes_a_picklable_state_of_a_kind(kind: Any) -> None:
    spec = pickle.loads(pickle.dumps(map_state(open_backing, kind, num_partitions=3)))
    assert spec.required_num_partitions == 3
    conf = StateConf("shop", "counts")
    state = spec.factory.make_state(conf, 1, 3)
    commit(state, 1, a=5)
    assert spec.factory.make_state(conf, 1, 3).multi_get([("a",)]) == [5]
    assert spec.factory.make_state(conf, 2, 3).multi_get([("a",)]) == [None]
    wanted = kind.value if isinstance(kind, StateType) else kind.replace("_", "-")
    assert state.kind.value == spec.factory.kind.value == wanted
    assert (state.map_state.name, state.map_state.partition) == ("shop/counts", 1)


def test_map_state_caches_where_it_writes_and_keeps_the_single_value_where_told() -> None:
    factory = map_state(open_backing, cache=7, snapshot_key="$ALL$").factory
    assert isinstance(factory, MapStateFactory)
    writer = factory.make_state(StateConf(), 0, 1)
    reader = factory.make_state(StateConf(read_only=True), 0, 1)
    assert isinstance(writer.map_state, OpaqueMap)
    assert isinstance(writer.map_state.backing, CachedMap)
    assert writer.map_state.backing.size == 7
    assert isinstance(reader.map_state, OpaqueMap)
    assert isinstance(reader.map_state.backing, MemoryBackingMap)
    assert writer.snapshot_key == ("$ALL$",)


def test_map_state_refuses_what_makes_no_sense() -> None:
    with pytest.raises(TypeError, match="backing_map_factory is a DictMap; give a function"):
        map_state(DictMap())  # type: ignore[arg-type]  # a mistake that users make
    said = "state kind 'exact' is unknown; use one of 'non-transactional', 'transactional'"
    with pytest.raises(ConfigError, match=said):
        map_state(open_backing, "exact")
    with pytest.raises(ConfigError, match="state kind 3 is unknown"):
        map_state(open_backing, 3)  # type: ignore[arg-type]  # a mistake that users make
    with pytest.raises(ConfigError, match="cache=-1 and num_partitions=None"):
        map_state(open_backing, cache=-1)
    with pytest.raises(ConfigError, match="num_partitions=0"):
        map_state(open_backing, num_partitions=0)
