"""Columns of JSON as Arrow's parser reads them, and what is made of them: in files, and in values of messages."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from spouts.files.column_types import NOT_0, is_0, leaves, may_be_small, refuse_wide_decimals
from trident.alignment import replace_leaves
from trident.moment_columns import moments_as_text, read_moments


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
    tests = [pc.is_inf, is_0]
    infinite, zeros = counts = [_count(table, one) for one in tests]
    if infinite or (zeros and may_be_small(bytes(data))):
        wide = [pa.field(one.name, replace_leaves(one.type, _wide)) for one in table.schema]
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


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[-+.\deE]*', re.DOTALL)


def _as_seen(token: re.Match[bytes]) -> bytes:
    """Return a text or number of JSON; in place of a number that is 0 as a double, and is none, one that is not."""
    is_small = token[0][:1] != b'"' and not float(token[0]) and re.match(NOT_0.encode(), token[0])
    return b"1e-300" if is_small else token[0]


def _wide(type_: pa.DataType) -> pa.DataType:
    return pa.float64() if pa.types.is_float32(type_) else type_


def _count(table: pa.Table, test: Callable[[Any], Any]) -> int:
    floats = (leaf for column in table.columns for leaf in leaves(column) if pa.types.is_floating(leaf.type))
    return sum(int(pc.sum(test(leaf)).as_py() or 0) for leaf in floats)
