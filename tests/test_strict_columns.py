"""Python values as columns: each comes back equal and of its declared type, or is refused by name (R19)."""

import datetime as dt
import enum
import itertools
import math
import struct
import uuid
from collections import namedtuple
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from trident.arrow import Misfit, arrow_type, python_of, strict_array, strict_column, table_of
from trident.fields import Fields
from trident.tuples import TridentTuple

pytestmark = pytest.mark.quick

NEW_YEAR = dt.datetime(2024, 1, 1)
EAST, UTC = dt.timezone(dt.timedelta(hours=2)), dt.UTC


class Colour(enum.Enum):
    RED = 1


class Word(enum.StrEnum):
    A = "a"


class Size(enum.IntEnum):
    A = 1


Pair = namedtuple("Pair", "b a")

NUMBERS: list[Any] = [
    0, 1, -1, 5, 127, 128, -129, 300, 2**31, 2**53 + 1, 2**60, 2**63, 10**400, 0.5, 2.0, 2.75, -0.0, 1e300, 1e-300, 0.1, 1e22,
    math.nan, math.inf, Decimal(1), Decimal("1.50"), Decimal("1.235"), Decimal("0.1"), Decimal("NaN"), Decimal("1E+2"),
    Decimal("Infinity"), Decimal("1E+999"), np.float64(1.5), np.float64(2), np.float32(0.1), np.float16(0.1), np.int64(5),
    np.int8(5), np.int64(300), np.uint64(2**63), Size.A,
]  # fmt: skip
OTHERS: list[Any] = [
    True, np.bool_(True), "a", "", "1", "2024-01-01", "\ud800", b"a", b"\xff", bytearray(b"a"), memoryview(b"a"), np.str_("a"),
    np.bytes_(b"a"), Word.A, Colour.RED, uuid.UUID(int=1), 1j, object(), dt.date(2024, 1, 1), dt.datetime(2024, 1, 1),
    dt.datetime(2024, 1, 1, 12, 0, 0, 1), dt.datetime(2024, 1, 1, tzinfo=UTC), dt.datetime(2024, 1, 1, 12, tzinfo=EAST),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=17, microseconds=5))),
    dt.datetime(1, 1, 1, tzinfo=EAST), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), dt.time(1), dt.timedelta(1),
    np.datetime64("2024-01-01"), np.datetime64("2024-01-01T00:00:00.000000001"), np.datetime64("NaT"), np.timedelta64(1, "s"),
    pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-01T00:00:00.000000001"), pd.Timestamp("2024-01-01", tz="UTC"), pd.NaT,
    pd.NA, [], [1], (1,), [1.5], [None], {1}, frozenset({1}), range(2), (x for x in [1]), np.array([1, 2]), np.array([1.5]),
    np.array(["2024-01-01"], "M8[ns]"), pd.Series([1]), pa.array([1]), pa.scalar(1), {}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2},
    {"a": None}, {"a": 1.5}, {None: 1}, {1: 1}, [("a", 1)], [("a", 1), ("a", 2)], Pair(2, 1),
]  # fmt: skip
LEAVES = [
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(5,2)", "decimal(38,18)", "string", "binary",
    "date", "timestamp", "timestamp_ntz",
]  # fmt: skip
NESTED = [
    "array<bigint>", "array<string>", "array<double>", "map<string,bigint>", "map<double,string>", "struct<a:bigint>",
    "struct<a:bigint,b:bigint>",
]  # fmt: skip
# Around a value: the type, what holds it, what takes it out again, and where it lies.
AROUND: list[tuple[str, Any, Any, str]] = [
    ("{}", lambda value: value, lambda back: back, ""),
    ("array<{}>", lambda value: [value], lambda back: back[0], "[0]"),
    ("struct<x:string,v:{}>", lambda value: {"x": "x", "v": value}, lambda back: back["v"], ".v"),
    ("map<string,array<{}>>", lambda value: {"x": [None, value]}, lambda back: back["x"][1], "['x'][1]"),
]


def is_kept(value: Any, ddl: str, back: Any) -> bool:
    """Whether what came back is the value and nothing else, by Python's own equality."""
    if back is None:
        return False
    if isinstance(value, bool | np.bool_) or ddl == "boolean":
        return isinstance(value, bool | np.bool_) and ddl == "boolean" and back == value
    if isinstance(value, str | bytes | bytearray | memoryview):
        return (ddl == "string") == isinstance(value, str) and ddl in ("string", "binary") and back == value
    if isinstance(value, dt.datetime):
        known = value.replace(tzinfo=UTC) if ddl == "timestamp" and value.tzinfo is None else value
        return ddl.startswith("timestamp") and back == known and not getattr(value, "nanosecond", 0)
    if isinstance(value, dt.date):
        return ddl == "date" and type(back) is dt.date and back == value
    if ddl in LEAVES:
        return is_number(value) and is_same_number(value, ddl, back)
    if isinstance(value, Pair):
        return bool(back == value._asdict() or back == list(value))
    if isinstance(value, dict):
        return bool(back == value)
    if ddl.startswith("map"):
        return bool(list(back.items()) == list(value))
    given = list(value)
    return bool(back == given or (isinstance(back, dict) and list(back.values()) == given))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal | np.integer | np.floating) and not isinstance(value, np.timedelta64)


