"""Keys and edited values as people write them: their types, and what is refused."""

import datetime as dt
import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from trident.fields import Fields
from trident.read.written_values import edited_values, number_of, parse_key, parse_prefix, plain
from trident.servers import plain_json


@pytest.mark.parametrize(("text", "fields", "key"), [
    ('["a"]', "word: string", ('["a"]',)), ("7", "n: smallint", (7,)), ("1.5", "x: double", (1.5,)),
    ("+1e3", "x: double", (1000.0,)), ("-inf", "x: double", (-float("inf"),)), ("False", "b: boolean", (False,)),
    ("2.50", "d: decimal(10,2)", (Decimal("2.50"),)), ("2026-01-31", "d: date", (date(2026, 1, 31),)),
    ("2026-01-31T10:00", "t: timestamp", (datetime(2026, 1, 31, 10, tzinfo=UTC),)),
    ("2026-01-31T10:00", "t: timestamp_ntz", (datetime(2026, 1, 31, 10),)), ("é", "b: binary", ("é".encode(),)),
    ('["a", "7"]', "a: string, b: int", ("a", 7)), ("[null, true]", "a: string, b: boolean", (None, True)),
    ("a", "", ("a",)), ('["a", 1]', "", ("a", 1)),
])  # fmt: skip
def test_a_text_becomes_a_key(text: str, fields: str, key: tuple[Any, ...]) -> None:
    parsed = parse_key(text, Fields(fields), "s")
    assert parsed == key
    assert [type(part) for part in parsed] == [type(part) for part in key]


@pytest.mark.parametrize(
    "key", [b"\xff", rb"\xff", rb"\\", b"\\\xff", "é\x00".encode(), b"", rb"\b\x4", bytes(range(256))]
)
def test_a_key_of_bytes_is_read_as_it_is_printed(key: bytes) -> None:
    assert parse_key(plain_json.plain(key), Fields("b: binary"), "s") == (key,)
    assert parse_key(json.dumps(plain_json.plain([key, 1])), Fields("b: binary, n: int"), "s") == (key, 1)
    assert plain_json.plain({key: 1}) == {plain_json.plain(key): 1}


@pytest.mark.parametrize(
    ("text", "fields", "said"),
    [
        ("x", "n: int", "key 'x' of state 's': expected a value of type int"),
        ("yes", "b: boolean", "type boolean"),
        ("a", "a: string, b: int", "expected a JSON list of its 2 fields (a, b)"),
        ('["a"]', "a: string, b: int", "expected a JSON list of its 2 fields"),
        ("[1, 1]", "a: string, b: int", "a of key '[1, 1]' of state 's': expected a value of type string"),
        ('["a", true]', "a: string, b: int", "b of key"),
        ('["a", 1.5]', "a: string, b: int", "b of key"),
        ('["a", 12345678901234567890.5]', "a: string, d: decimal(38,18)", "is read as 1.2345678901234567e+19"),
        ('["a", true]', "a: string, b: double", "type double"),
        ("yesterday", "t: timestamp", "type timestamp"),
        ("1,5", "d: decimal(10,2)", "type decimal(10,2)"),
        ("1_0", "d: decimal(10,2)", "type decimal(10,2)"),
        ("1_000", "n: bigint", "type bigint"),
        ("\u0663", "n: bigint", "type bigint"),
        ("1_0.5", "x: double", "type double"),
        ("1e400", "x: double", "type double"),
        ("9007199254740993", "x: double", "type double"),
    ],
)
def test_a_text_that_cannot_be_a_key_is_refused(text: str, fields: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_key(text, Fields(fields), "s")


@pytest.mark.parametrize(("text", "fields", "part"), [
    ("shop-1", "shop: string, day: date", ("shop-1",)), ('["shop-1"]', "shop: string, day: date", ("shop-1",)),
    ('["shop-1", "2026-01-31"]', "shop: string, day: date", ("shop-1", date(2026, 1, 31))),
    ("7", "n: int, shop: string", (7,)), ('["a"]', "a: string", ('["a"]',)), ("a", "", ("a",)),
])  # fmt: skip
def test_a_text_becomes_a_part_of_a_key(text: str, fields: str, part: Any) -> None:
    assert parse_key(text, Fields(fields), "s", part=True) == part


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('["a"', "expected its first field, or a JSON list of some or all of its 2 fields (n, shop)"),
        ("[1, 2, 3]", "expected its first field, or a JSON list"),
        ("[]", "expected its first field, or a JSON list"),
        ("a", "n of key 'a' of state 's': expected a value of type int"),
    ],
)
def test_a_text_that_begins_no_key_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_key(text, Fields("n: int, shop: string"), "s", part=True)


