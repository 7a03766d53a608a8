"""What the serializers write, byte by byte, and what they give back."""

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.crashing_stores import DictMap, WithoutAttempts, commit
from tests.state.samples import mostly, outcome, recut, same
from trident.errors import ConfigError, CorruptValueError
from trident.state import (
    CodecSerializer,
    JSONNonTransactionalSerializer,
    JSONOpaqueSerializer,
    JSONTransactionalSerializer,
    OpaqueValue,
    Sentinel,
    SerializedMap,
    Snapshot,
    StateType,
    TransactionalValue,
    Txid,
    Winners,
    encode,
    map_for,
)
from trident.state.encoding.serializers import keeps_attempts, serializer_for
from trident.state.values import UNKNOWN_ATTEMPT
from trident.testing.backend.schedules import Add

A = 1 << 20
OPAQUE, TRANSACTIONAL = OpaqueValue(3, A, None, 7), TransactionalValue(3, [1.5])
BARE = {"a": ["x", 1, 1.0, None, True]}
ALL: list[tuple[Any, Any]] = [
    (CodecSerializer(StateType.OPAQUE), OPAQUE),
    (CodecSerializer(StateType.TRANSACTIONAL), TRANSACTIONAL),
    (CodecSerializer(StateType.NON_TRANSACTIONAL), BARE),
    (JSONOpaqueSerializer(), OPAQUE),
    (JSONTransactionalSerializer(), TRANSACTIONAL),
    (JSONNonTransactionalSerializer(), BARE),
]
STRICT = [serializer for serializer, _ in ALL if serializer.kind is not StateType.NON_TRANSACTIONAL]


def label(item: object) -> str:
    return f"{type(item).__name__}-{item.kind.value}" if hasattr(item, "kind") else "value"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, json_values)
def test_json_keeps_what_json_has(prev: Any, curr: Any) -> None:
    stored, serializer = OpaqueValue(1, 2, prev, curr), JSONOpaqueSerializer()
    back = serializer.deserialize(serializer.serialize(stored))
    assert back == stored
    assert repr(back) == repr(stored)


def test_json_turns_tuples_into_lists() -> None:
    json = JSONNonTransactionalSerializer()
    assert json.deserialize(json.serialize({"1": (2, 3)})) == {"1": [2, 3]}


def test_json_takes_numpy_numbers() -> None:
    assert JSONTransactionalSerializer().serialize(TransactionalValue(1, np.int64(7))) == b"[1,7]"


@pytest.mark.parametrize("value", [math.nan, -math.inf, Decimal("1.1"), b"x", {1}, "\ud800", [{1: 2}]], ids=repr)
def test_json_refuses_what_it_would_change(value: Any) -> None:
    with pytest.raises(CorruptValueError, match="write OpaqueValue as JSON: .*use CodecSerializer"):
        JSONOpaqueSerializer().serialize(OpaqueValue(1, 0, None, value))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"[1,0,null,NaN]", b"[" * 10_000], ids=lambda data: repr(data)[:20]
)
def test_json_that_is_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptValueError, match=r"read .* as JSON: .*another serializer wrote it"):
        JSONOpaqueSerializer().deserialize(data)


@pytest.mark.parametrize("serializer", STRICT, ids=label)
@pytest.mark.parametrize(
    "fields", [7, [1], [1, 5, 3], ["a", 1, 2.0], ["x", 0, 1, 2], [True, 0, 1, 2], ["x", 1]], ids=repr
)
def test_a_value_of_another_kind_is_refused(serializer: Any, fields: Any) -> None:
    bare = CodecSerializer if isinstance(serializer, CodecSerializer) else JSONNonTransactionalSerializer
    data = (bare(StateType.NON_TRANSACTIONAL) if bare is CodecSerializer else bare()).serialize(fields)
    form = {StateType.OPAQUE: "txid, attempt, prev, curr", StateType.TRANSACTIONAL: "txid, value"}[serializer.kind]
    said = rf"not \[{form}\] of an? {serializer.kind.value} state: .*another kind"
    with pytest.raises(CorruptValueError, match=said):
        serializer.deserialize(data)
    with pytest.raises(CorruptValueError, match="not (Opaque|Transactional)Value"):
        serializer.serialize(fields)


def test_a_long_misfit_is_cut_in_the_message() -> None:
    with pytest.raises(CorruptValueError) as caught:
        CodecSerializer().serialize("x" * 10_000)
    assert len(str(caught.value)) < 400


