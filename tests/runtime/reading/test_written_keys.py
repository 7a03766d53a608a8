"""Keys as people write them: their types, and what is refused."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from trident.fields import Fields
from trident.runtime.reading.written_values import parse_key, parse_prefix


@pytest.mark.parametrize(
    ("text", "fields", "key"),
    [
        ('["a"]', Fields("word: string"), ('["a"]',)),
        ("7", Fields("n: smallint"), (7,)),
        ("1.5", Fields("x: double"), (1.5,)),
        ("False", Fields("b: boolean"), (False,)),
        ("2.50", Fields("d: decimal(10,2)"), (Decimal("2.50"),)),
        ("2026-01-31", Fields("d: date"), (date(2026, 1, 31),)),
        ("2026-01-31T10:00", Fields("t: timestamp"), (datetime(2026, 1, 31, 10, tzinfo=UTC),)),
        ("2026-01-31T10:00", Fields("t: timestamp_ntz"), (datetime(2026, 1, 31, 10),)),
        ("é", Fields("b: binary"), ("é".encode(),)),
        ('["a", "7"]', Fields("a: string, b: int"), ("a", 7)),
        ("[null, true]", Fields("a: string, b: boolean"), (None, True)),
        ("a", Fields(), ("a",)),
        ('["a", 1]', Fields(), ("a", 1)),
    ],
)
def test_a_text_becomes_a_key(text: str, fields: Fields, key: tuple[Any, ...]) -> None:
    parsed = parse_key(text, fields, "s")
    assert parsed == key
    assert [type(part) for part in parsed] == [type(part) for part in key]


@pytest.mark.parametrize(
    ("text", "fields", "said"),
    [
        ("x", Fields("n: int"), "key 'x' of state 's': expected a value of type int"),
        ("yes", Fields("b: boolean"), "type boolean"),
        ("a", Fields("a: string, b: int"), "expected a JSON list of its 2 fields (a, b)"),
        ('["a"]', Fields("a: string, b: int"), "expected a JSON list of its 2 fields"),
        ("[1, 1]", Fields("a: string, b: int"), "a of key '[1, 1]' of state 's': expected a value of type string"),
        ('["a", true]', Fields("a: string, b: int"), "b of key"),
        ('["a", 1.5]', Fields("a: string, b: int"), "b of key"),
        ('["a", true]', Fields("a: string, b: double"), "type double"),
        ("yesterday", Fields("t: timestamp"), "type timestamp"),
        ("1,5", Fields("d: decimal(10,2)"), "type decimal(10,2)"),
    ],
)
def test_a_text_that_cannot_be_a_key_is_refused(text: str, fields: Fields, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_key(text, fields, "s")


@pytest.mark.parametrize(
    ("text", "fields", "part"),
    [
        ("shop-1", Fields("shop: string, day: date"), ("shop-1",)),
        ('["shop-1"]', Fields("shop: string, day: date"), ("shop-1",)),
        ('["shop-1", "2026-01-31"]', Fields("shop: string, day: date"), ("shop-1", date(2026, 1, 31))),
        ("7", Fields("n: int, shop: string"), (7,)),
        ('["a"]', Fields("a: string"), ('["a"]',)),
        ("a", Fields(), ("a",)),
    ],
)
def test_a_text_becomes_a_part_of_a_key(text: str, fields: Fields, part: Any) -> None:
    assert parse_key(text, fields, "s", part=True) == part


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


@pytest.mark.parametrize(
    ("text", "fields", "prefix"),
    [
        ("th", Fields("a: string"), "th"),
        ('["a"]', Fields("a: string"), '["a"]'),
        ('["a"]', Fields("a: string, b: int"), ("a",)),
        ('["a", 1]', Fields("a: string, b: int"), ("a", 1)),
        ("[1]", Fields("a: int, b: int"), (1,)),
        ("a", Fields("a: string, b: int"), "a"),
        ("a", Fields(), "a"),
        ("[1, 2]", Fields(), (1, 2)),
    ],
)
def test_a_text_becomes_a_prefix(text: str, fields: Fields, prefix: Any) -> None:
    assert parse_prefix(text, fields, "s") == prefix


@pytest.mark.parametrize("fields", [Fields("n: int"), Fields("n: int, a: string")])
def test_a_number_does_not_begin_with_a_text(fields: Fields) -> None:
    with pytest.raises(ValueError, match="the key begins with n, of type int, which does not begin with a text"):
        parse_prefix("a", fields, "s")