@pytest.mark.parametrize(("text", "fields", "prefix"), [
    ("th", "a: string", "th"), ('["a"]', "a: string", '["a"]'), ('["a"]', "a: string, b: int", ("a",)),
    ('["a", 1]', "a: string, b: int", ("a", 1)), ("[1]", "a: int, b: int", (1,)), ("a", "a: string, b: int", "a"),
    ("a", "", "a"), ("[1, 2]", "", (1, 2)),
])  # fmt: skip
def test_a_text_becomes_a_prefix(text: str, fields: str, prefix: Any) -> None:
    assert parse_prefix(text, Fields(fields), "s") == prefix


@pytest.mark.parametrize("fields", [Fields("n: int"), Fields("n: int, a: string")])
def test_a_number_does_not_begin_with_a_text(fields: Fields) -> None:
    with pytest.raises(ValueError, match="the key begins with n, of type int, which does not begin with a text"):
        parse_prefix("a", fields, "s")


EACH: dict[str, Any] = {
    "text": "a", "whole": 1, "number": 1.5, "flag": True, "none": None, "bytes": b"\x00a", "day": dt.date(2026, 1, 2),
    "price": Decimal("2.50"), "at": dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC),
    "local": dt.datetime(2026, 1, 2, 3), "list": [Decimal("1.0")],
    "struct": {"n": Decimal("1")}, "span": dt.timedelta(1),
}  # fmt: skip


def test_what_is_not_edited_is_the_same_values() -> None:
    assert edited_values(json.loads(json.dumps(plain(EACH))), EACH) == EACH
    odd = {"n": float("nan"), "i": float("-inf")}
    written = json.dumps(plain(odd), allow_nan=False)  # strict readers of JSON refuse NaN
    assert repr(edited_values(json.loads(written), odd)) == repr(odd)
    assert repr(edited_values({"n": "inf", "i": float("nan")}, odd)) == "{'n': inf, 'i': nan}"


@pytest.mark.parametrize(("field", "given", "value"), [
    ("price", "3.25", Decimal("3.25")), ("price", 3, Decimal(3)), ("day", "2026-02-03", dt.date(2026, 2, 3)),
    ("at", "2026-02-03T04:00:00+01:00", dt.datetime(2026, 2, 3, 3, tzinfo=dt.UTC)), ("number", 2, 2.0),
    ("local", "2026-02-03 04:00", dt.datetime(2026, 2, 3, 4)),
    ("bytes", "YWI=", b"ab"), ("text", None, None), ("none", "x", "x"),
    ("list", ["2.5", "3"], [Decimal("2.5"), Decimal(3)]),
    ("struct", {"n": "7"}, {"n": Decimal(7)}),
])  # fmt: skip
def test_what_is_edited_is_of_the_type_before(field: str, given: Any, value: Any) -> None:
    found = edited_values({**plain(EACH), field: given}, EACH)[field]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("field", "given"),
    [("price", "cheap"), ("whole", 1.0), ("whole", "1"), ("flag", 1), ("text", 1), ("number", "1"), ("number", True),
     ("day", "soon"), ("bytes", "?"), ("list", 1), ("list", "12"), ("at", 5),
     ("at", "2026-02-03T04:00:00"), ("local", "2026-02-03T04:00:00Z"), ("day", "2026-02-03T04:00:00"), ("number", 2**53 + 1),
     ("span", "2 days, 0:00:00"), ("number", "1e999")],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_by_its_field(field: str, given: Any) -> None:
    with pytest.raises(ValueError, match=f"field '{field}': .* cannot be a .*, which it was"):
        edited_values({**plain(EACH), field: given}, EACH)


def test_a_zero_may_be_edited_to_the_other_one_and_a_flag_to_no_number() -> None:
    found = edited_values({"n": -0.0, "list": [0.0, 2]}, {"n": 0.0, "list": [-0.0, 2.0]})
    assert repr(found) == "{'n': -0.0, 'list': [0.0, 2.0]}"
    with pytest.raises(ValueError, match=r"field 'flags': \[1\] cannot be a list, which it was"):
        edited_values({"flags": [1]}, {"flags": [True]})


@pytest.mark.parametrize("text", ["0.1", "1e3", "2.50", "-0.0", "0.30000000000000004"])
def test_a_number_of_json_is_read_as_the_double_that_it_says(text: str) -> None:
    assert json.loads(text, parse_float=number_of) == float(text)


@pytest.mark.parametrize("text", ["1.00000000000000000001", "12345678901234567890.12", "1e400"])
def test_a_number_of_json_with_more_digits_than_a_double_keeps_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write a decimal in quotes"):
        json.loads(text, parse_float=number_of)
