"""Removed keys: absent at once, exact under replay, gone from the store once nobody can want them back."""

from typing import Any

import numpy as np
import pytest

from states.memory import MemoryMap, MemoryMapState
from tests.harness.crashing_stores import DictMap, commit, tuples_at
from trident.read.views import StateView
from trident.state import (
    CachedMap,
    NonTransactionalMap,
    OpaqueMap,
    Snapshot,
    SnapshottableMap,
    StateConf,
    StateType,
    TransactionalMap,
    Txid,
    Winners,
)
from trident.state.map_commits import REMOVAL_LAG
from trident.testing.backend.schedules import Add

CONF = StateConf("shop", "counts")
every_kind = pytest.mark.parametrize("kind", list(StateType), ids=lambda kind: kind.value)
exact_kind = pytest.mark.parametrize("kind", [StateType.OPAQUE, StateType.TRANSACTIONAL], ids=lambda kind: kind.value)
FIRST_WON = Winners(((1, 0),))


def open_state(kind: StateType = StateType.OPAQUE) -> MemoryMap:
    return MemoryMapState(kind=kind).make_state(CONF, 0, 1)


def remove(state: Any, txid: int, *keys: str, **increments: int) -> None:
    """Run one commit that adds to some keys and removes others."""
    state.begin_commit(txid)
    state.multi_update([(key,) for key in increments], [Add(n) for n in increments.values()])
    state.multi_remove([(key,) for key in keys])
    state.commit(txid)


@every_kind
def test_a_removed_key_is_absent_at_once_and_deleted_when_readers_have_moved_on(kind: StateType) -> None:
    state = open_state(kind)
    commit(state, 1, a=5, b=1)
    state.begin_commit(2)
    state.multi_remove([("a",), ("never",), ("a",)])
    assert state.multi_get([("a",), ("b",), ("never",)]) == [None, 1, None]
    state.commit(2)
    assert state.multi_get([("a",), ("b",)]) == [None, 1]
    assert list(state.get_tuples()) == [("b", 1)]
    state.begin_commit(1 + REMOVAL_LAG)
    assert list(state.data.values.entries) == [("a",), ("b",)]
    state.begin_commit(2 + REMOVAL_LAG)
    assert list(state.data.values.entries) == [("b",)]


@every_kind
def test_a_removed_key_starts_again_and_is_not_deleted_then(kind: StateType) -> None:
    state = open_state(kind)
    commit(state, 1, a=5)
    remove(state, 2, "a")
    assert commit(state, 3, a=1) == [1]
    state.begin_commit(2 + REMOVAL_LAG)
    assert state.multi_get([("a",)]) == [1]


@exact_kind
def test_a_replayed_removal_counts_once(kind: StateType) -> None:
    state = open_state(kind)
    commit(state, 1, a=5)
    for _ in range(2):
        remove(state, 2, "a", b=1)
    assert state.multi_get([("a",), ("b",)]) == [None, 1]


def test_a_replay_that_no_longer_removes_the_key_finds_it() -> None:
    state = open_state()
    commit(state, Txid(1, 0, Winners()), a=5)
    remove(state, Txid(2, 0, FIRST_WON), "a")
    assert commit(state, Txid(2, 1, FIRST_WON), a=1) == [6]
    state.begin_commit(Txid(2 + REMOVAL_LAG, 1, Winners(((1, 0), (2, 1)))))
    assert state.multi_get([("a",)]) == [6]


def test_a_removal_that_the_replay_drops_never_happened() -> None:
    state = open_state()
    commit(state, Txid(1, 0, Winners()), a=5)
    remove(state, Txid(2, 0, FIRST_WON), "a")
    winners = Winners(((1, 0), (2, 1)))
    commit(state, Txid(2, 1, FIRST_WON), z=1)
    assert list(tuples_at(state, Snapshot(2, winners))) == [("a", 5), ("z", 1)]
    assert commit(state, Txid(3 + REMOVAL_LAG, 1, winners), z=1) == [2]
    assert commit(state, Txid(4 + REMOVAL_LAG, 1, winners), a=1) == [6]


def test_a_removal_whose_replay_left_the_partition_out_never_happened() -> None:
    state = open_state()
    commit(state, Txid(1, 0, Winners()), a=5)
    remove(state, Txid(2, 0, FIRST_WON), "a")
    winners = Winners(((1, 0), (2, 1)))
    commit(state, Txid(2 + REMOVAL_LAG, 1, winners), z=1)
    assert commit(state, Txid(3 + REMOVAL_LAG, 1, winners), a=1) == [6]


