"""Columns as Arrow's parsers read them from text, in files and in values of messages: numbers that they bend are refused."""

import json
import math
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from spouts.files.line_ends import RowFormat
from spouts.files.tails import End
from trident.alignment import check_decimals, moments_as_text, read_moments, replace_leaves

CACHED = 1 << 17  # bytes: more would not stay in the cache of a core
_NOT_0 = "^[^eE]*[1-9]"
"""What a number begins with that is not 0."""
_HEX = r"^\s*0[xX]"
_UUID = rb"(?<=[\da-f]{4}-[\da-f]{3}e-)\d{12}\b"  # its end, and no exponent
_SMALL = re.compile(rb"e-(?<=[\d.]e-)(?!" + _UUID + rb")0*(?:[2-9]\d|[1-9]\d{2,})(?![\w-])")
_LONG = re.compile(rb"\d{19}")
_WHERE = re.compile(r"\.? in row \d+|JSON parse error: ")
_CHANGED = re.compile(r"^Column\(/(.*)\) changed from (\w+) to (\w+)$")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_OPENING, _CLOSING, _NEWLINE, _ZERO = b"{}\n0"


def bad_ones(read: Callable[[Any], object], items: Any, start: int = 0) -> Iterator[tuple[int, Exception]]:
    """Give the numbers of the items that cannot be read, and why: by halves, because few of many are bad."""
    try:
        read(items)
    except Exception as error:  # noqa: BLE001  whatever a decoder raises
        if len(items) < 2:
            yield start, error
            return
        half = len(items) // 2
        yield from bad_ones(read, items[:half], start)
        yield from bad_ones(read, items[half:], start + half)


def refuse_bent_numbers(texts: Any, made: Any, name: str) -> None:
    """Raise `pa.ArrowInvalid` for a text that Arrow reads as another number: 1e400 is infinite to it, and 0xFF may be -1."""
    if pa.types.is_decimal(made.type):  # of Redis
        check_decimals(texts, made, f"column {name!r}")
    is_whole = pa.types.is_integer(made.type)
    if is_whole or pa.types.is_floating(made.type):
        doubted = texts if is_whole else texts.filter(pc.or_(pc.is_inf(made), is_zero(made)))
        bent = doubted.filter(pc.match_substring_regex(doubted, _HEX if is_whole else _NOT_0))
        if len(bent):
            raise pa.ArrowInvalid(f"column {name!r}: {bent[0].as_py()!r} is not of type {made.type}")


def may_be_hexadecimal(text: bytes) -> bool:
    return _has_pair(text, b"0x")


def may_be_small(text: bytes) -> bool:
    """Whether there may be a number in a text that is 0 as a float, and is none."""
    return b"0" * 20 in text or (_has_pair(text, b"e-") and _SMALL.search(text.lower()) is not None)


def _has_pair(text: bytes, pair: bytes) -> bool:
    """Whether two characters follow each other, the letter as a capital too; much faster than a search for both."""
    for at in range(0, len(text), CACHED):
        codes = np.frombuffer(text[at : at + CACHED + 1], np.uint8) | 0x20
        if ((codes[:-1] == pair[0]) & (codes[1:] == pair[1])).any():
            return True
    return False


def leaves(column: Any) -> list[Any]:
    """Return the columns within one, of the members of structs, of elements, keys and values; itself if there are none."""
    if pa.types.is_struct(column.type):
        parts = column.flatten()
    elif pa.types.is_map(column.type):
        parts = [column.keys, column.items]
    elif pa.types.is_list(column.type):
        parts = [pc.list_flatten(column)]
    else:
        return [column]
    return [leaf for part in parts for leaf in leaves(part)]


def is_zero(numbers: Any) -> Any:
    return pc.equal(numbers, pa.scalar(0, numbers.type))


@cache
def _as_parsed(schema: pa.Schema) -> pa.Schema:
    """Return the types as which Arrow's parser reads JSON: texts in place of moments, dates and bytes, which are base64."""

    def type_of(one: pa.DataType) -> pa.DataType:
        return pa.string() if pa.types.is_binary(one) else moments_as_text(one)

    return pa.schema([pa.field(one.name, replace_leaves(one.type, type_of)) for one in schema])


def read_objects(text: bytes, schema: pa.Schema, unknown_fields: str = "ignore") -> pa.Table:
    """Read JSON objects, one for each line that is not empty; `pa.ArrowInvalid` for another line or a value of another type."""
    if not text.strip():
        return schema.empty_table()
    objects, is_apart = _objects_of(text)
    table = pj.read_json(
        pa.BufferReader(text),
        pj.ReadOptions(use_threads=False, block_size=max(1 << 16, len(text) + 1)),
        pj.ParseOptions(explicit_schema=_as_parsed(schema), unexpected_field_behavior=unknown_fields),
    )
    if table.num_rows > objects:
        raise pa.ArrowInvalid("it is more than one row")
    if table.num_rows < objects or not is_apart:
        raise pa.ArrowInvalid("it is not complete: an object goes on in the next line")
    _refuse_bent(table, text)
    columns = [read_moments(table[one.name], one.type, one.name, _of_text) for one in schema]
    return pa.Table.from_arrays(columns, schema=schema)


