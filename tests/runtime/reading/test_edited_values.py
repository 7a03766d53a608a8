"""The values of dead letters as JSON: what is left alone stays what it was, what is edited gets its type again."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pytest

from trident.runtime.reading.written_values import edited_values, number_of, plain

EACH: dict[str, Any] = {
    "text": "a", "whole": 1, "number": 1.5, "flag": True, "none": None, "bytes": b"\x00a", "day": dt.date(2026, 1, 2),
    "price": Decimal("2.50"), "at": dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC),
    "local": dt.datetime(2026, 1, 2, 3), "list": [Decimal("1.0")],
    "struct": {"n": Decimal("1")}, "span": dt.timedelta(1),
}  # fmt: skip


def test_what_is_not_edited_is_the_same_values() -> None:
    assert edited_values(json.loads(json.dumps(plain(EACH))), EACH) == EACH
    nan = {"n": float("nan")}
    assert math.isnan(edited_values(json.loads(json.dumps(plain(nan))), nan)["n"])


@pytest.mark.parametrize(
    ("field", "given", "value"),
    [
        ("price", "3.25", Decimal("3.25")), ("price", 3, Decimal(3)), ("day", "2026-02-03", dt.date(2026, 2, 3)),
        ("at", "2026-02-03T04:00:00+01:00", dt.datetime(2026, 2, 3, 3, tzinfo=dt.UTC)), ("number", 2, 2.0),
        ("local", "2026-02-03 04:00", dt.datetime(2026, 2, 3, 4)),
        ("bytes", "YWI=", b"ab"), ("text", None, None), ("none", "x", "x"),
        ("list", ["2.5", "3"], [Decimal("2.5"), Decimal(3)]),
        ("struct", {"n": "7"}, {"n": Decimal(7)}),
    ],
)  # fmt: skip
def test_what_is_edited_is_of_the_type_before(field: str, given: Any, value: Any) -> None:
    found = edited_values({**plain(EACH), field: given}, EACH)[field]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("field", "given"),
    [("price", "cheap"), ("whole", 1.0), ("whole", "1"), ("flag", 1), ("text", 1), ("number", "1"), ("number", True),
     ("day", "soon"), ("bytes", "?"), ("list", 1), ("at", 5),
     ("at", "2026-02-03T04:00:00"), ("local", "2026-02-03T04:00:00Z"), ("day", "2026-02-03T04:00:00"), ("number", 2**53 + 1),
     ("span", "2 days, 0:00:00")],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_by_its_field(field: str, given: Any) -> None:
    with pytest.raises(ValueError, match=f"field '{field}': .* cannot be a .*, which it was"):
        edited_values({**plain(EACH), field: given}, EACH)


@pytest.mark.parametrize("text", ["0.1", "1e3", "2.50", "-0.0", "0.30000000000000004"])
def test_a_number_of_json_is_read_as_the_double_that_it_says(text: str) -> None:
    assert json.loads(text, parse_float=number_of) == float(text)


@pytest.mark.parametrize("text", ["1.00000000000000000001", "12345678901234567890.12", "1e400"])
def test_a_number_of_json_with_more_digits_than_a_double_keeps_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write a decimal in quotes"):
        json.loads(text, parse_float=number_of)
