"""What goes into the codec comes out, type and all; what is not its own is refused by name."""

from __future__ import annotations

import datetime as dt
import math
from collections import OrderedDict
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state.samples import mostly, outcome, recut, same, values
from trident.errors import CorruptValueError
from trident.state import OpaqueValue, decode, encode
from trident.state.encoding import codec
from trident.state.encoding.codec import decode_columns, decode_many, encode_lists, encode_many, encode_tuples
from trident.types import plain_number


@pytest.mark.slow
@given(values)
def test_every_value_comes_back(value: Any) -> None:
    data = encode(value)
    assert same(decode(data), value)
    assert encode(decode(data)) == data


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


# ---- many at once ----------------------------------------------------------------------------------------------------

small = st.none() | st.integers() | st.text(max_size=9) | st.binary(max_size=9) | st.tuples(st.booleans(), st.dates())
pairs = st.lists(small, min_size=2, max_size=2).map(encode)
encoded = st.one_of(values.map(encode), small.map(encode), pairs)


@pytest.mark.slow
@given(st.lists(values, max_size=4))
def test_many_are_encoded_as_each_is(several: list[Any]) -> None:
    assert encode_many(several) == [encode(value) for value in several]
    assert encode_lists([(value, 1) for value in several]) == [encode([value, 1]) for value in several]
    assert encode_tuples([[value, 1] for value in several]) == [encode((value, 1)) for value in several]
    assert encode_tuples([several]) == [encode(tuple(several))]


@pytest.mark.parametrize("bad", [object(), "\ud800", 1j], ids=["object", "surrogate", "complex"])
def test_many_with_one_that_cannot_be_encoded_are_refused_as_that_one_is(bad: object) -> None:
    with pytest.raises(CorruptValueError) as alone:
        encode(bad)
    for many in ([1, bad, 2], [bad]):
        with pytest.raises(CorruptValueError) as among:
            encode_many(many)
        assert str(among.value) == str(alone.value)
    with pytest.raises(CorruptValueError):
        encode_lists([(1,), (bad,)])
    with pytest.raises(CorruptValueError):
        encode_tuples([(1,), (bad,)])


@given(mostly(encoded) | recut(encoded, 1))
def test_many_are_decoded_or_refused_as_each_is(data: list[bytes]) -> None:
    together = outcome(lambda: decode_many(data))
    assert same(together, outcome(lambda: [decode(one) for one in data]))


@given(mostly(pairs) | recut(pairs, 2))
def test_columns_are_those_of_whole_lists_or_none(data: list[bytes]) -> None:
    one_by_one = outcome(lambda: [decode(one) for one in data])
    whole = not isinstance(one_by_one, str) and all(type(row) is list and len(row) == 2 for row in one_by_one)
    columns = decode_columns(data, 2)
    if columns is not None:
        assert whole
        assert same(columns, [[row[0] for row in one_by_one], [row[1] for row in one_by_one]])
    else:
        # A list of two may be spelt in more bytes than we write; only the way of one by one reads that.
        assert len(data) < 2 or not whole or any(one[1] != 0x92 for one in data)


def test_what_one_value_lacks_its_neighbour_does_not_give() -> None:
    head, parts = b"\x01\x92", [b"\x07", b"\xa1x", b"\xc4\x01y", b"\xc0"]
    for cut in range(5):
        data = [head + b"".join(parts[:cut]), head + b"".join(parts[cut:])]
        if cut == 2:
            assert decode_columns(data, 2) == [[7, b"y"], ["x", None]]
            assert decode_many(data) == [[7, "x"], [b"y", None]]
        else:
            assert decode_columns(data, 2) is None
            with pytest.raises(CorruptValueError, match="damaged or cut off"):
                decode_many(data)


def test_good_values_are_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_many([[n, str(n)] for n in range(1000)])
    monkeypatch.setattr(codec, "decode", None)
    assert decode_many(data) == [[n, str(n)] for n in range(1000)]
    assert decode_columns(data, 2) == [list(range(1000)), [str(n) for n in range(1000)]]


def test_large_values_are_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_many(["x" * 100, "y"])
    assert decode_columns([encode(["x" * 100])] * 2, 1) is not None
    monkeypatch.setattr(codec, "_JOINED_MAX", 100)
    assert decode_columns([encode(["x" * 100])] * 2, 1) is None
    assert decode_many(data) == ["x" * 100, "y"]


def test_every_version_that_was_ever_written_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    old, newer = encode([1, 2]), b"\x02" + b"2,1"
    with pytest.raises(
        CorruptValueError, match=r"decode b'\\x022,1': a stored value starts with byte 1.*newer version"
    ):
        decode_many([old, newer])
    monkeypatch.setitem(codec._VERSIONS, 2, lambda body: [int(part) for part in bytes(body).split(b",")])
    assert decode(newer) == [2, 1]
    assert decode_many([old, newer, old]) == [[1, 2], [2, 1], [1, 2]]
    assert decode_columns([old, newer], 2) is None


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: [one]])
def test_a_view_that_is_no_row_of_bytes_is_refused(wrap: Any) -> None:
    view = memoryview(b"abcd")[::2]
    for call in (encode, lambda one: encode_many([one])):
        with pytest.raises(CorruptValueError, match="not C-contiguous; give bytes of it"):
            call(wrap(view))
