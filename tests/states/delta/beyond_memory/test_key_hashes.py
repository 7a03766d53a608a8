"""The hash of keys: fixed for ever, equal for equal keys of any type, and spread over all buckets."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from states.delta.beyond_memory.sorted_rows import comparable, hashes_of, pairs, same_keys


def hashes(*columns: pa.Array | pa.ChunkedArray) -> list[int]:
    found: list[int] = hashes_of(comparable(columns)).tolist()
    return found


TEXTS = [
    6949253834128675438,
    2511324216889676531,
    552288863421846674,
    4579564264047924765,
    7863958710719917384,
    2065452812496198522,
]
NUMBERS = [6949253834128675438, 4674226817634124425, 8611818879122034814, 7863958710719917384]
FLOATS = [6949253834128675438, 4304520953383323536, 6481945248427207801]
LISTS = [7128204207479162191, 2430688337618432282, 7863958710719917384]
PAIRS = [7741853805165258627, 3147215394732050242]


# Tables hold these numbers, so they may never change.
def test_hashes_are_those_of_every_release() -> None:
    assert hashes(pa.array(["", "a", "abcdefgh", "abcdefghi", None, "x" * 65])) == TEXTS
    assert hashes(pa.array([0, 1, -1, None])) == NUMBERS
    assert hashes(pa.array([0.0, 1.5, math.nan])) == FLOATS
    assert hashes(pa.array([[1, 2], [], None], pa.list_(pa.int64()))) == LISTS
    assert hashes(pa.array(["a", "b"]), pa.array([1, 2])) == PAIRS


EQUAL: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["", "é", "a\0", "a", "x" * 64, "x" * 65, "x" * 200, None]),
    (pa.binary(), [b"", b"\0", b"\0\0", b"\0" * 64, b"\0" * 65, None]),
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [-128, 0, 127, None]),
    (pa.int32(), [-(1 << 31), 0, None]),
    (pa.float32(), [1.5, math.inf, -math.inf, None]),
    (pa.date32(), [dt.date(1969, 1, 1), dt.date(2026, 1, 1), None]),
    (pa.timestamp("us", tz="UTC"), [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None]),
    (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-1.50"), Decimal(0), None]),
    (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]), [{"a": 1, "b": ["x"]}, {"a": 1, "b": None}, None]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], None]),
]


@pytest.mark.parametrize(
    ("kind", "values"), EQUAL, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
def test_a_key_has_one_hash_wherever_it_is_in_a_column(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array(values, kind)
    assert len(set(hashes(column))) == len(values)
    shifted = pa.array([*values[-1:], *values], kind).slice(1)
    assert hashes(shifted) == hashes(column)
    assert hashes(pa.chunked_array([column.slice(0, 1), column.slice(1)])) == hashes(column)
    assert [hashes(column.slice(at, 1))[0] for at in range(len(values))] == hashes(column)
    assert same_keys(comparable([column]), comparable([shifted])).all()
    turned = pa.array(values[1:] + values[:1], kind)
    assert not same_keys(comparable([column]), comparable([turned])).any()


def test_equal_floats_are_one_key() -> None:
    floats = pa.array([0.0, math.nan]), pa.array([-0.0, np.frombuffer(b"\1\0\0\0\0\0\xf8\x7f")[0]])
    assert hashes(floats[0]) == hashes(floats[1])
    assert same_keys(comparable(floats[:1]), comparable(floats[1:])).all()


def test_the_parts_of_a_key_do_not_run_together() -> None:
    one, other = pa.array(["ab", "a", None]), pa.array(["c", "bc", "abc"])
    assert len({*hashes(one, other), *hashes(other, one)}) == 6


@pytest.mark.parametrize("column", [pa.array(range(65_536)), pa.array([f"user{n}" for n in range(65_536)])])
def test_hashes_fill_all_buckets_alike(column: pa.Array) -> None:
    found = np.array(hashes(column))
    assert len(set(found.tolist())) == 65_536
    for bits in (found >> 55, found & 255):  # the first bits choose a bucket, the last ones an order
        counts = np.bincount(bits, minlength=256)
        assert counts.min() > 150  # 256 on average, with a deviation of 16
        assert counts.max() < 370


def test_pairs_are_all_places_of_equal_hashes() -> None:
    stored, wanted = np.array([1, 3, 3, 5, 5, 9]), np.array([0, 3, 5, 5, 9, 10])
    at, places = pairs(stored, wanted)
    assert sorted(zip(at.tolist(), places.tolist(), strict=True)) == sorted(
        (i, j) for i in range(6) for j in range(6) if stored[i] == wanted[j]
    )
    assert places.tolist() == sorted(places.tolist())
