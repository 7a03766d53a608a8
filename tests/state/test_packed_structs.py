"""Structs of numbers are packed as arrays into the very bytes that the codec gives, and read from whatever bytes it reads."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.crashing_stores import DictMap
from tests.states.memory.test_struct_columns import FUNCTIONS, SOME, TYPE, summed
from trident.errors import CorruptValueError
from trident.state import CodecSerializer, OpaqueMap, SerializedMap
from trident.state.columns.number_columns import NumberColumn, NumberForm
from trident.state.columns.packed_structs import PackedStructs
from trident.state.encoding.codec import decode, encode
from trident.state.table import OpaqueTable, Span
from trident.state.values import OpaqueValue

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
    form, txid, attempt = (
        NumberForm(tuple(types.values()), tuple(types)),
        rng.choice([1, 127, 128, 1 << 40]),
        rng.randrange(1 << 22),
    )
    rows = [[random_value(rng, types) for _ in range(2)] for _ in range(rng.choice([1, 2, 40]))]
    packed, columns = PackedStructs(form), [NumberColumn.of(form, list(side)) for side in zip(*rows, strict=True)]
    heads = columns[0].repeated(txid), columns[0].repeated(attempt)
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
    table = OpaqueTable((columns[0].repeated(5), columns[0].repeated(1 << 20), *columns), Span(1 << 20, 5, 5))
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
    longer = [
        b"\xcc\x05",
        b"\xcd\x00\x05",
        b"\xce\x00\x00\x00\x05",
        b"\xcf" + bytes(7) + b"\x05",
        b"\xd0\xff",
        b"\xd3" + bytes(8),
    ]
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


# ---- in maps -----------------------------------------------------------------------------------------------------------


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
def test_arrays_write_what_rows_write() -> None:
    by_arrays, by_rows = DictMap(), DictMap()
    assert summed(opened(by_arrays), 1, SOME) == SOME
    state = opened(by_rows, None)
    assert not state.facts.keeps_columns
    state.begin_commit(1)
    state.multi_put([(f"k{at}",) for at in range(len(SOME))], SOME)
    state.commit(1)
    assert by_arrays.entries == by_rows.entries


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
