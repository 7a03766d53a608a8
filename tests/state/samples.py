"""Values of every type that can be stored, bytes that are not quite theirs, and what it means that two are the same."""

import datetime as dt
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from trident.errors import CorruptValueError
from trident.state import encode

BERLIN = ZoneInfo("Europe/Berlin")
zones = st.one_of(
    st.none(),
    st.sampled_from([BERLIN, ZoneInfo("UTC"), ZoneInfo("Asia/Kathmandu"), dt.UTC, dt.timezone(dt.timedelta(0), "Z")]),
    st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)).map(dt.timezone),
)
hashable_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**80), 2**80),
    st.floats(),
    st.text(),
    st.binary(),
    st.decimals().filter(lambda number: not number.is_snan()),  # it has no hash
    st.dates(),
    st.datetimes(timezones=zones),
    st.times(timezones=zones),
    st.timedeltas(),
    st.uuids(),
)
nested_hashables = st.recursive(
    hashable_leaves, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6
)


@st.composite
def any_hashable(draw: st.DrawFn) -> Any:
    """Draw one; a function, because the strategy's own name fills pages."""
    return draw(nested_hashables)


hashables = any_hashable()
values = st.recursive(
    hashables,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(hashables, inner, max_size=3)
        | st.sets(hashables, max_size=3)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Whether two values are one in type, value, sign of zero, NaN, exponent, zone and order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, Decimal):
        return bool(a.as_tuple() == b.as_tuple())
    if isinstance(a, (dt.datetime, dt.time)):
        return repr(a) == repr(b) and a.fold == b.fold
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, (set, frozenset)):
        return sorted(map(encode, a)) == sorted(map(encode, b))
    return bool(a == b)


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call gives, or the text of its refusal."""
    try:
        return call()
    except CorruptValueError as error:
        return f"refused: {error}"


@st.composite
def damaged(draw: st.DrawFn, good: st.SearchStrategy[bytes]) -> bytes:
    """Draw what a damaged store may answer: a value cut off, gone on with, flipped, doubled, or no value at all."""
    data = draw(good)
    at = draw(st.integers(0, len(data) - 1))
    ways = {
        "cut": data[:at],
        "tail": data[at:],
        "flip": data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :],
        "longer": data + draw(good)[1:],
        "swallowing": data[:-1] + draw(st.sampled_from([b"\xc4\x0a", b"\xaa", b"\x92", b"\xd9\x0c", b"\xc7\x0a\x09"])),
        "foreign": draw(st.binary(max_size=12)),
    }
    return ways[draw(st.sampled_from(sorted(ways)))]


def mostly(good: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    """Draw the values of many keys, some of them damaged."""
    return st.lists(st.one_of(good, good, good, damaged(good)), max_size=6)


@st.composite
def recut(draw: st.DrawFn, good: st.SearchStrategy[bytes], head: int) -> list[bytes]:
    """Draw good values whose bodies were joined and cut anew, most at other places: what one lacks, its neighbour has.

    Each keeps a head of so many bytes.
    """
    several = draw(st.lists(good, min_size=2, max_size=4))
    body = b"".join(data[head:] for data in several)
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), min_size=len(several) - 1, max_size=len(several) - 1)))
    edges = zip([0, *cuts], [*cuts, len(body)], strict=True)
    return [data[:head] + body[start:end] for data, (start, end) in zip(several, edges, strict=True)]
