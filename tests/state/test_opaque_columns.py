"""Opaque values as columns: they are read, ruled, encoded and written as rows are."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.crashing_stores import DictMap
from trident.errors import CorruptValueError
from trident.state import CodecSerializer, Key, OpaqueMap, OpaqueValue, SerializedMap, StateType
from trident.state.encoding.codec import decode, encode, encode_columns
from trident.state.encoding.serializers import StoredValues
from trident.state.table import OpaqueTable
from trident.testing.backend.schedules import Append, Log

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


def test_a_damaged_value_is_named_with_its_key() -> None:
    store = DictMap({("a",): encode([1, 1, None, 1]), ("b",): b"\x01\x94\x01", ("c",): encode([1, 1, None, 3])})
    state = OpaqueMap(SerializedMap(store, CodecSerializer()))
    with pytest.raises(CorruptValueError, match=r"read key \('b',\)"):
        state.multi_get([("a",), ("b",), ("c",)])


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
