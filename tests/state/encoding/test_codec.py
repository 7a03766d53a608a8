"""Values and keys as bytes: what goes in comes out, type and all; equal keys are one sequence of bytes."""

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

from states.memory import MemoryBackingMap
from tests.harness.crashing_stores import DictMap
from tests.state.samples import hashables, mostly, outcome, recut, same, values
from trident.errors import CorruptValueError, WrongKeyError
from trident.fields import Fields
from trident.state import (
    CodecSerializer,
    Key,
    OpaqueMap,
    OpaqueValue,
    SerializedMap,
    Snapshot,
    StateType,
    decode,
    encode,
    map_for,
)
from trident.state.encoding import codec
from trident.state.encoding.codec import (
    decode_columns,
    decode_keys,
    decode_many,
    encode_keys,
    encode_many,
    encode_tuples,
)
from trident.state.encoding.equal_keys import canonical_key, canonical_keys, declared_keys
from trident.steps.key_columns import partition_of, partitions_of
from trident.testing.backend.schedules import Add
from trident.types import plain_number


@pytest.mark.slow
@given(values)
def test_every_value_comes_back(value: Any) -> None:
    data = encode(value)
    assert same(decode(data), value)
    assert encode(decode(data)) == data


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


small = st.none() | st.integers() | st.text(max_size=9) | st.binary(max_size=9) | st.tuples(st.booleans(), st.dates())
pairs = st.lists(small, min_size=2, max_size=2).map(encode)
encoded = st.one_of(values.map(encode), small.map(encode), pairs)


@pytest.mark.slow
@given(st.lists(values, max_size=4))
def test_many_are_encoded_as_each_is(several: list[Any]) -> None:
    assert encode_many(several) == [encode(value) for value in several]
    assert encode_many([(value, 1) for value in several], as_lists=True) == [encode([value, 1]) for value in several]
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
        encode_many([(1,), (bad,)], as_lists=True)
    with pytest.raises(CorruptValueError):
        encode_tuples([(1,), (bad,)])


@pytest.mark.slow
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
    said = r"decode b'\\x022,1': a stored value starts with byte 1.*newer version"
    with pytest.raises(CorruptValueError, match=said):
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


@pytest.mark.slow
@given(st.lists(keys, max_size=5))
def test_many_keys_are_in_the_partition_of_each(several: list[Key]) -> None:
    expected: dict[int, list[int]] = {}
    for at, key in enumerate(several):
        expected.setdefault(partition_of(key, 3), []).append(at)
    assert partitions_of(several, 3) == expected


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
    said = "expected a value of type timestamp for 'at', got .*date value out of range"
    with pytest.raises(WrongKeyError, match=said):
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


STORES = [DictMap, MemoryBackingMap, lambda: SerializedMap(DictMap(), CodecSerializer())]


def nan() -> float:
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