def is_same_number(value: Any, ddl: str, back: Any) -> bool:
    if value != value:
        return ddl in ("float", "double") and back != back
    if ddl == "float" and isinstance(value, float | np.floating):
        return bool(back == struct.unpack("<f", struct.pack("<f", value))[0] and (back != 0) == (value != 0))
    return ddl in LEAVES[1:9] and bool(back == (value.item() if isinstance(value, np.generic) else value))


@pytest.mark.parametrize("ddl", [*LEAVES, *NESTED])
def test_a_value_comes_back_as_it_was_or_is_refused(ddl: str) -> None:
    for (around, put, take, where), value in itertools.product(AROUND, [*NUMBERS, *OTHERS]):
        given, type_ = put(value), around.format(ddl)
        try:
            (back,) = python_of(strict_array([given], arrow_type(type_)))
        except Misfit as misfit:
            assert (misfit.at, misfit.path[: len(where)]) == (0, where)  # noqa: PT017  most are refused, some are not
        else:
            assert is_kept(value, ddl, take(back)), f"{given!r} as {type_} became {back!r}"


@pytest.mark.parametrize("ddl", [*LEAVES, *NESTED])
def test_none_is_a_value_of_each_type_and_no_values_are_an_empty_column(ddl: str) -> None:
    for around, put, _, _ in AROUND:
        type_ = arrow_type(around.format(ddl))
        values = [None, put(None), None]
        array = strict_array(values, type_)
        assert (array.type, python_of(array)) == (type_, values)
        assert (strict_array([], type_).type, len(strict_array((), type_))) == (type_, 0)


RIGHT: list[tuple[str, list[Any], list[Any]]] = [
    ("bigint", [2.0, Decimal("1E+2"), np.int64(5), -(2**63), 2**63 - 1], [2, 100, 5, -(2**63), 2**63 - 1]),
    ("double", [1, 2**60, Decimal("0.5"), np.float32(0.5), math.inf], [1.0, 2.0**60, 0.5, 0.5, math.inf]),
    ("float", [0.1, 1, np.float32(0.1), 0.0, -math.inf], [0.10000000149011612, 1.0, 0.10000000149011612, 0.0, -math.inf]),
    ("decimal(5,2)", [1, 0.5, Decimal("1.230")], [Decimal("1.00"), Decimal("0.50"), Decimal("1.23")]),
    ("string", ["a", Word.A, np.str_("b"), "\U0001f600"], ["a", "a", "b", "\U0001f600"]),
    ("binary", [b"a", bytearray(b"b"), memoryview(b"c")], [b"a", b"b", b"c"]),
    ("timestamp", [NEW_YEAR, dt.datetime(2024, 1, 1, 2, tzinfo=EAST)], [NEW_YEAR.replace(tzinfo=UTC)] * 2),
    ("array<bigint>", [[1], (2, 3), range(2), np.array([4]), pd.Series([5]), []], [[1], [2, 3], [0, 1], [4], [5], []]),
    ("array<array<bigint>>", [np.array([[1, 2], [3, 4]])], [[[1, 2], [3, 4]]]),
    ("map<string,bigint>", [{"a": 1}, [("b", 2)], {}], [{"a": 1}, {"b": 2}, {}]),
    ("map<array<int>,int>", [[([1], 1), ([2], 2)], None, {(1, 2): 3}, []], [[([1], 1), ([2], 2)], None, [([1, 2], 3)], []]),
    ("map<struct<a:int>,map<int,int>>", [[({"a": 1}, {1: 1})]], [[({"a": 1}, {1: 1})]]),
    (
        "struct<a:bigint,b:string>",
        [{"b": "x", "a": 1}, (2, "y"), Pair("z", 3), TridentTuple(Fields("b", "a"), ("u", 4)), None],
        [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}, {"a": 4, "b": "u"}, None],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "values", "expected"), RIGHT, ids=[ddl for ddl, _, _ in RIGHT])
def test_what_loses_nothing_is_taken(ddl: str, values: list[Any], expected: list[Any]) -> None:
    assert python_of(strict_array(values, arrow_type(ddl))) == expected


