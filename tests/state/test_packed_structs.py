"""Many values at once: opaque ones as columns, structs of numbers as arrays; they are what they are one by one."""

import math
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.crashing_stores import DictMap
from tests.states.memory.test_memory_columns import FUNCTIONS, SOME, TYPE, summed
from trident.errors import CorruptValueError
from trident.state import CodecSerializer, Key, OpaqueMap, SerializedMap, StateType
from trident.state.encoding.codec import decode, encode, encode_columns
from trident.state.encoding.serializers import StoredValues
from trident.state.number_columns import NumberColumn, NumberForm, PackedStructs
from trident.state.table import OpaqueTable, Span
from trident.state.values import OpaqueValue
from trident.testing.backend.schedules import Append, Log

EDGES = [
    edge + near
    for edge in (0, 1 << 63, *(sign << bits for sign in (1, -1) for bits in (5, 7, 8, 15, 16, 31, 32)))
    for near in (-1, 0, 1)
    if edge + near < 1 << 63
]
REALS = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e308]


def random_value(rng: random.Random, types: dict[str, str]) -> Any:
    def number(type_: str) -> Any:
        if rng.random() < 0.1:
            return None
        if type_ == "double":
            return rng.choice([*REALS, rng.uniform(-9, 9)])
        return rng.choice([*EDGES, rng.randrange(-9, 300), rng.randrange(-(1 << 63), 1 << 63)])

    return None if rng.random() < 0.2 else {name: number(type_) for name, type_ in types.items()}


@pytest.mark.parametrize("seed", range(50))
def test_arrays_have_the_bytes_of_rows_and_come_back(seed: int) -> None:
    rng = random.Random(seed)
    names = {
        "".join(rng.choices("aé\x00_☃", k=rng.choice([1, 3, 9, 31, 32, 40, 255]))) for _ in range(rng.randint(1, 30))
    }
    types = {name: rng.choice(["bigint", "double"]) for name in sorted(names)}
    form = NumberForm(tuple(types.values()), tuple(types))
    txid, attempt = rng.choice([1, 127, 128, 1 << 40]), rng.randrange(1 << 22)
    rows = [[random_value(rng, types) for _ in range(2)] for _ in range(rng.choice([1, 2, 40]))]
    packed, columns = PackedStructs(form), [NumberColumn.of(form, list(side)) for side in zip(*rows, strict=True)]
    heads = columns[0].repeat(txid), columns[0].repeat(attempt)
    stored = packed.encode(OpaqueTable((*heads, *columns), Span(attempt, txid, txid)))
    assert stored == [encode([txid, attempt, *row]) for row in rows]
    read = packed.decode([None, *stored])
    assert read is not None
    assert repr(list(read)) == repr([None, *(OpaqueValue(txid, attempt, *row) for row in rows)])


FORM = NumberForm(("bigint", "double"), ("n", "mean"))
PACKED = PackedStructs(FORM)
VALUE = {"n": 300, "mean": 1.5}
GOLDEN = b"\x01\x94\x05\xce\x00\x10\x00\x00\xc0\x82\xa1n\xcd\x01,\xa4mean\xcb?\xf8\x00\x00\x00\x00\x00\x00"
"""Written before structs were packed as arrays."""


def test_stored_bytes_stay_what_they_were() -> None:
    columns = NumberColumn.of(FORM, [None]), NumberColumn.of(FORM, [VALUE])
    table = OpaqueTable((columns[0].repeat(5), columns[0].repeat(1 << 20), *columns), Span(1 << 20, 5, 5))
    assert PACKED.encode(table) == [GOLDEN] == [encode([5, 1 << 20, None, VALUE])]
    read = PACKED.decode([GOLDEN])
    assert read is not None
    assert list(read) == [OpaqueValue(5, 1 << 20, None, VALUE)]


ODD = [True, 1.5, 1 << 63, -(1 << 63) - 1, "3", b"3", [3], {"n": 3}]


@pytest.mark.parametrize(
    "odd",
    [
        *(encode([1, 1, None, {"n": odd, "mean": 1.5}]) for odd in ODD),
        *(encode([1, 1, {"n": 3, "mean": odd}, None]) for odd in (False, 3, "3")),
        *(
            encode([1, 1, None, odd])
            for odd in (3, {}, {"n": 3}, {"mean": 1.5, "n": 3}, {**VALUE, "more": 1}, [3, 1.5])
        ),
        *(encode(odd) for odd in ([1, None, VALUE], [1, None, None, VALUE], [1 << 63, 1, None, VALUE], VALUE)),
        *(GOLDEN + b"\x00", GOLDEN[:-1], b"\x02" + GOLDEN[1:], b""),
        GOLDEN.replace(b"\xcb?\xf8\x00\x00\x00\x00\x00\x00", b"\xca" + struct.pack(">f", 1.5)),
    ],
)
def test_what_is_no_struct_of_the_form_is_left_to_the_codec(odd: bytes) -> None:
    assert PACKED.decode([GOLDEN, odd, GOLDEN]) is PACKED.decode([odd]) is None


def test_numbers_that_another_program_wrote_at_length_are_read() -> None:
    unsigned = [b"\xcc\x05", b"\xcd\x00\x05", b"\xce\x00\x00\x00\x05", b"\xcf" + bytes(7) + b"\x05"]
    longer = [*unsigned, b"\xd0\xff", b"\xd3" + bytes(8)]
    stored = [GOLDEN.replace(b"\xcd\x01,", one) for one in longer]
    read = PACKED.decode(stored)
    assert read is not None
    assert [list(one or ()) for one in read] == list(map(decode, stored))


