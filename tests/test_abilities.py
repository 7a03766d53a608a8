"""What an object offers is asked with `isinstance`, however the object comes by it; wrappers offer what they wrap offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pytest

from spouts import FixedBatchSpout, TextFileSpout
from states.delta.map import DeltaBackingMap
from states.memory import MemoryBackingMap
from tests.harness.crashing_stores import DictMap
from trident.ability import Ability
from trident.spout import ITridentSpout
from trident.state import (
    BackingMapLifecycle,
    CachedMap,
    FencedMap,
    IBackingMap,
    Key,
    ListableMap,
    OpaqueMap,
    RemovableMap,
    Resettable,
    SnapshotReadable,
    SnapshottableMap,
    StateSpec,
)
from trident.state.abilities import Closable, place_of
from trident.state.map_abilities import AtomicMap, GivesCopies, abilities_of
from trident.state.wrappers.forwarding import MapWrapper, if_offered


@runtime_checkable
class Named(Ability, Protocol):
    name: str


@runtime_checkable
class NamedAndClosable(Named, Closable, Protocol):
    pass


class Door:
    def __init__(self) -> None:
        self.name = "door"

    def close(self) -> None:
        pass


class Behind:
    """Passes on whatever it is asked for."""

    def __init__(self, inner: object) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Lock(Closable):
    def close(self) -> None:
        pass


def test_an_ability_is_offered_by_all_of_its_members_however_an_object_comes_by_them() -> None:
    door: Any = Door()
    assert isinstance(door, NamedAndClosable)
    assert isinstance(Behind(door), NamedAndClosable)
    assert not isinstance(Behind(object()), Closable)
    assert not isinstance(Lock(), NamedAndClosable)
    assert isinstance(Door, Closable), "a class has its methods"
    door.name = None
    assert isinstance(door, Closable)
    assert not isinstance(door, Named), "what is None is not offered"


def test_a_class_that_implements_an_ability_is_told_from_others_that_offer_it() -> None:
    assert isinstance(Lock(), Lock)
    assert isinstance(Lock(), Closable)
    assert not isinstance(Door(), Lock)


class Plain(MapWrapper):
    def multi_get(self, keys: Sequence[Key]) -> Sequence[Any]:
        return self.inner.multi_get(keys)  # type: ignore[no-any-return]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        self.inner.multi_put(keys, values)


class Counting(Plain):
    resets = 0

    @if_offered
    def reset(self) -> None:
        self.resets += 1
        super().reset()


@pytest.mark.parametrize("around", [Plain, Counting, CachedMap])
def test_a_wrapper_offers_what_the_map_in_it_offers(around: Any) -> None:
    wrapped, bare = around(MemoryBackingMap[Any]()), around(DictMap())
    for ability in (FencedMap, RemovableMap, ListableMap, Resettable):
        assert isinstance(wrapped, ability)
        assert isinstance(around(wrapped), ability), "through two wrappers"
        assert not isinstance(bare, ability)
    assert not hasattr(bare, "reset")
    assert not hasattr(bare, "commits_atomically")
    with pytest.raises(AttributeError, match="DictMap.*reset"):
        bare.reset()


def test_what_a_wrapper_does_of_its_own_may_go_on_to_the_map_in_it() -> None:
    store = MemoryBackingMap[Any]()
    store.multi_put([("a",)], [1])
    counting = Counting(Counting(store))
    counting.reset()
    assert [counting.resets, counting.inner.resets, len(store)] == [1, 1, 0]


def test_a_wrapper_may_say_otherwise_than_the_map_in_it() -> None:
    torn, elsewhere = Plain(MemoryBackingMap[Any]()), SnapshottableMap(OpaqueMap(DictMap()))
    torn.commits_atomically, elsewhere.place = False, "elsewhere"
    assert not abilities_of(torn).is_atomic
    assert place_of(elsewhere) == "elsewhere"


def test_a_member_that_is_none_in_the_map_is_not_offered_by_its_wrapper() -> None:
    store: Any = DictMap()
    store.reset = None
    assert not isinstance(Counting(store), Resettable)
    assert not hasattr(Counting(store), "reset")


def test_all_that_a_map_offers_is_asked_at_once() -> None:
    store = MemoryBackingMap[Any]()
    found = abilities_of(store)
    offered: list[object] = [found.fence, found.removal, found.listing, found.resetting]
    assert offered == [store] * 4
    assert [found.lifecycle, found.closing, found.past_memory, found.current, found.attempts] == [None] * 5
    assert (found.is_atomic, found.gives_copies) == (True, False)
    bare = abilities_of(DictMap())
    assert {*vars(bare).values()} == {None, False}
    assert abilities_of(CachedMap(DictMap())).past_memory is not None


def test_a_spec_knows_what_its_factory_says_before_anything_is_opened() -> None:
    class Says:
        in_memory = forgets = True
        expires_after_s = 60.0

        def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Any:
            raise AssertionError

    class SaysNothing:
        make_state = Says.make_state

    said, unsaid = StateSpec(Says()), StateSpec(SaysNothing())
    assert (said.in_memory, said.forgets, said.kind, said.keeps_attempts) == (True, True, None, None)
    assert (said.expires_after_s, unsaid.expires_after_s) == (60.0, None)
    assert (unsaid.in_memory, unsaid.forgets, unsaid.kind, unsaid.keeps_attempts) == (False, False, None, None)


if TYPE_CHECKING:

    def what_ours_offer(
        memory: MemoryBackingMap[Any],
        delta: DeltaBackingMap,
        cached: CachedMap,
        state: SnapshottableMap,
        lines: TextFileSpout,
        rows: FixedBatchSpout,
    ) -> Iterator[object]:
        """Let mypy compare what our maps, states and spouts have with what the abilities declare."""
        fences: list[FencedMap] = [memory, delta, cached, state, OpaqueMap(memory)]
        atomic: list[AtomicMap] = [memory, delta]
        told: list[BackingMapLifecycle] = [delta, cached]
        copies: list[GivesCopies] = [memory, delta]
        maps: list[IBackingMap[Any]] = [memory, delta, cached]
        snapshots: list[SnapshotReadable] = [state, OpaqueMap(memory)]
        spouts: list[ITridentSpout] = [lines, rows]
        yield from (fences, atomic, told, copies, maps, snapshots, spouts)
