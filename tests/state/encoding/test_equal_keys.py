"""Keys as bytes: equal keys are one sequence of bytes, different keys are different ones, and NaN is one key."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from states.memory import MemoryBackingMap
from tests.harness.crashing_stores import DictMap
from tests.state.samples import hashables, mostly, outcome, same
from trident.errors import CorruptValueError, WrongKeyError
from trident.fields import Fields
from trident.runtime.steps.key_columns import partition_of, partitions_of
from trident.state import CodecSerializer, Key, OpaqueMap, SerializedMap, Snapshot, StateType, map_for
from trident.state.encoding.codec import decode_keys, encode, encode_keys
from trident.state.encoding.equal_keys import canonical_key, canonical_keys, declared_keys
from trident.testing.backend.schedules import Add

keys = st.one_of(st.text().map(lambda text: (text,)), st.lists(hashables, max_size=3).map(tuple))
OTHER_NAN = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]


@given(st.lists(keys, max_size=5))
def test_keys_come_back_in_their_one_form(several: list[Key]) -> None:
    data = encode_keys(several)
    back = decode_keys(data)
    assert same(back, [canonical_key(key) for key in several])
    assert encode_keys(back) == data


@given(keys, keys)
def test_two_keys_have_the_same_bytes_exactly_if_they_are_the_same_in_their_one_form(one: Key, other: Key) -> None:
    equal = encode_keys([one]) == encode_keys([other])
    assert equal == same(canonical_key(one), canonical_key(other))
    assert encode_keys([one, other]) == encode_keys([one]) + encode_keys([other])


DAY = dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (math.nan, OTHER_NAN),
        (math.nan, -math.nan),
        (Decimal("1.10"), Decimal("1.1")),
        (Decimal("100"), Decimal("1E+2")),
        (Decimal("0E-10"), Decimal("-0")),
        (Decimal("1" * 38 + ".0"), Decimal("1" * 38)),
        (DAY, DAY.astimezone(ZoneInfo("Europe/Berlin"))),
        (DAY, DAY.astimezone(dt.timezone(dt.timedelta(hours=-9)))),
        (dt.datetime(2024, 10, 27, 2, 30), dt.datetime(2024, 10, 27, 2, 30, fold=1)),
        ((0.0, Decimal("2.0")), (-0.0, Decimal("2"))),
        (frozenset([0.0]), frozenset([-0.0])),
        (1, np.int64(1)),
        (0.0, np.float32(-0.0)),
        (b"x", bytearray(b"x")),
    ],
    ids=repr,
)
def test_equal_keys_are_one_key_in_one_partition(one: Any, other: Any) -> None:
    first, second = encode_keys([(one, "x"), (other, "x")])
    assert first == second
    assert partition_of((one, "x"), 10_007) == partition_of((other, "x"), 10_007)


@given(st.lists(keys, max_size=5))
def test_many_keys_are_in_the_partition_of_each(several: list[Key]) -> None:
    expected: dict[int, list[int]] = {}
    for at, key in enumerate(several):
        expected.setdefault(partition_of(key, 3), []).append(at)
    assert partitions_of(several, 3) == expected


def test_keys_of_different_types_or_shapes_are_different_keys() -> None:
    parts: list[Any] = [1, 1.0, True, Decimal(1), "1", b"1", None, dt.date(1, 1, 1), dt.datetime(1, 1, 1)]
    parts += [0, 0.0, False, Decimal(0), "", b"", (), (None,), frozenset(), UUID(int=0), dt.timedelta(0), dt.time(0)]
    parts += [math.inf, -math.inf, math.nan, 1 << 64, ("a", "b")]
    shapes: list[Key] = [(), ("a", "b"), ("ab",), ("a", "", "b"), ("a", None), (None, "a"), ("a\x00b",), (("a",), "b")]
    several = [(part,) for part in parts] + shapes
    data = encode_keys(several)
    assert len(set(data)) == len(several)
    assert same(decode_keys(data), several)


def test_keys_that_have_one_form_only_are_left_alone() -> None:
    plain: list[Key] = [("a", 1, b"x", None, True), (dt.date(2024, 1, 1), dt.timedelta(1))]
    assert canonical_keys(plain) is plain
    assert same(canonical_keys([(-0.0,)]), [(0.0,)])


@pytest.mark.parametrize(
    "bad",
    [object(), "\ud800", Decimal("sNaN"), dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=1)))],
    ids=lambda bad: type(bad).__name__,
)
def test_a_key_without_an_encoding_is_named(bad: object) -> None:
    if isinstance(bad, Decimal):
        assert decode_keys(encode_keys([(bad,)]))[0][0].is_snan()
        return
    with pytest.raises(CorruptValueError, match=r"encode key \('k', .*\): "):
        encode_keys([("a", 1), ("k", bad)])


@pytest.mark.parametrize("type_", ["double", "float", "bigint", "tinyint", "decimal(10,2)"])
def test_a_signaling_nan_is_refused_as_a_key(type_: str) -> None:
    with pytest.raises(WrongKeyError, match="signaling NaN is no value"):
        declared_keys([(Decimal("sNaN"),)], Fields(f"n: {type_}"), "state")


def test_a_text_that_no_store_can_hold_is_refused_as_a_key() -> None:
    keys = [("\ud83d\ude00", 1), ("a", 2)]
    with pytest.raises(WrongKeyError, match="it has a lone surrogate"):
        declared_keys(keys, Fields("word: string, n: int"), "state")
    good = [("\U0001f600", 1), (None, 2)]
    assert declared_keys(good, Fields("word: string, n: int"), "state") is good


@pytest.mark.parametrize("year", [1, 9999])
def test_a_moment_that_python_does_not_have_in_utc_is_refused_by_name(year: int) -> None:
    ends = {1: dt.datetime.min, 9999: dt.datetime.max}
    key = (ends[year].replace(tzinfo=dt.timezone(dt.timedelta(hours=1 if year == 1 else -1))),)
    with pytest.raises(CorruptValueError, match=r"key \(datetime.datetime\(.*: date value out of range in UTC"):
        map_for(StateType.OPAQUE, DictMap(), "state", 0).multi_get([key])
    with pytest.raises(
        WrongKeyError, match="expected a value of type timestamp for 'at', got .*date value out of range"
    ):
        declared_keys([key], Fields("at: timestamp"), "state")


@pytest.mark.slow
@given(mostly(st.one_of(keys, keys.filter(lambda key: len(key) == 2)).map(lambda key: encode_keys([key])[0])))
def test_damaged_keys_are_refused_as_each_is(data: list[bytes]) -> None:
    together = outcome(lambda: decode_keys(data))
    assert same(together, outcome(lambda: [key for one in data for key in decode_keys([one])]))


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x02\x90", b"\x01\xc0", encode("text"), encode({"a": 1}), encode((1,))]
)
def test_bytes_that_are_no_key_are_refused(data: bytes) -> None:
    for several in ([data], [data, *encode_keys([("a",)])], [*encode_keys([("a",)]), data]):
        with pytest.raises(CorruptValueError, match="decode b"):
            decode_keys(several)


# ---- NaN, which is not equal to itself -------------------------------------------------------------------------------

STORES = [DictMap, MemoryBackingMap, lambda: SerializedMap(DictMap(), CodecSerializer())]


def nan() -> float:
    """Return a NaN that is an object of its own."""
    return float("nan")


@pytest.mark.parametrize("open_store", STORES)
def test_nan_is_one_key_of_an_opaque_state(open_store: Any) -> None:
    state = OpaqueMap(open_store())
    for txid in (1, 2, 3):
        state.begin_commit(txid)
        assert state.multi_update([(nan(), "x"), (1.5, "x")], [Add(1), Add(1)]) == [txid, txid]
        state.commit(txid)
    assert state.multi_get([(nan(), "x"), (nan(), "y")]) == [3, None]
    assert state.multi_get_at([(OTHER_NAN, "x")], Snapshot(2)) == [2]


@pytest.mark.parametrize("kind", list(StateType))
def test_nan_is_one_key_within_a_commit(kind: StateType) -> None:
    state = map_for(kind, MemoryBackingMap(), "state", 0)
    state.begin_commit(1)
    assert state.multi_update([(nan(),)], [Add(1)]) == [1]
    assert state.multi_update([(nan(),)], [Add(1)]) == [2]
    assert state.multi_get([(nan(),)]) == [2]
    with pytest.raises(ValueError, match=r"key \(nan,\) occurs more than once"):
        state.multi_update([(nan(),), (OTHER_NAN,)], [Add(1), Add(1)])
    state.commit(1)
    assert state.multi_get([(nan(),)]) == [2]
