"""What goes into the codec comes out, type and all; what is not its own is refused by name."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections import OrderedDict
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.errors import CorruptValueError
from trident.state import OpaqueValue, decode, encode
from trident.state.codec import plain_number

BERLIN = ZoneInfo("Europe/Berlin")
zones = st.one_of(
    st.none(),
    st.sampled_from([BERLIN, ZoneInfo("UTC"), ZoneInfo("Asia/Kathmandu"), dt.UTC, dt.timezone(dt.timedelta(0), "Z")]),
    st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)).map(dt.timezone),
)
hashable_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**80), 2**80),
    st.floats(),
    st.text(),
    st.binary(),
    st.decimals().filter(lambda number: not number.is_snan()),  # it has no hash
    st.dates(),
    st.datetimes(timezones=zones),
    st.times(timezones=zones),
    st.timedeltas(),
    st.uuids(),
)
nested_hashables = st.recursive(
    hashable_leaves, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6
)


@st.composite
def any_hashable(draw: st.DrawFn) -> Any:
    """Draw one; a function, because the strategy's own name fills pages."""
    return draw(nested_hashables)


hashables = any_hashable()
values = st.recursive(
    hashables,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(hashables, inner, max_size=3)
        | st.sets(hashables, max_size=3)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Whether two values are one in type, value, sign of zero, NaN, exponent, zone and order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, Decimal):
        return bool(a.as_tuple() == b.as_tuple())
    if isinstance(a, (dt.datetime, dt.time)):
        return repr(a) == repr(b) and a.fold == b.fold
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, (set, frozenset)):
        return sorted(map(encode, a)) == sorted(map(encode, b))
    return bool(a == b)


@given(values)
def test_every_value_comes_back(value: Any) -> None:
    data = encode(value)
    assert same(decode(data), value)
    assert encode(decode(data)) == data


GOLDEN: list[tuple[Any, str]] = [
    (None, "01c0"),
    (True, "01c3"),
    (-1, "01ff"),
    (2**63, "01cf8000000000000000"),
    (2**64, "01c70901010000000000000000"),
    (-(2**63) - 1, "01c70901ff7fffffffffffffff"),
    (0.1, "01cb3fb999999999999a"),
    (-0.0, "01cb8000000000000000"),
    (math.inf, "01cb7ff0000000000000"),
    ("žluť", "01a6c5be6c75c5a5"),
    (b"\x00\xff", "01c40200ff"),
    (Decimal("-1.10"), "01c705022d312e3130"),
    (dt.date(2024, 2, 29), "01c7060393cd07e8021d"),
    (dt.datetime(2024, 2, 29, 1, 2, 3, 4), "01c70c0499cd07e8021d0102030400c0"),
    (dt.datetime(2024, 2, 29, tzinfo=dt.UTC), "01c70d0499cd07e8021d00000000009100"),
    (dt.datetime(2024, 10, 27, 2, tzinfo=BERLIN, fold=1), "01c7190499cd07e80a1b0200000001ad4575726f70652f4265726c696e"),
    (dt.time(1, 2, 3, 4), "01c70705960102030400c0"),
    (dt.timedelta(-1, 5, 6), "01d60693ff0506"),
    ((1, "a"), "01d6079201a161"),
    ([1, "a"], "019201a161"),
    ({"a": 1, 2: [()]}, "0182a161010291d40790"),
    ({"b", "a"}, "01c7050892a161a162"),
    (frozenset(), "01d40990"),
    (UUID(int=1), "01d80a00000000000000000000000000000001"),
]


@pytest.mark.parametrize(("value", "data"), GOLDEN, ids=lambda item: str(item)[:30])
def test_the_bytes_of_version_1_stand(value: Any, data: str) -> None:
    assert encode(value).hex() == data
    assert same(decode(bytes.fromhex(data)), value)


def test_nan_comes_back() -> None:
    assert math.isnan(decode(encode(math.nan)))
    assert same(decode(encode(Decimal("-sNaN123"))), Decimal("-sNaN123"))


