"""What an object does is known once it is of a role: it inherits from the base class, or was adapted where it came in."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isfunction
from typing import Any

import pytest

from states.memory import MemoryBackingMap
from tests.harness.crashing_stores import DictMap, LateMap
from trident.errors import UnsupportedOperation
from trident.roles import Role, adapt, close_on_error
from trident.state import (
    BackingMap,
    CachedMap,
    CodecSerializer,
    Key,
    MapFacts,
    MapWrapper,
    MicroBatchIBackingMap,
    OpaqueMap,
    SerializedMap,
    Snapshot,
    SnapshottableMap,
    State,
    StateFacts,
    StateSpec,
    StoreFacts,
    Txid,
)
from trident.state.backing_map import backing_map
from trident.state.interfaces import STORE_CALLS, state_of
from trident.testing import Faults, FaultyMap

OPTIONAL = ("move_sentinel", "multi_delete", "key_pages", "reset")


def besides(state: State) -> set[str]:
    """Return what a state can do besides: the facts that are not yes or no, and not as they are by default."""
    names = [name for name, usual in vars(StateFacts()).items() if not isinstance(usual, bool)]
    return {name for name in names if getattr(state.facts, name) is not getattr(StateFacts(), name)}


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
    assert (OpaqueMap(given).past_caches.given, store.facts.keeps_attempts()) == (given, True)
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


@pytest.mark.parametrize("around", [MapWrapper, Counting, CachedMap, partial(FaultyMap, faults=Faults())])
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


class Able(DictMap):
    """A store of a user's with all that a map need not have."""

    kept_changes = past_caches = object()
    keeps_attempts = staticmethod(lambda: False)
    commit_with_record = multi_get_opaque = lambda self, given: None


class Own(MapWrapper):
    keeps_attempts = staticmethod(lambda: True)


@pytest.mark.parametrize("around", [MapWrapper, Own, MicroBatchIBackingMap, CachedMap])
@pytest.mark.parametrize("declared", [{}, {"facts": MapFacts(shares_keys=True)}], ids=["undeclared", "declared"])
def test_a_wrapper_neither_hides_nor_invents_what_a_map_can_do_besides(around: Any, declared: Any) -> None:
    able = type("Declares", (Able,), declared)()
    of_able, of_bare = (backing_map(around(around(store))).facts for store in (able, DictMap()))
    assert (of_able.commit_with_record, of_able.kept_changes) == (able.commit_with_record, able.kept_changes)
    assert (of_bare.commit_with_record, of_bare.kept_changes) == (None, None)
    assert (of_able.keeps_attempts(), of_bare.keeps_attempts()) == (around is Own, True)
    # The form of values, and a memory, are those of the outermost map.
    assert of_able.multi_get_opaque is of_bare.multi_get_opaque is None
    assert of_able.past_caches is (able.past_caches if around is CachedMap else None)
    assert of_able.shares_keys is bool(declared)


def test_what_is_behind_several_memories_is_the_store_though_it_is_empty() -> None:
    store = MemoryBackingMap[Any]()
    for each in (store, CachedMap(store), CachedMap(CachedMap(store))):
        assert OpaqueMap(each).past_caches is store
    assert len(store) == 0


class Rich:
    """A map state of a user's, with some of what a state need not have."""

    begin_commit = commit = multi_get = multi_put = multi_update = lambda self, *given: None
    multi_get_at = staticmethod(lambda keys, snapshot: [snapshot.txid for _ in keys])
    recorded = staticmethod(lambda snapshot: snapshot.txid)


@dataclass(frozen=True)
class Heir(Rich, State):  # type: ignore[misc]  # signatures do not matter here
    """The same, frozen, of a class that inherits from the role."""


class Noting(SnapshottableMap):
    recorded = staticmethod(lambda snapshot: -snapshot.txid)


@pytest.mark.parametrize("made", [Rich, Heir])
def test_a_wrapper_neither_hides_nor_invents_what_a_state_can_do_besides(made: Any) -> None:
    mine = made()
    wrapped, noting = (SnapshottableMap(around(mine)) for around in (SnapshottableMap, Noting))
    assert besides(state_of(mine)) == {"multi_get_at", "recorded"}
    assert besides(wrapped) == besides(noting) == {"multi_get_at", "get_at", "recorded"}
    found = [each.facts.recorded for each in (state_of(mine), wrapped, noting)]
    assert [recorded is not None and recorded(Snapshot(3)) for recorded in found] == [3, 3, -3]
    assert (wrapped.multi_get_at([("a",)], Snapshot(2)), wrapped.get_at(Snapshot(2))) == ([2], 2)
    assert not any(map(wrapped.offers, ("reset", "read_sentinel", "multi_remove", "get_tuples")))
    with pytest.raises(AttributeError, match="'stage'"):
        wrapped.stage(Txid(1))


class Polite:
    """What only some can do, added to what the base class does."""

    def share_keys(self) -> Any:
        return "mine", super().share_keys()  # type: ignore[misc]

    def recorded(self, snapshot: Snapshot) -> Any:
        return "mine", super().recorded(snapshot)  # type: ignore[misc]

    def commit_with_record(self, later: Any) -> Any:
        return "mine", super().commit_with_record(later)  # type: ignore[misc]


