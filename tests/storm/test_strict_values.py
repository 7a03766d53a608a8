"""What a bolt emits is of its declared type, or is refused by name: the rule of Trident's columns."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import pytest

from trident.errors import TopologyError
from trident.fields import Fields
from trident.storm.execution.out_streams import OutStream
from trident.storm.storm_tuples import Origin, StreamSpec

pytestmark = pytest.mark.quick


def stream(ddl: str) -> OutStream:
    fields = Fields(f"v: {ddl}")
    return OutStream(Origin("bolt", 1, "default", fields), StreamSpec(fields), [lambda values: [2]], frozenset())


@pytest.mark.parametrize(
    ("ddl", "value", "said"),
    [
        ("bigint", 1.5, "got 1.5, a float, which is not such a value"),
        ("bigint", 2**63, "got 9223372036854775808, a int, which"),
        ("int", 3_000_000_000, "got 3000000000, a int, which"),
        ("tinyint", -129, "got -129, a int, which"),
        ("double", 2**53 + 1, "got 9007199254740993, a int, which"),
        ("float", 1e300, r"got 1e\+300, a float, which"),
        ("decimal(5,2)", Decimal("1.005"), r"got Decimal\('1.005'\), a Decimal, which"),
        ("date", dt.datetime(2024, 1, 1), "got .* a datetime, which"),
        ("timestamp_ntz", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "got .* a datetime, which"),
        ("array<int>", [1, 1.5], r"got 1.5, a float at v\[1\], which"),
        ("array<string>", "text", "got 'text', a str, which"),
        ("array<struct<a:int>>", [{"a": 1}, {"a": "x"}], r"got 'x', a str at v\[1\].a, which"),
        ("struct<a:bigint>", {"b": 1}, r"got {'b': 1}, a dict, which"),
        ("map<string,int>", {"k": 2**31}, r"got 2147483648, a int at v\['k'\], which"),
        ("map<string,int>", {None: 1}, "got {None: 1}, a dict, which"),
    ],
)
def test_what_is_not_of_its_type_is_refused_with_its_place(ddl: str, value: Any, said: str) -> None:
    declared = re.escape(f"field 'v' is declared as {ddl} but ")
    with pytest.raises(TopologyError, match=declared + said):
        stream(ddl).accept([value])


@pytest.mark.parametrize(
    ("ddl", "values"),
    [
        ("int", [0, -(2**31), 2**31 - 1, None]), ("double", [1, 0.5, None]), ("float", [0.1, None]),
        ("decimal(5,2)", [1, Decimal("1.50")]), ("array<array<int>>", [[[1], None, []], None, []]),
        ("map<string,array<double>>", [{"a": [1.5, 1]}, {}]), ("struct<a:int,b:string>", [{"b": None, "a": 1}]),
    ],
)  # fmt: skip
def test_what_is_of_its_type_travels_equal(ddl: str, values: list[Any]) -> None:
    out = stream(ddl)
    assert [out.accept([value]) for value in values] == [(value,) for value in values]
