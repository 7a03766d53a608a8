"""Tables as multisets of rows: order does not matter, rounding only where it is allowed, all else does."""

import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trident.comparing import first_difference, is_close, row_text

NAN = float("nan")
COLUMNS: list[tuple[str, pa.DataType, list[Any]]] = [
    ("whole numbers", pa.int64(), [3, 1, None, 1]),
    ("text", pa.string(), ["b", "", None, "a"]),
    ("bytes", pa.binary(), [b"b", b"", None, b"a"]),
    ("doubles", pa.float64(), [0.5, NAN, None, float("inf")]),
    ("booleans", pa.bool_(), [True, None, False, True]),
    ("decimals", pa.decimal128(5, 2), [Decimal("1.50"), None, Decimal("-2.00"), Decimal("0.01")]),
    (
        "times",
        pa.timestamp("us", tz="UTC"),
        [datetime(2026, 1, 2, tzinfo=UTC), None, datetime(2025, 1, 2, tzinfo=UTC), None],
    ),
    ("lists", pa.list_(pa.float64()), [[1.0, None], [], None, [NAN]]),
    (
        "structs",
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        [{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}, None],
    ),
    ("maps", pa.map_(pa.string(), pa.int64()), [{"a": 1, "b": 2}, {}, None, {"a": None}]),
    ("maps of doubles", pa.map_(pa.float64(), pa.int64()), [{NAN: 1, 0.5: 2}, {NAN: 2}, None, {0.5: 1}]),
]


@pytest.mark.parametrize(("type_", "values"), [column[1:] for column in COLUMNS], ids=[column[0] for column in COLUMNS])
def test_the_order_does_not_matter_and_each_value_does(type_: pa.DataType, values: list[Any]) -> None:
    numbers = random.Random(1).sample(range(len(values)), len(values))
    one = pa.table({"k": pa.array(range(len(values))), "v": pa.array(values, type_)})
    other = one.take(numbers)
    assert first_difference(one, other) is None
    for at in range(len(values)):
        value = next(each for each in values if each is not values[at] and each != values[at])
        changed = pa.table({"k": one["k"], "v": pa.array([*values[:at], value, *values[at + 1 :]], type_)}).take(
            numbers
        )
        found = first_difference(one, changed)
        assert found is not None
        assert found[0] is not None
        assert found[0][0] == at


def test_rows_count_as_often_as_they_are_there() -> None:
    one, other = pa.table({"v": [1, 1, 2]}), pa.table({"v": [1, 2, 2]})
    assert first_difference(one, other) == ((1,), (2,))
    assert first_difference(one, one.slice(1)) == ((1,), None)
    assert first_difference(one.slice(1), one) == (None, (1,))


def test_rows_without_columns_are_counted() -> None:
    one, other = pa.table({"v": [1, 1, 2]}).select([]), pa.table({"v": [1]}).select([])
    assert first_difference(one, one) is None
    assert first_difference(one, other) == ((), ())


@pytest.mark.parametrize("type_", [pa.float64(), pa.list_(pa.float64())])
def test_rounding_is_allowed_on_demand(type_: pa.DataType) -> None:
    def table(*values: float) -> pa.Table:
        return pa.table(
            {"v": pa.array([[value] if pa.types.is_list(type_) else value for value in values], type_), "k": ["a", "b"]}
        )

    one, close, far = table(1e6, 0.1 + 0.2 - 0.3), table(1e6 + 1e-4, 0.0), table(1e6 + 1, 0.0)
    assert first_difference(one, close, rounding=True) is None
    assert first_difference(one, close) is not None
    assert first_difference(one, far, rounding=True) is not None


def test_floats_of_32_bits_round_more() -> None:
    one, other = (pa.table({"v": pa.array([value], pa.float32())}) for value in (1.0, 1.0000001))
    assert first_difference(one, other, rounding=True) is None
    assert first_difference(one, other) is not None


def test_a_row_is_shown_with_its_fields() -> None:
    assert row_text(["k", "v"], ("a", 1)) == "[k='a', v=1]"
    assert row_text(["k", "v"], None) == "nothing"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({float("nan"): 1, float("nan"): 2}, {NAN: 2}, False),
        ({float("nan"): 1, float("nan"): 2}, [(NAN, 2), (NAN, 1)], True),
        ([("a", 1), ("a", 2)], {"a": 2}, False),
        ([np.array([1, 2.5])], [[1, 2.5]], True),
        (np.array([True, False]), [True, True], False),
        (np.array([{"a": np.array([1])}]), [{"a": [1]}], True),
    ],
)
def test_values_of_maps_and_arrays_are_compared_one_by_one(one: Any, other: Any, same: bool) -> None:
    assert is_close(one, other) is same
    assert is_close(other, one) is same
