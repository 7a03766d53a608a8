"""State in memory: where the data live, who may write them, what is removed, and what an LRU forgets."""

import dataclasses
import pickle
from functools import partial
from typing import Any

import pytest

from states.memory import LRUMemoryMapState, MemoryMap, MemoryMapState
from tests.harness.crashing_stores import commit
from trident.errors import ConfigError, UnsupportedOperation
from trident.state import StateConf, StateType
from trident.testing.backend.schedules import Add

CONF = StateConf("shop", "counts")
KINDS = list(StateType)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)


def open_state(kind: StateType = StateType.OPAQUE) -> MemoryMap:
    return MemoryMapState(kind=kind).make_state(CONF, 0, 1)


@every_kind
@pytest.mark.parametrize("made", [MemoryMapState, partial(LRUMemoryMapState.Factory, 2)], ids=["all", "lru"])
def test_data_belong_to_the_factory_and_survive_the_state_object(kind: StateType, made: Any) -> None:
    factory = made(kind=kind)
    commit(factory.make_state(CONF, 0, 2), 1, a=5)
    again = pickle.loads(pickle.dumps(factory))
    assert again.make_state(CONF, 0, 2).multi_get([("a",)]) == [5]
    assert again.make_state(CONF, 1, 2).multi_get([("a",)]) == [5]
    assert again.make_state(StateConf("shop", "sums"), 0, 2).multi_get([("a",)]) == [None]
    assert made(kind=kind).make_state(CONF, 0, 2).multi_get([("a",)]) == [None]


def test_factories_of_one_id_share_their_data() -> None:
    commit(MemoryMapState("test-shared").make_state(CONF, 0, 1), 1, a=5)
    assert MemoryMapState("test-shared").make_state(CONF, 0, 1).multi_get([("a",)]) == [5]


def test_it_is_also_a_single_value() -> None:
    state = open_state()
    state.begin_commit(1)
    state.update(Add(3))
    state.commit(1)
    assert state.get() == 3
    assert list(state.get_tuples()) == [("$MEMORY-MAP-STATE-GLOBAL$", 3)]


def test_it_cannot_be_opened_in_another_process() -> None:
    elsewhere = dataclasses.replace(MemoryMapState(), home="another process")
    with pytest.raises(UnsupportedOperation, match="open memory state 'shop/counts' in process .*in the driver"):
        elsewhere.make_state(CONF, 0, 1)


def test_partitions_share_the_keys_and_another_number_of_them_finds_the_same() -> None:
    factory = MemoryMapState()
    commit(factory.make_state(CONF, 1, 3), 1, a=1)
    commit(factory.make_state(CONF, 2, 3), 1, b=2)
    for partitions in (3, 5, 1):
        for partition in range(partitions):
            assert factory.make_state(CONF, partition, partitions).multi_get([("a",), ("b",)]) == [1, 2]
    assert [factory.make_state(CONF, partition, 3).read_sentinel() for partition in range(3)] == [None] * 3
    factory.make_state(CONF, 0, 3).reset()
    assert factory.make_state(CONF, 1, 3).multi_get([("a",)]) == [None]


def test_an_lru_keeps_its_number_of_entries_for_each_partition() -> None:
    factory = LRUMemoryMapState(2)
    for partition, (first, then) in enumerate([("a", "b"), ("c", "d"), ("e", "f")]):
        commit(factory.make_state(CONF, partition, 3), 1, **{first: 1, then: 2})
    keys = [(key,) for key in "abcdef"]
    assert factory.make_state(CONF, 0, 3).multi_get(keys) == [1, 2] * 3
    commit(factory.make_state(CONF, 0, 1), 2, g=3)
    assert factory.make_state(CONF, 0, 1).multi_get([*keys, ("g",)]) == [None] * 5 + [2, 3]


@every_kind
def test_an_lru_forgets_the_keys_used_longest_ago(kind: StateType) -> None:
    state = LRUMemoryMapState(2, kind=kind).make_state(CONF, 0, 1)
    commit(state, 1, a=5, b=1)
    state.multi_get([("a",)])
    commit(state, 2, c=1)
    assert state.multi_get([("a",), ("b",), ("c",)]) == [5, None, 1]
    assert commit(state, 3, b=1) == [1]


def test_an_lru_batch_larger_than_the_state_adds_up_while_it_lasts() -> None:
    state = LRUMemoryMapState(2).make_state(CONF, 0, 1)
    state.begin_commit(1)
    keys = [(n,) for n in range(5)]
    assert state.multi_update(keys, [Add(1)] * 5) == [1, 1, 1, 1, 1]
    assert state.multi_update(keys, [Add(1)] * 5) == [2, 2, 2, 2, 2]
    state.multi_remove(keys)
    state.commit(1)
    assert len(state.data.values.entries) == 2


def test_an_lru_needs_room() -> None:
    with pytest.raises(ConfigError, match="max_size=0 of an LRUMemoryMapState: give a whole number of at least 1"):
        LRUMemoryMapState(0)
