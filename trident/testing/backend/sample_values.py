"""Keys and values that stores have got wrong: widths, signs, zones, separators, bytes, look-alikes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from trident.state.interfaces import Key

INTS: tuple[int, ...] = (
    0, 1, -1, 127, 128, 255, 256, -128, -129, 2**15, 2**16, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**32 + 1,
    2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 2**64 + 1, 10**30, -(10**30),
)  # fmt: skip

NUMBERS: tuple[Any, ...] = (
    *INTS, True, False, 0.0, -0.0, 1.0, 0.1, -2.5, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"),
    Decimal("0"), Decimal("1.00"), Decimal("-0"), Decimal("1E+30"), Decimal("0.1234567890123456789012345678"),
)  # fmt: skip

PLAIN_VALUES: tuple[Any, ...] = (
    "", " ", "0", "null", "None", "NaN", "a\x00b", "naïve", "汉字", "👩‍👩‍👧", "e\u0301", "é", "\u2028", "x" * (1 << 20),
    [], [1, "a", None], [[[]], [[1]]], {}, {"a": {"b": [1, {"c": None}]}}, {"": ""},
)  # fmt: skip

TYPED_VALUES: tuple[Any, ...] = (
    b"", b"\x00", b"\xff\xfe", bytes(range(256)), b"text", (), (1, "a"), ((), (1, (2,))), {1: "one", (1, 2): "pair"},
    {1, 2, 3}, frozenset({"a"}), UUID(int=7), dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.time(23, 59, 59, 999999),
    dt.timedelta(days=-1, microseconds=1), dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 12, 30, 0, 1),
    dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC), dt.datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Vienna")),
    dt.datetime(2024, 7, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=45))),
)  # fmt: skip

KEYS: tuple[Key, ...] = (
    ("",), (" ",), ("a",), ("A",), ("a ",), (" a",), ("a\n",), ("a\x00",), ("\x00",), ("a\x00b",), ("ab",), ("abc",),
    ("a", "b"), ("a", "bc"), ("ab", "c"), ("a/b",), ("a:b",), ("a,b",), ("a|b",), ("a\tb",), ("a", ""), ("", "a"),
    ("", ""), ("a", "b", "c"), (("a", "b"),), ("('a', 'b')",), ("a b",), ("a%b",), ("a_b",), ("a*b",), ("a?b",),
    ("a'b",), ('a"b',), ("a\\b",), ("a[b]",), ("{a}",), ("null",), ("None",), (None,), (None, None), ("None", "None"),
    ("0",), ("1",), ("01",), ("1.0",), ("1e0",), ("-1",), ("+1",), (0,), (1,), (-1,), (2.5,), ("2.5",), (1, 2),
    ("1", "2"), (12,), ("12",), (1, "2"), ("true",), ("nan",), ("é",), ("e\u0301",), ("ß",), ("ss",), ("汉",), ("汉字",),
    ("👩",), ("👩‍👧",), ("İ",), ("i",), ("I",), ("ı",), (dt.date(2024, 1, 2),), ("2024-01-02",), (Decimal("1.5"),), ("1.5",),
    (dt.datetime(2024, 1, 2),), (dt.datetime(2024, 1, 2, tzinfo=dt.UTC),), *((number,) for number in INTS if number > 255),
)  # fmt: skip

BINARY_KEYS: tuple[Key, ...] = (
    (b"",), (b"\x00",), (b"\x00\x00",), (b"\xff",), (b"\xfe",), (b"\xff\xfe",), (b"\xfe\xff",), (b"\x80",), (b"\x81",),
    (b"\xc3\xa9",), ("é",), (b"a",), ("a",), ("b'a'",), (b"a", "a"), ("a", b"a"), (b"\xed\xa0\x80",), ("\ufffd",),
    (b"\xef\xbf\xbd",), (b"\r\n",), (b"\n",), ("",), (bytes(range(256)),), (b"a ",), (b"a b",), ("\\xff",),
)  # fmt: skip

LONG_KEY_PARTS: tuple[int, ...] = (100, 200, 249, 250, 251, 255, 256, 1023, 1024, 4096)
"""Lengths of text; two keys of each that differ in the last letter only."""


class _Foreign:
    """A type that no store holds."""


UNSTORABLE: tuple[Any, ...] = (_Foreign(), "lone surrogate \ud800")
"""Values that have no encoding, in the codec or in JSON."""