def test_errors_name_the_key_and_a_value_that_cannot_be_written_writes_nothing() -> None:
    store = DictMap({("a",): b"\x01\xff", ("b",): b"?"})
    state = SerializedMap(store, CodecSerializer())
    with pytest.raises(CorruptValueError, match=r"read key \('b',\): decode"):
        state.multi_get([("b",)])
    with pytest.raises(CorruptValueError, match=r"write key \('d',\): encode"):
        state.multi_put([("c",), ("d",)], [OPAQUE, OpaqueValue(1, 0, None, object())])
    assert store.puts == []


CODECS = [CodecSerializer(kind) for kind in StateType]
ATTEMPTS = st.integers(0, 3) | st.just(A)
small = st.none() | st.integers() | st.text(max_size=4) | st.binary(max_size=4) | st.tuples(st.booleans(), st.dates())
opaque_values = st.builds(OpaqueValue, st.integers(0, 9), ATTEMPTS, small, small)
transactional_values = st.builds(TransactionalValue, st.integers(0, 9), small)
sentinels = st.builds(Sentinel, st.text(max_size=4), st.integers(0, 9), ATTEMPTS)
anything = st.one_of(opaque_values, transactional_values, sentinels, small)
stored_bytes = st.one_of(
    opaque_values.map(list), opaque_values.map(list), transactional_values.map(list), sentinels.map(list), small
).map(encode)


@pytest.mark.parametrize("serializer", CODECS, ids=label)
@given(several=st.lists(opaque_values) | st.lists(transactional_values) | st.lists(anything, max_size=4))
def test_many_are_serialized_or_refused_as_each_is(serializer: CodecSerializer, several: list[Any]) -> None:
    together = outcome(lambda: serializer.serialize_many(several))
    assert together == outcome(lambda: [serializer.serialize(obj) for obj in several])


@pytest.mark.parametrize("serializer", CODECS, ids=label)
@given(
    data=st.lists(opaque_values.map(list).map(encode))
    | mostly(stored_bytes)
    | recut(opaque_values.map(list).map(encode), 2)
)
def test_many_are_deserialized_or_refused_as_each_is(serializer: CodecSerializer, data: list[bytes]) -> None:
    together = outcome(lambda: serializer.deserialize_many(data))
    assert same(together, outcome(lambda: [serializer.deserialize(one) for one in data]))


@given(mostly(opaque_values.map(list).map(encode) | sentinels.map(list).map(encode)), st.data())
def test_a_map_reads_many_as_it_reads_one_and_names_the_first_that_is_bad(
    data: list[bytes], more: st.DataObject
) -> None:
    stored: dict[Any, Any] = {(at,): one for at, one in enumerate(data)}
    keys = more.draw(st.permutations([*stored, ("absent",), ("missing",)]))
    state = SerializedMap(DictMap(stored), CodecSerializer())
    assert same(outcome(lambda: state.multi_get(keys)), outcome(lambda: [state.multi_get([key])[0] for key in keys]))


class Named(CodecSerializer):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind  # type: ignore[assignment]


def test_a_serializer_of_ones_own_says_its_kind_by_name_too() -> None:
    own = Named("opaque")
    assert serializer_for(own, StateType.OPAQUE) is own
    with pytest.raises(ConfigError, match="a Named of kind opaque was given to a state that is transactional"):
        serializer_for(own, StateType.TRANSACTIONAL)
    with pytest.raises(ConfigError, match="state kind 'any' is unknown"):
        serializer_for(Named("any"), StateType.OPAQUE)


class Fixed(CodecSerializer):
    """Cannot write None, as one of numbers only."""

    def serialize(self, obj: Any) -> bytes:
        return super().serialize(obj._replace(curr=obj.curr + 0))


def test_whether_a_serializer_keeps_the_attempt_is_tried() -> None:
    found = {type(one): keeps_attempts(one) for one in (CodecSerializer(), JSONOpaqueSerializer(), Fixed())}
    assert set(found.values()) == {True}
    assert keeps_attempts(WithoutAttempts()) is False


