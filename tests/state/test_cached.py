"""Memories in front of a store: they save reads, and never claim what the store or another process denies."""

import threading
from typing import Any

import pytest

from states.memory import MemoryBackingMap, MemoryData
from tests.harness.crashing_stores import DictMap, LateMap, commit
from trident.state import (
    CachedBatchReadsMap,
    CachedMap,
    NonTransactionalMap,
    OpaqueMap,
    Sentinel,
    Snapshot,
    TransactionalMap,
    Txid,
    Winners,
)
from trident.testing import Faults, FaultyMap, InjectedFault
from trident.testing.backend.schedules import Add

EXACT = [OpaqueMap, TransactionalMap]
WON = Winners(((1, 0),))


def at(txid: int, last: int, attempt: int = 0, winners: Winners = WON) -> Txid:
    """Return the commit of a batch; batch `last` was the last one to touch the partition."""
    return Txid(txid, attempt, winners, "log", Sentinel("log", last, 0) if last else None)


def begun(store: Any, size: int = 100, txid: int = 1) -> CachedMap:
    cache = CachedMap(store, size)
    cache.begin(Txid(txid))
    return cache


def test_what_was_read_or_written_is_not_read_again() -> None:
    store = DictMap({("a",): 1})
    cache = begun(store)
    assert cache.multi_get([("a",), ("x",), ("a",)]) == [1, None, 1]
    cache.multi_put([("b",)], [2])
    assert cache.multi_get([("x",), ("b",), ("a",)]) == [None, 2, 1]
    assert store.gets == [[("a",), ("x",)]]  # absent keys are remembered too


def test_the_store_is_never_asked_for_nothing() -> None:
    store = DictMap({("a",): 1})
    cache = begun(store)
    assert cache.multi_get([]) == []
    cache.multi_put([], [])
    assert (store.gets, store.puts) == ([], [])


def test_the_least_recently_used_entry_goes_first() -> None:
    store = DictMap()
    cache = begun(store, size=2)
    cache.multi_put([("a",), ("b",)], [1, 2])
    cache.multi_get([("a",)])
    cache.multi_put([("c",)], [3])
    assert cache.multi_get([("a",), ("c",)]) == [1, 3]
    assert store.gets == []
    assert cache.multi_get([("b",)]) == [2]
    assert store.gets == [[("b",)]]


@pytest.mark.parametrize("size", [0, -1])
def test_a_cache_without_room_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"a cache of {size} entries: give at least 1"):
        CachedMap(DictMap(), size)


@pytest.mark.parametrize(
    ("new_map", "way"),
    [(NonTransactionalMap, "before"), *((new_map, way) for new_map in EXACT for way in ("before", "middle", "after"))],
)
def test_h2_a_failed_put_does_not_look_written(new_map: Any, way: Any) -> None:
    store, faults = DictMap(), Faults()
    state = new_map(CachedMap(FaultyMap(store, faults)))
    commit(state, 1, a=5)
    state.begin_commit(2)
    faults.fail(1 if new_map is TransactionalMap else 2, way)

    def update() -> None:
        state.multi_update([("a",), ("b",), ("c",), ("d",)], [Add(7), Add(7), Add(7), Add(7)])
        state.commit(2)

    with pytest.raises(InjectedFault):
        update()
    faults.clear()
    assert commit(state, 2, a=7, b=7, c=7, d=7) == [12, 7, 7, 7]
    assert new_map(store).multi_get([("a",), ("b",), ("c",), ("d",)]) == [12, 7, 7, 7]


def test_within_a_commit_the_keys_of_a_failed_put_are_forgotten() -> None:
    store, faults = DictMap({("a",): 1, ("b",): 1}), Faults()
    cache = begun(FaultyMap(store, faults))
    cache.multi_get([("a",), ("b",)])
    faults.fail(1, "after")
    with pytest.raises(InjectedFault):
        cache.multi_put([("a",), ("new",)], [2, 2])
    assert cache.multi_get([("a",), ("b",), ("new",)]) == [2, 1, 2]
    assert store.gets == [[("a",), ("b",)], [("a",), ("b",), ("new",)]]


@pytest.mark.parametrize("new_map", [*EXACT, NonTransactionalMap])
def test_h3_a_process_that_lost_the_partition_and_got_it_back_starts_empty(new_map: Any) -> None:
    data = MemoryData()
    one, two = (new_map(CachedMap(MemoryBackingMap(data))) for _ in range(2))
    assert commit(one, at(1, last=0), a=5) == [5]
    assert commit(two, at(2, last=1), a=7) == [12]
    assert commit(one, at(3, last=2), a=1) == [13]


@pytest.mark.parametrize(
    ("ended", "next_one", "kept"),
    [
        (at(1, last=0), at(2, last=1), True),
        (at(1, last=0), at(7, last=1), True),  # the batches between did not touch the partition
        (at(1, last=0), at(3, last=2), False),
        (at(1, last=0, attempt=1), at(2, last=1), False),  # another attempt won
        (at(1, last=0), at(1, last=0, attempt=1), False),  # it ended, but was never recorded
        (Txid(1), Txid(2), True),
        (Txid(1), Txid(3), False),
        (Txid(1), Txid(1), False),
        (Txid(1), at(2, last=0), False),
        (at(1, last=0), Txid(2), False),
    ],
)
def test_the_memory_outlives_a_commit_only_if_nobody_came_between(ended: Txid, next_one: Txid, kept: bool) -> None:
    store = DictMap()
    cache = CachedMap(store)
    cache.begin(ended)
    cache.multi_put([("a",)], [1])
    cache.end(ended)
    cache.begin(next_one)
    cache.multi_get([("a",)])
    assert (store.gets == []) is kept


