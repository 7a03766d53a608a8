"""Wrappers that only forward: SnapshottableMap, MicroBatchIBackingMap, and the spec made by map_state."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from states.memory import MemoryBackingMap, MemoryData
from tests.harness.crashing_stores import DictMap, commit
from trident.errors import ConfigError, UnsupportedOperation
from trident.state import (
    CachedMap,
    IBackingMap,
    MapStateFactory,
    MicroBatchIBackingMap,
    NonTransactionalMap,
    OpaqueMap,
    Snapshot,
    SnapshottableMap,
    StateConf,
    StateType,
    TransactionalMap,
    map_state,
)
from trident.testing.backend.schedules import Add


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
    with pytest.raises(
        ConfigError, match="state kind 'exact' is unknown; use one of 'non-transactional', 'transactional'"
    ):
        map_state(open_backing, "exact")
    with pytest.raises(ConfigError, match="state kind 3 is unknown"):
        map_state(open_backing, 3)  # type: ignore[arg-type]  # a mistake that users make
    with pytest.raises(ConfigError, match="cache=-1 and num_partitions=None"):
        map_state(open_backing, cache=-1)
    with pytest.raises(ConfigError, match="num_partitions=0"):
        map_state(open_backing, num_partitions=0)