class Counting:
    """A serializer that knows only one at a time, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def serialize(self, obj: Any) -> bytes:
        self.calls += 1
        return encode(list(obj))

    def deserialize(self, data: bytes) -> Any:
        self.calls += 1
        return CodecSerializer().deserialize(data)


class CountingMany(Counting, CodecSerializer):
    """One that also knows many at once."""

    def __init__(self) -> None:
        Counting.__init__(self)
        CodecSerializer.__init__(self)


@pytest.mark.parametrize(("serializer", "calls"), [(Counting(), 6), (CountingMany(), 0)], ids=["one", "many"])
def test_a_map_serializes_many_at_once_where_the_serializer_can(serializer: Any, calls: int) -> None:
    state = SerializedMap(DictMap(), serializer)
    keys = [("a",), ("b",), ("c",)]
    state.multi_put(keys, [OPAQUE] * 3)
    assert state.multi_get([*keys, ("d",)]) == [OPAQUE, OPAQUE, OPAQUE, None]
    assert serializer.calls == calls


@pytest.mark.parametrize(
    ("name", "kind", "cls"),
    [
        ("json", StateType.OPAQUE, JSONOpaqueSerializer),
        ("json", StateType.TRANSACTIONAL, JSONTransactionalSerializer),
        ("json", StateType.NON_TRANSACTIONAL, JSONNonTransactionalSerializer),
        *(("codec", kind, CodecSerializer) for kind in StateType),
    ],
)
def test_serializers_have_names(name: str, kind: StateType, cls: type[Any]) -> None:
    serializer: Any = serializer_for(name, kind)
    assert type(serializer) is cls
    assert serializer.kind is kind
    assert serializer_for(serializer, kind) is serializer


def test_a_serializer_that_does_not_fit_is_refused() -> None:
    own = Counting()
    assert serializer_for(own, StateType.TRANSACTIONAL) is own
    with pytest.raises(ConfigError, match="serializer 'pickle' is unknown; use one of 'codec', 'json', or"):
        serializer_for("pickle", StateType.OPAQUE)
    bad: Any = object()
    with pytest.raises(ConfigError, match=r"has no serialize\(obj\) and deserialize\(data\)"):
        serializer_for(bad, StateType.OPAQUE)
    said = "a CodecSerializer of kind opaque was given to a state that is transactional"
    with pytest.raises(ConfigError, match=said):
        serializer_for(CodecSerializer(), StateType.TRANSACTIONAL)


def test_a_value_without_attempt_counts_as_committed_whatever_the_log_knows() -> None:
    winners = Winners(((1, A),))
    value = OpaqueValue(3, UNKNOWN_ATTEMPT, 5, 12)
    assert [value.at(Snapshot(txid, winners)) for txid in (2, 3, 4)] == [5, 12, 12]
    state = map_for(StateType.OPAQUE, DictMap({("a",): value, ("b",): value}), "state", 0)
    state.begin_commit(Txid(3, A, winners))
    assert state.multi_update([("a",)], [Add(1)]) == [6]
    state.begin_commit(Txid(4, A, winners))
    assert state.multi_update([("b",)], [Add(1)]) == [13]


def run(serializer: Any, *commits: tuple[int, int, dict[str, int]]) -> Any:
    """Make commits `(txid, attempt, increments)` over a store of bytes; the last attempt of a txid is its winner."""
    state = map_for(StateType.OPAQUE, SerializedMap(DictMap(), serializer), "state", 0)
    winners = Winners()
    for at, (txid, attempt, increments) in enumerate(commits):
        commit(state, Txid(txid, attempt, winners), **increments)
        if at + 1 == len(commits) or commits[at + 1][0] != txid:
            winners = winners.with_winner(txid, attempt)
    return state


EXACT, WEAK = [JSONOpaqueSerializer(), CodecSerializer()], WithoutAttempts()


@pytest.mark.parametrize(("serializer", "count"), [*((each, 6) for each in EXACT), (WEAK, 13)])
def test_a_replay_without_a_key_is_exact_unless_no_attempt_is_stored(serializer: Any, count: int) -> None:
    state = run(serializer, (1, 0, {"a": 5}), (2, 0, {"a": 7}), (2, 1, {"z": 1}), (3, 1, {"a": 1}))
    assert state.multi_get([("a",), ("z",)]) == [count, 1]


@pytest.mark.parametrize("fields", [["a", 0, 1, 2], [1, "a", 1, 2], [True, 0, 1, 2], [1, 0.0, 1, 2]], ids=repr)
def test_a_list_of_another_meaning_among_many_is_refused(fields: list[Any]) -> None:
    data = [encode([1, 0, 1, 2]), encode(fields)]
    with pytest.raises(CorruptValueError, match="not .* of an opaque state: .*another kind"):
        CodecSerializer().deserialize_many(data)
    with pytest.raises(CorruptValueError, match="not .* of a transactional state: .*another kind"):
        CodecSerializer(StateType.TRANSACTIONAL).deserialize_many([encode([1, 0]), encode(["a", 0])])