def test_a_named_zone_offset_keeps_its_name_and_a_foreign_zone_its_offset() -> None:
    named = dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2), "CEST"))
    assert decode(encode(named)).tzname() == "CEST"

    class Summer(dt.tzinfo):
        def utcoffset(self, when: dt.datetime | None) -> dt.timedelta | None:
            return None if when is None else dt.timedelta(hours=2)

        def tzname(self, when: dt.datetime | None) -> str:
            return "summer"

        def dst(self, when: dt.datetime | None) -> None:
            return None

    back = decode(encode(dt.datetime(2024, 1, 1, tzinfo=Summer())))
    assert back.utcoffset() == dt.timedelta(hours=2)
    assert type(back.tzinfo) is dt.timezone
    with pytest.raises(CorruptValueError, match="has no offset without a date"):
        encode(dt.time(1, tzinfo=Summer()))


def test_a_named_tuple_is_encoded_as_the_plain_tuple() -> None:
    assert encode(OpaqueValue(1, 2, None, "x")) == encode((1, 2, None, "x"))


@pytest.mark.parametrize(
    ("number", "plain"),
    [
        (np.int64(-7), -7),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.int8(1), 1),
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
    ],
)
def test_numpy_scalars_are_the_numbers_that_they_hold(number: Any, plain: Any) -> None:
    assert same(decode(encode([number])), [plain])
    assert same(plain_number(number), plain)


class Custom:
    """No value of this type can be stored."""


@pytest.mark.parametrize(
    "value",
    [Custom(), OrderedDict(a=1), np.array([1]), np.datetime64("2024-01-01"), np.longdouble(1), object, 1j],
    ids=lambda value: type(value).__name__,
)
def test_an_unknown_type_is_named_with_the_way_out(value: Any) -> None:
    name = "test_codec.Custom" if isinstance(value, Custom) else type(value).__name__
    with pytest.raises(CorruptValueError, match=rf"encode a .*{name}: only None, bool.*serializer of your own"):
        encode([{"key": value}])


def test_text_with_lone_surrogates_is_refused() -> None:
    with pytest.raises(CorruptValueError, match=r"encode text 'a\\ud800': it has a lone surrogate at position 1"):
        encode({"a": ["a\ud800"]})


def test_nesting_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CorruptValueError, match="encode a list: it is too large or nested too deeply"):
        encode(endless)
    deep: Any = ()
    for _ in range(5000):
        deep = (deep,)
    with pytest.raises(CorruptValueError, match="encode a tuple: it is too large or nested too deeply"):
        encode(deep)


@pytest.mark.parametrize("data", [b"", b"\x02\xc0", b"[1, 2]", b"\x80\x04K\x01."], ids=repr)
def test_bytes_of_another_version_or_program_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptValueError, match="a stored value starts with byte 1"):
        decode(data)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x92\x01",  # a list that is cut off
        b"\xc0\xc0",  # two values
        b"\xc1",  # never used by MessagePack
        b"\xa1\xff",  # not UTF-8
        b"\xdd\xff\xff\xff\xff",  # a list of 4 G items
        b"\x81\x90\x01",  # a dict whose key is a list
        msgpack.packb(msgpack.ExtType(99, b"")),
        msgpack.packb(msgpack.ExtType(2, b"1.1.1")),
        msgpack.packb(msgpack.ExtType(2, b"\xff")),
        msgpack.packb(msgpack.ExtType(3, msgpack.packb([2024, 13, 1]))),
        msgpack.packb(msgpack.ExtType(4, msgpack.packb([2024]))),
        msgpack.packb(msgpack.ExtType(4, msgpack.packb([2024, 1, 1, 0, 0, 0, 0, 0, "No/Where"]))),
        msgpack.packb(msgpack.ExtType(4, msgpack.packb([2024, 1, 1, 0, 0, 0, 0, 0, "../../etc/passwd"]))),
        msgpack.packb(msgpack.ExtType(6, msgpack.packb([10**12, 0, 0]))),
        msgpack.packb(msgpack.ExtType(7, b"\x01")),
        msgpack.packb(msgpack.ExtType(8, b"\x91\x90")),
        msgpack.packb(msgpack.ExtType(10, b"short")),
        b"\x91" * 5000 + b"\xc0",
    ],
    ids=lambda body: repr(body)[:40],
)
def test_damaged_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(CorruptValueError, match=r"damaged or cut off \(.+\)"):
        decode(b"\x01" + body)


STORABLE = (
    type(None), bool, int, float, str, bytes, Decimal, dt.date, dt.time, dt.timedelta, UUID, tuple, list, dict, set,
    frozenset,
)  # fmt: skip


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        value = decode(b"\x01" + data)
    except CorruptValueError:
        return  # any other error fails the test
    assert isinstance(value, STORABLE)
