"""The table of DDL types: what a row says holds everywhere, and no other module has such a table."""

import ast
import datetime as dt
import math
import re
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from states.cassandra.cql_columns import CqlColumn
from states.postgres.columns import Column
from trident.alignment import ddl_of
from trident.arrow import array_of, arrow_type
from trident.errors import CorruptValueError, TopologyError
from trident.fields import normal_type
from trident.types import NO_VALUE, TYPES, class_of, family_of, simple_type

ROOT = Path(__file__).parents[1]
AT = dt.datetime(2024, 3, 31, 2, 30, 0, 5000)
VALUES: dict[str, Any] = {
    "string": "a", "boolean": True, "tinyint": -128, "smallint": -32768, "int": -(2**31), "bigint": -(2**63), "float": 1.5,
    "double": 0.1, "decimal": Decimal(7), "binary": b"\0a", "date": AT.date(), "timestamp_ntz": AT,
    "timestamp": AT.replace(tzinfo=dt.UTC),
}  # fmt: skip
OTHERS = {"trident/servers/avro.py": "the names of Avro's types"}


def test_each_row_has_a_value() -> None:
    assert VALUES.keys() == TYPES.keys()


@pytest.mark.parametrize("name", TYPES)
def test_a_value_keeps_its_form_as_column_and_text(name: str) -> None:
    row, value = TYPES[name], VALUES[name]
    assert type(value) is row.python
    assert (row.form(value), type(row.form(value))) == (value, row.python)
    assert array_of("f", row.arrow, [value, None]).to_pylist() == [value, None]
    assert row.of_text(row.to_text(value)) == value
    if row.wire:
        assert struct.unpack(f">{row.wire}", struct.pack(f">{row.wire}", value)) == (value,)
        assert np.dtype(f">{row.wire}").itemsize * 8 in (8, row.arrow.bit_width)


@pytest.mark.parametrize(
    ("type_", "value"),
    [(pa.large_string(), "\ud800"), (pa.large_string(), b"ab"), (pa.large_binary(), "ab"), (pa.string(), b"ab")],
)
def test_what_is_no_text_or_bytes_is_named(type_: pa.DataType, value: Any) -> None:
    with pytest.raises(CorruptValueError, match=re.escape(f"cannot write {value!r} ({type(value).__name__})")):
        array_of("f", type_, [None, value])


@pytest.mark.parametrize("text", ["9007199254740993", "1e400", "-1e400", "1e-400", "0.10000000000000000001"])
def test_a_decimal_that_no_double_is_is_the_key_of_none(text: str) -> None:
    assert TYPES["double"].form(Decimal(text)) is NO_VALUE
    assert TYPES["float"].form(Decimal(text)) is NO_VALUE


@pytest.mark.parametrize("number", [0.1, -0.0, 1e300, 5e-324, math.inf, math.nan])
def test_a_decimal_with_the_digits_of_a_double_is_its_key(number: float) -> None:
    assert repr(TYPES["double"].form(Decimal(repr(number)))) == repr(number + 0.0)


@pytest.mark.parametrize("name", TYPES)
def test_a_row_is_read_by_each_of_its_names(name: str) -> None:
    row = TYPES[name]
    assert {normal_type(alias) for alias in (name, *row.aliases)} == {normal_type(name)}
    assert arrow_type(name) == row.arrow
    assert ddl_of(row.arrow) == normal_type(name)
    assert class_of(name) is row.python
    assert row.family in row.casts.split()


@pytest.mark.parametrize("name", TYPES)
def test_stores_have_the_columns_of_a_row(name: str) -> None:
    own, cql = Column.form_of(name, True), CqlColumn.form_of(name, True)
    assert own is not None
    assert own.sql == TYPES[name].sql
    assert (cql and cql.cql) == TYPES[name].cql
    if cql is not None:
        assert cql.to_bytes(VALUES[name])


def test_a_decimal_has_the_digits_that_are_declared() -> None:
    found = simple_type("decimal(10,2)")
    assert found is not None
    assert (found.name, found.digits, found.sql, found.family) == ("decimal(10,2)", (8, 2), "numeric(10,2)", "decimal")
    assert simple_type("decimal(10)") == simple_type("decimal(10,0)")


def test_what_has_types_inside_is_in_no_row() -> None:
    for type_ in ("array<int>", "struct<a:int>", "map<string,int>", "void", "", None):
        assert simple_type(type_) is None
    assert family_of("array<int>") == "array<int>"
    with pytest.raises(TopologyError):
        arrow_type("integer")


def test_no_other_module_has_a_table_of_types() -> None:
    paths = [path for package in ("trident", "states", "spouts") for path in (ROOT / package).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in paths if _has_table(path.read_text(encoding="utf-8"))}
    assert found == OTHERS.keys(), "ask trident/types.py"


def test_a_table_is_found() -> None:
    assert _has_table("A = {'int': 1, 'bigint': 2, 'double': 3, 'string': 4}")
    assert _has_table("A = frozenset({'int', 'bigint', 'double', 'string', 'void'})")
    assert not _has_table("A = {'int': 'bigint', 'long': 'double', 'a': 'string'}")


def _has_table(text: str) -> bool:
    """Whether a text of Python has a dictionary by names of types, or a list of them: four and more, and most of it."""
    few = len({*re.findall(r"""["'](\w+)["']""", text)} & TYPES.keys()) < 4  # to parse what has none takes long
    for node in () if few else ast.walk(ast.parse(text)):
        parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        texts = {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
        known = texts & TYPES.keys()
        if len(known) >= 4 and len(known) * 2 >= len(parts):
            return True
    return False
