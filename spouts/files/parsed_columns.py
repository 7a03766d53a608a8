"""Columns as Arrow's parsers read them from text, in files and in values of messages: numbers that they bend are refused."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from trident.alignment import moments_as_text, read_moments, replace_leaves

_NOT_0 = "^[^eE]*[1-9]"
"""What a number begins with that is not 0."""
_HEX = r"^\s*0[xX]"
_SMALL = re.compile(rb"e-(?<=[\d.]e-)(?!\d{12}\b)0*(?:[2-9]\d|[1-9]\d{2,})(?![\w-])")  # but no part of a UUID
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[-+.\deE]*', re.DOTALL)


def refuse_wide_decimals(table: pa.Table | pa.RecordBatch) -> None:
    """Raise `pa.ArrowInvalid` for a decimal of more digits than its type: Arrow's parsers let 1 pass for a decimal(5,5)."""
    for name, column in zip(table.schema.names, table.columns, strict=True):
        try:
            if "decimal" in str(column.type):
                column.validate(full=True)
        except pa.ArrowInvalid:
            raise pa.ArrowInvalid(f"column {name!r}: a number has more digits than {column.type}") from None


def refuse_bent_numbers(texts: Any, made: Any, name: str) -> None:
    """Raise `pa.ArrowInvalid` for a text that Arrow reads as another number: 1e400 is infinite to it, and 0xFF may be -1."""
    is_whole = pa.types.is_integer(made.type)
    if is_whole or pa.types.is_floating(made.type):
        doubted = texts if is_whole else texts.filter(is_extreme(made))
        bent = doubted.filter(pc.match_substring_regex(doubted, _HEX if is_whole else _NOT_0))
        if len(bent):
            raise pa.ArrowInvalid(f"column {name!r}: {bent[0].as_py()!r} is not of type {made.type}")


def may_be_small(text: bytes) -> bool:
    """Whether there may be a number in a text that is 0 as a float, and is none."""
    return b"0" * 20 in text or _SMALL.search(text.lower()) is not None


def leaves(column: Any) -> Iterator[Any]:
    """Give the columns within one, of the members of structs, of elements, keys and values; itself if there are none."""
    if pa.types.is_struct(column.type):
        parts = column.flatten()
    elif pa.types.is_map(column.type):
        parts = [column.keys, column.items]
    elif pa.types.is_list(column.type):
        parts = [pc.list_flatten(column)]
    else:
        yield column
        return
    for part in parts:
        yield from leaves(part)


def _is_0(numbers: Any) -> Any:
    return pc.equal(numbers, pa.scalar(0, numbers.type))


def is_extreme(numbers: Any) -> Any:
    """Say of each number whether it is infinite or 0."""
    return pc.or_(pc.is_inf(numbers), _is_0(numbers))


# ---- JSON ---------------------------------------------------------------------------------------------------------------


def json_type(type_: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow's parser reads a column of JSON: texts in place of moments, dates and bytes."""
    return replace_leaves(moments_as_text(type_), lambda one: pa.string() if pa.types.is_binary(one) else one)


def parse_json(data: Any, schema: pa.Schema, unknown_fields: str = "ignore") -> pa.Table:
    """Parse the objects of some bytes, whatever their length, in this thread."""
    return pj.read_json(
        pa.BufferReader(data),
        pj.ReadOptions(use_threads=False, block_size=max(1 << 16, len(data) + 1)),
        pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unknown_fields),
    )


def read_json(column: Any, type_: pa.DataType, name: str) -> Any:
    """Return a column that was read so with its moments, dates and bytes, which are base64 in JSON, as to Spark."""
    return read_moments(column, type_, name, _of_text)


def refuse_bent(table: pa.Table, data: Any) -> None:
    """Raise `pa.ArrowInvalid` for a number that has become infinite, or 0, or has more digits than its type.

    `data`: what the table was parsed from.
    """
    refuse_wide_decimals(table)
    tests = [pc.is_inf, _is_0]
    infinite, zeros = counts = [_count(table, one) for one in tests]
    if infinite or (zeros and may_be_small(bytes(data))):

        def doubled(type_: pa.DataType) -> pa.DataType:
            return replace_leaves(type_, lambda one: pa.float64() if pa.types.is_float32(one) else one)

        wide = [pa.field(one.name, doubled(one.type)) for one in table.schema]
        again = parse_json(_TOKEN.sub(_as_seen, data), pa.schema(wide))
        if counts != [_count(again, one) for one in tests]:
            raise pa.ArrowInvalid("a number is beyond the range of its type, too large or too near to 0")


def _of_text(texts: pa.Array, type_: pa.DataType, path: str) -> pa.Array:
    if not pa.types.is_binary(type_):
        return read_moments(texts, type_, path)
    try:
        return pa.array([one if one is None else b64decode(one, validate=True) for one in texts.to_pylist()], type_)
    except ValueError as error:
        raise pa.ArrowInvalid(f"{path}: no base64 ({error})") from None


def _as_seen(token: re.Match[bytes]) -> bytes:
    """Return a text or number of JSON; in place of a number that is 0 as a double, and is none, one that is not."""
    is_small = token[0][:1] != b'"' and not float(token[0]) and re.match(_NOT_0.encode(), token[0])
    return b"1e-300" if is_small else token[0]


def _count(table: pa.Table, test: Callable[[Any], Any]) -> int:
    floats = (leaf for column in table.columns for leaf in leaves(column) if pa.types.is_floating(leaf.type))
    return sum(int(pc.sum(test(leaf)).as_py() or 0) for leaf in floats)