@pytest.mark.parametrize("seed", range(20))
def test_damaged_bytes_are_refused_or_read_as_the_codec_reads_them(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        stored = [bytearray(GOLDEN) for _ in range(3)]
        one = rng.choice(stored)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(one))
            one[place : place + rng.choice([0, 1, 1, 1, 2])] = bytes(
                [rng.choice([rng.randrange(256), 0xC0, 0xCF, 0xD3, 0x05])]
            )
        read = PACKED.decode([bytes(each) for each in stored])
        if read is not None:
            assert repr([list(value or ()) for value in read]) == repr([decode(bytes(each)) for each in stored])


@pytest.fixture
def always_arrays() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trident.state.encoding.serializers._FEWEST_IN_ARRAYS", 0)
        yield


def opened(store: DictMap, value_type: str | None = TYPE) -> OpaqueMap:
    return OpaqueMap(SerializedMap(store, CodecSerializer(), value_type))


def test_few_structs_are_rows_and_a_store_is_not_asked_for_them() -> None:
    assert summed(opened(DictMap()), 1, SOME) is None
    assert summed(opened(DictMap()), 1, SOME * 100) == SOME * 100


@pytest.mark.usefixtures("always_arrays")
def test_after_a_value_of_another_form_rows_are_read_once() -> None:
    store = DictMap()
    state = opened(store)
    state.begin_commit(1)
    state.multi_put([("k0",)], [{"other": 1}])
    state.commit(1)
    assert summed(state, 2, SOME) is None
    assert state.backing.multi_get([("k0",)])[0].curr == {"other": 1}
    store.entries[("k0",)] = b"damaged"
    state.begin_commit(3)
    assert state.multi_combine([["k0"]], SOME, FUNCTIONS) is None  # without a read
    with pytest.raises(CorruptValueError, match=r"read key \('k0',\)"):
        state.multi_get([("k0",)])


numbers = st.integers(-(2**70), 2**70)
parts = st.recursive(
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=2) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)
opaque = st.builds(OpaqueValue, st.integers(1, 3), st.integers(0, 2**21), parts, parts)
found = st.lists(st.none() | opaque, max_size=8)


@pytest.mark.slow
@given(st.lists(opaque, max_size=8), st.booleans())
def test_columns_have_the_bytes_of_rows(values: list[OpaqueValue], of_one_commit: bool) -> None:
    if of_one_commit:
        values = [value._replace(txid=1 << 40, attempt=7) for value in values]
    serializer = CodecSerializer()
    assert serializer.serialize_many(OpaqueTable.of(values)) == list(map(serializer.serialize, values))


@given(st.lists(parts, max_size=3), st.lists(st.tuples(parts, parts), min_size=1, max_size=5))
def test_rows_that_begin_alike_are_encoded_as_lists(head: list[Any], rows: list[tuple[Any, Any]]) -> None:
    coded = encode_columns(head, [list(column) for column in zip(*rows, strict=True)])
    assert coded == [encode([*head, *row]) for row in rows]
    assert list(map(decode, coded)) == [[*head, *row] for row in rows]


@given(found)
def test_what_is_stored_is_decoded_as_columns(values: list[OpaqueValue | None]) -> None:
    stored = StoredValues(CodecSerializer())
    assert stored.decode_opaque is not None
    data = [None if value is None else encode(list(value)) for value in values]
    assert list(stored.decode_opaque([()] * len(data), data)) == values


def test_only_the_codec_of_opaque_values_has_columns() -> None:
    assert StoredValues(CodecSerializer(StateType.TRANSACTIONAL)).decode_opaque is None
    assert SerializedMap(DictMap(), CodecSerializer(StateType.TRANSACTIONAL)).multi_get_opaque([("a",)]) is None
    assert OpaqueMap(DictMap()).backing.facts.multi_get_opaque is None


@pytest.mark.parametrize("bad", [object(), "\ud800"])
def test_a_value_that_has_no_encoding_is_named_with_its_key(bad: object) -> None:
    state, log = OpaqueMap(SerializedMap(DictMap(), CodecSerializer())), Log()
    txid = log.next()
    state.begin_commit(txid)
    with pytest.raises(CorruptValueError, match=r"write key \('b',\)"):
        state.multi_put([("a",), ("b",)], [1, bad])


@pytest.mark.parametrize("seed", range(30))
def test_commits_by_columns_write_what_commits_by_rows_write(seed: int) -> None:
    rng, log = random.Random(seed), Log()
    by_rows, by_columns = DictMap(), DictMap()
    serializer = CodecSerializer()
    states = [OpaqueMap(by_rows), OpaqueMap(SerializedMap(by_columns, serializer))]
    if seed % 3 == 0:  # all puts at the commit
        for state in states:
            state.share_keys()
    keys: list[Key] = [(letter,) for letter in "abcdefgh"]
    for number in range(12):
        txid = log.next()
        for state in states:
            state.begin_commit(txid)
        for call in range(rng.choice([1, 1, 1, 2, 3])):
            some = rng.sample(keys, rng.randint(0, len(keys)))
            once = call == 0 and rng.random() < 0.3
            results = [
                (state.multi_update_once if once else state.multi_update)(some, [Append((number, call))] * len(some))
                for state in states
            ]
            assert results[0] == results[1]
            if not once:
                assert states[0].multi_get(keys) == states[1].multi_get(keys)
            if once:
                break
        decoded = {key: serializer.deserialize(data) for key, data in by_columns.entries.items()}
        assert decoded == by_rows.entries
        if rng.random() < 0.4:  # the attempt fails, with all that it wrote
            log.fail(takeover=rng.random() < 0.5)
            continue
        for state in states:
            state.commit(txid)
        log.record()
        assert {key: serializer.deserialize(data) for key, data in by_columns.entries.items()} == by_rows.entries
        assert states[0].multi_get_at(keys, log.snapshot()) == states[1].multi_get_at(keys, log.snapshot())
