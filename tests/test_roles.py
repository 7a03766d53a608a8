"""What an object does is known once it is of a role: it inherits from the base class, or was adapted where it came in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from states.memory import MemoryBackingMap
from tests.harness.crashing_stores import DictMap, LateMap
from trident.errors import UnsupportedOperation
from trident.roles import adapt
from trident.state import (
    BackingMap,
    CachedMap,
    Key,
    MapFacts,
    MapWrapper,
    OpaqueMap,
    SnapshottableMap,
    State,
    StateFacts,
    StateSpec,
    StoreFacts,
    Txid,
)
from trident.state.backing_map import backing_map
from trident.state.interfaces import state_of

OPTIONAL = ("move_sentinel", "multi_delete", "key_pages", "reset")


class Behind:
    """Passes on whatever it is asked for."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_an_object_that_inherits_from_the_role_is_used_as_it_is() -> None:
    store = MemoryBackingMap[Any]()
    assert backing_map(store) is store
    assert OpaqueMap(store).backing is store


def test_an_object_with_the_two_methods_gets_the_defaults() -> None:
    given = DictMap()
    store = backing_map(given)
    store.multi_put([("a",)], [1])
    assert (store.multi_get([("a",)]), given.entries) == ([1], {("a",): 1})
    assert (store.given, store.facts) == (given, MapFacts())
    assert not any(map(store.offers, OPTIONAL))
    store.begin(Txid(1))
    store.end(Txid(1))
    store.close()
    assert (store.past_caches, store.keeps_attempts()) == (store, True)
    with pytest.raises(UnsupportedOperation, match="a DictMap has no reset"):
        store.reset()


def test_an_object_keeps_the_methods_that_it_has_however_it_comes_by_them() -> None:
    late = LateMap({})
    for store in (backing_map(late), backing_map(Behind(late))):
        store.begin(Txid(1))
        store.multi_put([("a",)], [1])
        assert store.multi_get([("a",)]) == [None]
        store.end(Txid(1))
        assert store.multi_get([("a",)]) == [1]
        late.entries.clear()
    memory = backing_map(Behind(MemoryBackingMap[Any]()))
    assert all(map(memory.offers, OPTIONAL))
    assert memory.facts.commits_atomically


def test_a_method_that_is_none_is_not_there() -> None:
    given: Any = DictMap()
    given.reset = None
    assert not backing_map(given).offers("reset")


def test_an_object_without_the_methods_of_its_role_is_refused() -> None:
    with pytest.raises(TypeError, match="abstract class Behind"):
        adapt(BackingMap, Behind(object()))


def test_facts_are_declared_as_a_record_or_one_by_one() -> None:
    class Says(DictMap):
        facts = MapFacts(shares_keys=True)

    class SaysOne(DictMap):
        shares_keys = True

    assert backing_map(Says()).facts == backing_map(SaysOne()).facts == MapFacts(shares_keys=True)


class Counting(MapWrapper):
    resets = 0

    def reset(self) -> None:
        self.resets += 1
        super().reset()


@pytest.mark.parametrize("around", [MapWrapper, Counting, CachedMap])
def test_a_wrapper_offers_what_the_map_in_it_offers(around: Any) -> None:
    wrapped, bare = around(MemoryBackingMap[Any]()), around(DictMap())
    for method in OPTIONAL:
        assert wrapped.offers(method)
        assert around(wrapped).offers(method), "through two wrappers"
        assert not bare.offers(method)
    assert (wrapped.facts.commits_atomically, bare.facts.commits_atomically) == (True, False)
    with pytest.raises(UnsupportedOperation, match="DictMap has no reset"):
        bare.reset()


def test_what_a_wrapper_does_of_its_own_may_go_on_to_the_map_in_it() -> None:
    store = MemoryBackingMap[Any]()
    store.multi_put([("a",)], [1])
    inner = Counting(store)
    counting = Counting(inner)
    counting.reset()
    assert [counting.resets, inner.resets, len(store)] == [1, 1, 0]


def test_a_wrapper_may_say_otherwise_than_the_map_in_it() -> None:
    torn, elsewhere = MapWrapper(MemoryBackingMap[Any]()), SnapshottableMap(OpaqueMap(DictMap()))
    torn.facts, elsewhere.place = MapFacts(), "elsewhere"
    assert not CachedMap(torn).facts.commits_atomically
    assert elsewhere.place == "elsewhere"


def test_a_state_says_what_its_store_can() -> None:
    fenced, plain = SnapshottableMap(OpaqueMap(MemoryBackingMap[Any]())), SnapshottableMap(OpaqueMap(DictMap()))
    assert (fenced.facts, plain.facts) == (StateFacts(fences=True), StateFacts(can_be_emptied=False))
    assert all(map(fenced.offers, ("multi_get_at", "get_at", "get", "key_pages", "multi_update", "update")))
    assert not any(map(fenced.offers, ("stage", "recorded", "at", "to_dataframe")))


def test_a_state_of_a_user_keeps_its_own_methods_behind_the_role() -> None:
    class Mine:
        kind = "opaque"
        begun = 0

        def begin_commit(self, txid: int) -> None:
            self.begun = txid

        def multi_get(self, keys: Sequence[Key]) -> list[Any]:
            return [self.begun for _ in keys]

    mine = Mine()
    state = state_of(mine)
    state.begin_commit(3)
    assert (state.given, state.kind, state.multi_get([("a",)]), state.written_keys()) == (mine, "opaque", [3], ())
    assert list(map(state.offers, ("multi_get", "begin_commit", "commit", "get"))) == [True, True, False, False]
    assert isinstance(state, State)
    assert type(state).__name__ == "Mine"


def test_a_spec_knows_what_its_factory_says_before_anything_is_opened() -> None:
    class Says:
        facts = StoreFacts(in_memory=True, forgets=True, expires_after_s=60.0)

        def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Any:
            raise AssertionError

    class SaysOneByOne:
        in_memory = forgets = True
        expires_after_s = 60.0
        make_state = Says.make_state

    class SaysNothing:
        make_state = Says.make_state

    said, one_by_one, unsaid = StateSpec(Says()), StateSpec(SaysOneByOne()), StateSpec(SaysNothing())
    assert said.facts == one_by_one.facts == Says.facts
    assert (unsaid.facts, unsaid.kind) == (StoreFacts(), None)