WRONG: list[tuple[str, list[Any], str]] = [
    ("bigint", [1, 0.5], "got 0.5 (no bigint is exactly this number; round it, or declare another type)"),
    ("bigint", [1, True], "got True (it is of type bool)"),
    ("int", [1, 2**31], "got 2147483648 (no int is exactly this number; declare the field as a bigint)"),
    ("int", [1, 2.0**31], "(no int is exactly this number; declare the field as a bigint)"),
    ("bigint", [1, 2**63], "(no bigint is exactly this number; declare the field as a decimal with 19 digits before "),
    ("decimal(4,2)", [1, 100], "this number; declare the field as a decimal with 3 digits before its point)"),
    ("int", [1, math.inf], "got inf (no int is exactly this number; declare the field as a double)"),
    ("int", [1, 10**400], "(no int is exactly this number; declare another type)"),
    ("double", [0.5, 2**53 + 1], "got 9007199254740993 (the nearest value of that type is 9007199254740992.0; round it, or "),
    ("float", [0.5, 1e300], "got 1e+300 (the nearest value of that type is inf; declare the field as a double)"),
    ("float", [0.5, 1e-300], "got 1e-300 (the nearest value of that type is 0.0; declare the field as a double)"),
    ("decimal(5,2)", [1, 1.005], "(no decimal(5,2) is exactly this number; "),
    ("string", ["", b"a"], "got b'a' (it is of type bytes)"),
    ("date", [None, dt.datetime(2024, 1, 1)], "(take its .date())"),
    ("timestamp", [None, 5], "got 5 (it is of type int; datetime.fromtimestamp(seconds, timezone.utc) makes a time"),
    ("timestamp", [None, pd.NaT], "got NaT (give a datetime)"),
    ("timestamp_ntz", [None, dt.datetime(2024, 1, 1, tzinfo=UTC)], "(it has a zone, and values of this type have none; take "),
    ("array<bigint>", [[1], [1, 0.5]], "got 0.5 at f[1] (no bigint is exactly this number"),
    ("array<bigint>", [[1], {1}], "got {1} (it is of type set, not a list; it has no order, sort it)"),
    ("array<struct<b:bigint>>", [[], [None, {"b": "x"}]], "got 'x' at f[1].b (it is of type str)"),
    ("map<string,bigint>", [{}, {"k": 0.5}], "got 0.5 at f['k'] (no bigint is exactly this number"),
    ("map<string,bigint>", [{}, {"k": 1, None: 1}], "(a map has no key None)"),
    ("map<string,bigint>", [{}, [("a", 1), ("a", 2)]], "(it has a key twice)"),
    ("map<float,bigint>", [{}, {0.1: 1, np.float32(0.1).item(): 2}], "(two of its keys are the same key as values"),
    ("map<double,bigint>", [{}, {float("nan"): 1, float("nan"): 2}], "(two of its keys are the same key as values"),
    ("map<array<int>,bigint>", [[([1], 1), ([2], 1)], [([1], 1), ([1], 2)]], "(two of its keys are the same key as values"),
    ("map<array<int>,bigint>", [[], [(None, 1)]], "(a map has no key None)"),
    ("map<struct<a:int>,int>", [[], [({"a": 1}, 0.5)]], "got 0.5 at f[{'a': 1}] (no int is exactly this number"),
    ("map<bigint,bigint>", [{}, {1.5: 1}], "got 1.5 at f.keys() (no bigint is exactly this number"),
    ("struct<a:bigint>", [{"a": 1}, {"b": 1}], "got {'b': 1} (the members ['a'] are missing; give None for what is not there)"),
    ("struct<a:bigint>", [{"a": 1}, {"a": 1, "b": 1}], "(the members ['b'] are not declared; declare them, or leave them out)"),
    ("struct<a:bigint,b:bigint>", [None, (1,)], "got (1,) (it has 1 values for the members ['a', 'b'])"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ddl", "values", "said"), WRONG, ids=[f"{ddl} {values[1]!r}"[:60] for ddl, values, _ in WRONG]
)
def test_what_is_refused_is_named_with_its_place_and_type(ddl: str, values: list[Any], said: str) -> None:
    with pytest.raises(Misfit) as caught:
        strict_column("f", ddl, arrow_type(ddl), values)
    assert caught.value.at == 1
    assert str(caught.value).startswith(f"field 'f' is declared {ddl}, but got ")
    assert said in str(caught.value)


def test_a_table_names_the_row_and_the_field_that_does_not_fit() -> None:
    with pytest.raises(Misfit, match=r"field 'n' is declared int, but got 1\.5 ") as caught:
        table_of(Fields("word: string, n: int"), [("a", 1), ("b", 1.5)])
    assert caught.value.at == 1
