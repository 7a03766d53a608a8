"""What the serializers write, byte by byte, and what they give back."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from states.memory import MemoryBackingMap
from tests.state.faults import DictMap, LateMap, commit
from trident.errors import CorruptValueError
from trident.state import (
    BackingMapLifecycle,
    CodecSerializer,
    FencedMap,
    JSONNonTransactionalSerializer,
    JSONOpaqueSerializer,
    JSONTransactionalSerializer,
    OpaqueValue,
    ReservedKeySentinel,
    Resettable,
    Sentinel,
    SerializedMap,
    StateType,
    TransactionalValue,
    Txid,
    Winners,
    map_for,
)

OPAQUE, TRANSACTIONAL = OpaqueValue(3, 1 << 20, None, 7), TransactionalValue(3, [1.5])
SENTINEL = Sentinel("log", 3, 1 << 20)
BARE = {"a": ["x", 1, 1.0, None, True]}
ALL: list[tuple[Any, Any]] = [
    (CodecSerializer(StateType.OPAQUE), OPAQUE),
    (CodecSerializer(StateType.TRANSACTIONAL), TRANSACTIONAL),
    (CodecSerializer(StateType.NON_TRANSACTIONAL), BARE),
    (JSONOpaqueSerializer(), OPAQUE),
    (JSONTransactionalSerializer(), TRANSACTIONAL),
    (JSONNonTransactionalSerializer(), BARE),
]
KINDS = [(serializer, serializer.kind) for serializer, _ in ALL]
STRICT = [serializer for serializer, kind in KINDS if kind is not StateType.NON_TRANSACTIONAL]


def label(item: object) -> str:
    return f"{type(item).__name__}-{item.kind.value}" if hasattr(item, "kind") else "value"


@pytest.mark.parametrize(("serializer", "value"), ALL, ids=label)
def test_a_stored_value_comes_back(serializer: Any, value: Any) -> None:
    back = serializer.deserialize(serializer.serialize(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("serializer", [serializer for serializer, _ in ALL], ids=label)
def test_a_sentinel_comes_back(serializer: Any) -> None:
    assert Sentinel(*serializer.deserialize(serializer.serialize(SENTINEL))) == SENTINEL


def test_the_layouts_stand() -> None:
    assert JSONOpaqueSerializer().serialize(OPAQUE) == b"[3,1048576,null,7]"
    assert JSONTransactionalSerializer().serialize(TRANSACTIONAL) == b"[3,[1.5]]"
    assert JSONNonTransactionalSerializer().serialize("ž") == '"ž"'.encode()
    assert JSONOpaqueSerializer().serialize(SENTINEL) == b'["log",3,1048576]'
    assert CodecSerializer().serialize(OPAQUE).hex() == "019403ce00100000c007"
    assert CodecSerializer(StateType.TRANSACTIONAL).serialize(TransactionalValue(3, ())).hex() == "019203d40790"


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


def test_json_turns_tuples_into_lists_and_keys_into_text() -> None:
    json = JSONNonTransactionalSerializer()
    assert json.deserialize(json.serialize({1: (2, 3)})) == {"1": [2, 3]}


def test_json_takes_numpy_numbers() -> None:
    assert JSONTransactionalSerializer().serialize(TransactionalValue(1, np.int64(7))) == b"[1,7]"


@pytest.mark.parametrize("value", [math.nan, -math.inf, Decimal("1.1"), b"x", {1}, "\ud800"], ids=repr)
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
    with pytest.raises(CorruptValueError, match=f"not .* {serializer.kind.value} state: .*another kind"):
        serializer.deserialize(data)
    with pytest.raises(CorruptValueError, match="not (Opaque|Transactional)Value"):
        serializer.serialize(fields)


def test_a_long_misfit_is_cut_in_the_message() -> None:
    with pytest.raises(CorruptValueError) as caught:
        CodecSerializer().serialize("x" * 10_000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("serializer", "kind"), KINDS, ids=label)
def test_a_state_over_a_store_of_bytes(serializer: Any, kind: StateType) -> None:
    store = DictMap()
    state = map_for(kind, SerializedMap(store, serializer), "state", 0)
    commit(state, Txid(1, 0, Winners(), "log"), a=5, b=1)
    commit(state, Txid(2, 0, Winners(((1, 0),)), "log", Sentinel("log", 1, 0)), a=7)
    assert state.multi_get([("a",), ("b",), ("c",)]) == [12, 1, None]
    assert {type(data) for data in store.entries.values()} == {bytes}


def test_a_serialized_map_can_what_its_store_can() -> None:
    codec = CodecSerializer()
    plain, able = SerializedMap(DictMap(), codec), SerializedMap(MemoryBackingMap[bytes](), codec)
    assert not isinstance(plain, (FencedMap, Resettable, BackingMapLifecycle))
    assert isinstance(able, FencedMap)
    assert isinstance(able, Resettable)
    assert isinstance(SerializedMap(LateMap({}), codec), BackingMapLifecycle)
    able.move_sentinel(SENTINEL)
    assert able.read_sentinel() == SENTINEL
    ReservedKeySentinel(plain, 0).move_sentinel(SENTINEL)
    assert ReservedKeySentinel(plain, 0).read_sentinel() == SENTINEL


def test_errors_name_the_key_and_a_value_that_cannot_be_written_writes_nothing() -> None:
    store = DictMap({("a",): b"\x01\xff", ("b",): b"?"})
    state = SerializedMap(store, CodecSerializer())
    with pytest.raises(CorruptValueError, match=r"read key \('b',\): decode"):
        state.multi_get([("b",)])
    with pytest.raises(CorruptValueError, match=r"write key \('d',\): encode"):
        state.multi_put([("c",), ("d",)], [OPAQUE, OpaqueValue(1, 0, None, object())])
    assert store.puts == []