class JsonFormat(RowFormat):
    """Lines that are objects, the same in all files; see `JsonFileSpout`."""

    def __init__(self, schema: pa.Schema, unknown_fields: str) -> None:
        self._schema, self._unknown_fields = schema, unknown_fields

    def end_of(self, line: bytes) -> End:
        """Say that an object is whole if it is closed, and not yet if it is open."""
        marks = _STRING.sub(b"", line.strip())
        if not marks or (marks.startswith(b"{") and (b'"' in marks or marks.count(b"{") > marks.count(b"}"))):
            return End.OPEN
        is_closed = marks.startswith(b"{") and marks.endswith(b"}") and marks.count(b"{") == marks.count(b"}")
        return End.WHOLE if is_closed else End.MAYBE

    def parse(self, text: bytes) -> pa.Table:
        return read_objects(text, self._schema, self._unknown_fields)

    def is_row(self, line: bytes) -> bool:
        return bool(line.strip())

    def describe(self, error: Exception) -> str:
        return json_error(error)


def json_error(error: Exception) -> str:
    """Say what is wrong with one object, by the names of its members, in place of where the parser found it."""

    def type_change(match: re.Match[str]) -> str:
        where, declared, given = match.groups()
        return f"{where.replace('/', '.') or 'the value'} is of type {given}, and not {declared}"

    said = _CHANGED.sub(type_change, _WHERE.sub("", str(error)))
    return said.replace("The document is empty.", "something follows the object")


def _objects_of(text: bytes) -> tuple[int, bool]:
    """Return how many lines are not empty, and whether each of them ends like an object; then none can go on in the next.

    Raises `pa.ArrowInvalid`: one does not begin like an object. Arrow's parser takes `null` for a row, or ends the process.
    """
    codes = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(codes == _NEWLINE)
    begins = np.concatenate(([0], ends[:-1] + 1))
    odd = (codes[begins] != _OPENING) | (codes[ends - 1] != _CLOSING)
    count, is_apart = len(ends), True
    for at in np.flatnonzero(odd).tolist():
        line = text[begins[at] : ends[at]].strip()
        if line and not line.startswith(b"{"):
            raise pa.ArrowInvalid("it is not an object: an object begins with {")
        count, is_apart = count - (not line), is_apart and line[-1:] in (b"", b"}")
    return count, is_apart


def _refuse_bent(table: pa.Table, text: bytes) -> None:
    """Raise `pa.ArrowInvalid` for a number that has become infinite, 0 or another one, or has more digits than its type."""
    # Arrow's parsers let 1 pass for a decimal(5,5).
    for name, column in zip(table.schema.names, table.columns, strict=True):
        try:
            if "decimal" in str(column.type):
                column.validate(full=True)
        except pa.ArrowInvalid:
            raise pa.ArrowInvalid(f"column {name!r}: a number has more digits than {column.type}") from None
    if _may_bend(table, text):
        lines = (line for line in text.split(b"\n") if line.strip())
        for line, row in zip(lines, table.to_pylist(), strict=True):
            try:
                given = json.loads(line, strict=False, parse_float=str, parse_int=str, parse_constant=str)
            except (ValueError, RecursionError) as error:
                raise pa.ArrowInvalid(f"it cannot be read a second time: {error}") from error
            for one in table.schema:
                _check_numbers(given.get(one.name), row[one.name], one.type, one.name)


def _may_bend(table: pa.Table, text: bytes) -> bool:
    """Whether a number may have been read as another one: a float as 0 or an infinite one, a decimal as in `check_decimals`."""
    every = [leaf for column in table.columns for leaf in leaves(column)]
    tests = (pa.types.is_decimal, pa.types.is_floating)
    decimals, floats = ([leaf for leaf in every if test(leaf.type)] for test in tests)
    zeros = [any(pc.any(is_zero(leaf)).as_py() for leaf in some) for some in (decimals, floats)]
    is_small = any(zeros) and may_be_small(text)
    return is_small or (zeros[0] and _has_long_number(text)) or any(map(_is_large, (*decimals, *floats)))


def _is_large(numbers: Any) -> bool:
    most: Any = Decimal(1).scaleb(28 - numbers.type.scale) if pa.types.is_decimal(numbers.type) else math.inf
    bounds = pc.min_max(numbers).as_py()
    return bool(max(abs(bounds["min"] or 0), abs(bounds["max"] or 0)) >= most)


def _has_long_number(text: bytes) -> bool:
    """Whether there are 19 digits beside each other: then two that are 9 apart, and all between, are digits."""
    digits = np.frombuffer(text, np.uint8) - _ZERO < 10
    places = np.flatnonzero(digits[:-9:9] & digits[4:-5:9] & digits[9::9]).tolist()
    return any(_LONG.search(text[max(0, 9 * at - 18) : 9 * at + 28]) for at in places)


def _check_numbers(given: Any, made: Any, type_: pa.DataType, path: str) -> None:
    """Compare the numbers in a value of JSON, as it is given, with what Arrow has read; `pa.ArrowInvalid` for another one."""
    if made is None:
        return
    if pa.types.is_decimal(type_):
        check_decimals(pa.array([given]), pa.array([made], type_), path)
    if pa.types.is_floating(type_) and (math.isinf(made) or not made) and re.match(_NOT_0, given):
        raise pa.ArrowInvalid("a number is beyond the range of its type, too large or too near to 0")
    for one in type_ if pa.types.is_struct(type_) else ():
        _check_numbers(given.get(one.name), made[one.name], one.type, f"{path}.{one.name}")
    for each, value in zip(given, made, strict=True) if pa.types.is_list(type_) else ():
        _check_numbers(each, value, type_.value_type, path)


def _of_text(texts: pa.Array, type_: pa.DataType, path: str) -> pa.Array:
    if not pa.types.is_binary(type_):
        return read_moments(texts, type_, path)
    try:
        return pa.array([one if one is None else b64decode(one, validate=True) for one in texts.to_pylist()], type_)
    except ValueError as error:
        raise pa.ArrowInvalid(f"{path}: no base64 ({error})") from None