def test_a_class_of_a_user_may_call_super_for_what_only_some_can_do() -> None:
    class Plain(Polite, State): ...

    class Around(Polite, SnapshottableMap): ...

    class Wrapper(Polite, MapWrapper): ...

    class Values(Polite, OpaqueMap): ...

    class Bytes(SerializedMap):
        def keeps_attempts(self) -> bool:
            return not super().keeps_attempts()

    able, rich = Able(), Rich()  # type: Any, Any
    able.commit_with_record = lambda later: later
    assert not backing_map(Bytes(able, CodecSerializer())).facts.keeps_attempts()
    around, plain, values = state_of(Around(rich)), state_of(Plain()), state_of(Around(Values(Wrapper(able))))
    recorded = [state.facts.recorded(Snapshot(3)) for state in (plain, around, values)]  # type: ignore[func-returns-value]
    assert recorded == [("mine", None), ("mine", 3), ("mine", ("mine", None))]
    shared = [state.facts.share_keys() for state in (plain, around, values)]  # type: ignore[func-returns-value]
    assert shared == [("mine", None), ("mine", None), ("mine", ("mine", None))]
    later: Any = values.facts.commit_with_record
    assert later(7) == ("mine", ("mine", ("mine", 7)))
    with pytest.raises(AttributeError, match="a Around has no 'commit_with_record'"):
        around.commit_with_record(7)  # type: ignore[attr-defined]


def test_what_is_none_or_data_is_not_what_a_state_can_do() -> None:
    class Named(Heir):
        stage, at = "production", 3

    class Hides(SnapshottableMap):
        recorded = multi_get_at = share_keys = None  # type: ignore[assignment]

    rich: Any = Rich()
    named, duck = state_of(Named()), state_of(type("Named", (Rich,), {"stage": "production", "at": 3})())
    assert besides(named) == besides(duck) == besides(state_of(Heir()))
    assert besides(state_of(Hides(rich))) == {"get_at"}


def test_a_state_whose_facts_are_a_property_can_do_what_it_has() -> None:
    class Says(Heir):
        facts = property(lambda self: StateFacts(fences=True))

    says = Says()
    state = state_of(says)
    assert (state.given, state.facts.fences, besides(state)) == (says, True, {"multi_get_at", "recorded"})
    assert list(map(state.offers, ("multi_get", "get", "reset", "close"))) == [True, False, False, False]


def test_what_a_class_gets_later_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert besides(state_of(Heir())) == {"multi_get_at", "recorded"}
    monkeypatch.setattr(Heir, "stage", lambda self, txid: b"%d" % txid, raising=False)
    monkeypatch.setattr(Heir, "commit", later := lambda self, txid: None)
    state = state_of(Heir())
    assert state.facts.stage is not None and state.facts.stage(3) == b"3"  # noqa: PT018
    assert later.__code__ in STORE_CALLS


def test_roles_of_stores_and_states_stay_small() -> None:
    for role, most in ((BackingMap, 9), (State, 14)):
        own = [name for name, member in vars(role).items() if isfunction(member) and name[0] != "_"]
        assert len(own) <= most, own
    assert {name for name in vars(Role) if name[0] != "_"} == {"given", "offers", "close"}


def test_a_wrapper_may_say_otherwise_than_the_map_in_it() -> None:
    torn, elsewhere = MapWrapper(MemoryBackingMap[Any]()), SnapshottableMap(OpaqueMap(DictMap()))
    torn.facts, elsewhere.place = MapFacts(), "elsewhere"
    assert not CachedMap(torn).facts.commits_atomically
    assert elsewhere.place == "elsewhere"


def test_a_state_says_what_its_store_can() -> None:
    fenced, plain = SnapshottableMap(OpaqueMap(MemoryBackingMap[Any]())), SnapshottableMap(OpaqueMap(DictMap()))
    yes = [{name for name, value in vars(each.facts).items() if value is True} for each in (fenced, plain)]
    assert yes == [{"fences", "can_be_emptied"}, set()]
    assert all(map(fenced.offers, ("get", "key_pages", "multi_update", "update")))
    can = "multi_get_at get_at multi_combine multi_update_once share_keys written_keys keeps_attempts"
    assert besides(fenced) == besides(plain) == set(can.split())


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
    assert (state.given, state.kind, state.multi_get([("a",)])) == (mine, "opaque", [3])
    assert state.facts == StateFacts(), "nothing besides"
    assert (state.facts.written_keys(), state.facts.keeps_attempts()) == ((), None)
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


@pytest.mark.parametrize("raised", [ValueError("x"), KeyboardInterrupt(), StopIteration(), GeneratorExit()])
def test_what_is_half_open_is_closed_once_and_what_was_raised_goes_on(raised: BaseException) -> None:
    closed: list[int] = []
    with close_on_error(lambda: closed.append(0)):
        pass
    with pytest.raises(type(raised)) as caught, close_on_error(lambda: closed.append(1)):
        raise raised
    assert caught.value is raised
    assert closed == [1]
