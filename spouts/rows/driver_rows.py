"""Rows that are in the driver: how they are checked and typed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from trident.alignment import align
from trident.arrow import UNFIT, Misfit, schema_of, table_of
from trident.errors import BadDataError, TopologyError
from trident.fields import Fields, type_of_hint


def typed_fields(fields: Fields, rows: Sequence[Sequence[Any]]) -> Fields:
    """Return the fields; a type that is not declared follows from the rows' Python values."""
    types = [
        type_ if type_ is not None else _inferred(name, (row[at] for row in rows))
        for at, (name, type_) in enumerate(zip(fields.names, fields.types, strict=True))
    ]
    return Fields.of(fields.names, types)


def _inferred(name: str, values: Iterator[Any]) -> str:
    found: dict[str, int] = {}
    for number, value in enumerate(values):
        if value is None or (isinstance(value, (list, tuple, dict)) and not value):
            continue  # says nothing of its type
        type_ = _type_of_value(value)
        if type_ is None:
            raise TopologyError(
                f"the type of field {name!r} cannot be taken from row {number}: {value!r} is a {type(value).__name__}; "
                f"declare it as '{name}: string' or another type"
            )
        found.setdefault(type_, number)
    if not found:
        raise TopologyError(
            f"the type of field {name!r} cannot be taken from the rows: none has a value in it; "
            f"declare it as '{name}: string' or another type"
        )
    if len(found) > 1:
        said = ", ".join(f"{type_} (row {number})" for type_, number in found.items())
        raise TopologyError(
            f"the values of field {name!r} are of several types: {said}; "
            f"make them of one type, or declare it as '{name}: {next(iter(found))}'"
        )
    return next(iter(found))


def _type_of_value(value: Any) -> str | None:
    if isinstance(value, (list, tuple)):
        inner = {_type_of_value(one) for one in value if one is not None}
        only = inner.pop() if len(inner) == 1 else None
        return None if only is None else f"array<{only}>"
    if isinstance(value, dict):
        keys, items = {_type_of_value(k) for k in value}, {_type_of_value(v) for v in value.values() if v is not None}
        key, item = (only.pop() if len(only) == 1 else None for only in (keys, items))
        return None if key is None or item is None else f"map<{key},{item}>"
    return type_of_hint(type(value))


def check_arity(fields: Fields, rows: Sequence[Any]) -> None:
    """Refuse a row that is not a list or tuple with one value per field."""
    for number, row in enumerate(rows):
        if not isinstance(row, Sequence) or isinstance(row, (str, bytes, bytearray)):
            raise TopologyError(f"row {number} is {row!r}, not a list or tuple of {len(fields)} values ({fields})")
        if len(row) != len(fields.names):
            said = f"row {number} has {len(row)} values"
            raise TopologyError(f"{said}, but there are {len(fields)} fields ({fields}): {row!r}")


def table_of_rows(fields: Fields, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Build a table from rows; a row that does not fit is refused with its number, counted from 0."""
    check_arity(fields, rows)
    try:
        return table_of(fields, rows)
    except Misfit as misfit:
        said = f"of field {misfit.field!r} is not a {misfit.declared}: {misfit.reason}"
        raise TopologyError(f"row {misfit.at}: the value {misfit.shown} {said}") from misfit
    except UNFIT as error:
        raise TopologyError(f"the rows do not fit the fields ({fields}): {error}") from error


def fitted(table: pa.Table, fields: Fields) -> pa.Table:
    """Return a table under the fields' names and types: itself, not copied, where it has them already."""
    if table.num_columns != len(fields):
        said = f"the table has {table.num_columns} columns {table.column_names}"
        raise TopologyError(f"{said}, but there are {len(fields)} fields ({fields})")
    schema = schema_of(fields)
    if table.schema.equals(schema):
        return table
    what = f"a table with columns {table.schema.names}"
    try:
        parts = zip(table.columns, schema, strict=True)
        return pa.Table.from_arrays([align(column, one.type, one.name, what) for column, one in parts], schema=schema)
    except BadDataError as error:
        raise TopologyError(f"{what} cannot be read as ({fields}): {error}") from error