def test_a_commit_that_never_ended_leaves_nothing() -> None:
    store = LateMap({})
    cache = CachedMap(store)
    cache.begin(at(1, last=0))
    cache.end(at(1, last=0))
    cache.begin(at(2, last=1))
    cache.multi_put([("a",)], [1])  # the store keeps it until an end that never comes
    cache.begin(at(2, last=1, attempt=1))
    assert cache.multi_get([("a",)]) == [None]


def test_a_commit_that_the_store_could_not_end_leaves_nothing() -> None:
    faults = Faults()
    cache = CachedMap(FaultyMap(LateMap({}), faults))
    cache.begin(Txid(1))
    cache.multi_put([("a",)], [1])
    faults.fail(1, "before")
    with pytest.raises(InjectedFault):
        cache.end(Txid(1))
    cache.begin(Txid(2))
    assert cache.multi_get([("a",)]) == [None]


def test_reads_outside_a_commit_go_to_the_store_and_are_not_remembered() -> None:
    store = DictMap({("a",): 1})
    cache = CachedMap(store)
    assert cache.multi_get([("a",)]) == [1]
    store.entries[("a",)] = 2
    assert cache.multi_get([("a",)]) == [2]
    cache.begin(Txid(1))
    store.entries[("a",)] = 3
    assert cache.multi_get([("a",)]) == [3]


def test_a_write_outside_a_commit_is_not_remembered() -> None:
    store = DictMap()
    cache = CachedMap(store)
    cache.begin(Txid(1))
    cache.multi_put([("a",)], [1])
    cache.end(Txid(1))
    cache.multi_put([("a",)], [2])
    cache.begin(Txid(2))
    assert cache.multi_get([("a",)]) == [2]
    assert store.gets == [[("a",)]]


def test_a_read_of_another_thread_leaves_nothing_in_the_memory() -> None:
    store = DictMap({("a",): 1})
    cache = begun(store)
    seen: list[Any] = []
    reader = threading.Thread(target=lambda: seen.append(cache.multi_get([("a",)])))
    reader.start()
    reader.join()
    store.entries[("a",)] = 2
    assert (seen, cache.multi_get([("a",)])) == ([[1]], [2])


def test_a_snapshot_read_sees_what_others_committed_after_a_commit_crashed_here() -> None:
    data = MemoryData()
    one, two = (OpaqueMap(CachedMap(MemoryBackingMap(data))) for _ in range(2))
    commit(one, at(1, last=0), a=5)
    one.begin_commit(at(2, last=1))
    one.multi_update([("a",)], [Add(7)])  # and the batch fails elsewhere
    commit(two, at(2, last=1, attempt=1), a=7)
    assert one.multi_get_at([("a",)], Snapshot(2, Winners(((1, 0), (2, 1))))) == [12]


def test_a_sentinel_under_a_reserved_key_is_always_asked_of_the_store() -> None:
    store = DictMap()
    one, two = (OpaqueMap(CachedMap(store)) for _ in range(2))
    commit(one, at(1, last=0), a=5)
    commit(two, at(2, last=1), a=7)
    assert one.read_sentinel() == Sentinel("log", 2, 0)
    one.begin_commit(at(3, last=2))
    assert one.read_sentinel() == Sentinel("log", 2, 0)
    commit(two, at(3, last=2, attempt=1), a=7)  # while the commit of `one` is under way
    assert one.read_sentinel() == Sentinel("log", 3, 1)


def test_emptying_the_store_empties_the_memory() -> None:
    cache = CachedMap(MemoryBackingMap())
    commit(OpaqueMap(cache), 1, a=5)
    cache.reset()
    assert commit(OpaqueMap(cache), 2, a=7) == [7]
    cache.begin(Txid(3))
    cache.multi_get([("a",)])
    cache.reset()
    assert cache.multi_get([("a",)]) == [None]


def test_batch_reads_lay_the_writes_of_the_batch_over_the_store() -> None:
    store = LateMap({("a",): 1})
    store.begin(Txid(1))
    batch = CachedBatchReadsMap(store)
    batch.multi_put([("b",)], [2])
    assert batch.multi_get([("a",), ("b",), ("c",)]) == [(1, False), (2, True), (None, False)]
    assert store.gets == [[("a",), ("b",), ("c",)]]
    batch.reset()
    assert batch.multi_get([("b",)]) == [(None, False)]


def test_batch_reads_ask_for_nothing_and_remember_no_failed_put() -> None:
    store, faults = DictMap(), Faults()
    batch = CachedBatchReadsMap(FaultyMap(store, faults))
    assert batch.multi_get([]) == []
    batch.multi_put([], [])
    assert (store.gets, store.puts) == ([], [])
    faults.fail(1, "before")
    with pytest.raises(InjectedFault):
        batch.multi_put([("a",)], [1])
    assert batch.multi_get([("a",)]) == [(None, False)]