def test_a_key_that_a_lost_attempt_made_is_not_removed_but_never_was() -> None:
    state = open_state()
    commit(state, Txid(1, 0, Winners()), a=5)
    remove(state, Txid(2, 1, Winners()), "a")
    assert state.multi_get_at([("a",)], Snapshot(2, Winners(((1, 7), (2, 1))))) == [None]


@every_kind
def test_a_key_that_comes_back_in_the_same_batch_stays(kind: StateType) -> None:
    state = open_state(kind)
    commit(state, 1, a=5, b=5)
    state.begin_commit(2)
    state.multi_remove([("a",), ("b",)])
    assert state.multi_update([("a",)], [Add(1)]) == [1]
    state.multi_put([("b",)], [2])
    state.commit(2)
    state.begin_commit(2 + REMOVAL_LAG)
    assert state.multi_get([("a",), ("b",)]) == [1, 2]


@exact_kind
def test_a_key_that_another_writer_wrote_since_is_not_deleted(kind: StateType) -> None:
    factory = MemoryMapState(kind=kind)
    state, other = factory.make_state(CONF, 0, 1), factory.make_state(CONF, 0, 1)
    commit(state, 1, a=5, b=5)
    remove(state, 2, "a", "b")
    commit(other, 3, a=1)
    state.begin_commit(2 + REMOVAL_LAG)
    assert state.multi_get([("a",), ("b",)]) == [1, None]
    assert list(state.data.values.entries) == [("a",)]


def test_a_snapshot_from_before_the_removal_sees_the_key() -> None:
    state = open_state()
    commit(state, 1, a=5, b=1)
    remove(state, 2, "a")
    assert state.multi_get_at([("a",), ("b",)], Snapshot(1)) == [5, 1]
    assert list(tuples_at(state, Snapshot(1))) == [("a", 5), ("b", 1)]
    assert state.multi_get_at([("a",), ("b",)], Snapshot(2)) == [None, 1]


def test_a_reader_that_slept_while_the_key_was_deleted_reads_again() -> None:
    state = open_state()
    commit(state, 1, a=5, b=1)
    remove(state, 2, "a")
    state.begin_commit(2 + REMOVAL_LAG)
    snapshots = iter([Snapshot(1), *[Snapshot(1 + REMOVAL_LAG)] * 3])
    asked: list[int] = []

    def snapshot() -> Snapshot:
        asked.append(1)
        return next(snapshots)

    assert StateView([state], snapshot).multi_get(["a", "b"]) == [None, 1]
    assert len(asked) == 4  # the first answer was thrown away


def test_a_value_that_is_no_truth_is_told_from_a_removed_one() -> None:
    state = NonTransactionalMap(DictMap(), "s", 0)
    for txid in range(1, REMOVAL_LAG + 4):
        state.begin_commit(txid)
        if txid == 2:
            state.multi_remove([("a",)])
        elif txid in (1, 3):
            state.multi_put([("a",)], [np.array([1, 2])])
        state.commit(txid)
    assert state.multi_get([("a",)])[0].tolist() == [1, 2]


def test_a_state_that_was_emptied_forgets_what_it_was_to_delete() -> None:
    state = open_state()
    commit(state, 1, a=5)
    remove(state, 2, "a")
    state.reset()
    commit(state, 1, a=7)
    state.begin_commit(2 + REMOVAL_LAG)
    assert state.multi_get([("a",)]) == [7]


@pytest.mark.parametrize("map_type", [OpaqueMap, TransactionalMap, NonTransactionalMap])
def test_a_store_of_two_methods_keeps_a_none_and_nothing_else(map_type: Any) -> None:
    store = DictMap()
    state = SnapshottableMap(map_type(store))
    commit(state, 1, a=5, b=1)
    remove(state, 2, "a")
    commit(state, 3 + REMOVAL_LAG, b=1)
    assert state.multi_get([("a",), ("b",)]) == [None, 2]
    assert sorted(store.entries) == [("a",), ("b",)]


class _DeletingMap(DictMap):
    def multi_delete(self, keys: Any) -> None:
        for key in keys:
            self.entries.pop(key, None)


def test_a_cache_forgets_a_deleted_key_within_its_commit() -> None:
    store = _DeletingMap({("a",): 1})
    cache = CachedMap(store, 10)
    cache.begin(Txid(1))
    assert cache.multi_get([("a",)]) == [1]
    cache.multi_delete([("a",)])
    assert (cache.multi_get([("a",)]), store.entries) == ([None], {})
