"""Columns of keys in their one form, made where rows enter a grouping or a state (R15).

Values of a column have the declared type already: a decimal has its scale, a moment is in UTC. Only floats have several forms
of one value: Arrow distinguishes -0.0 from 0.0 and one NaN from another by their bits, and in Python no NaN equals another.
As Python objects decimals and moments too get the form that keys without a declared type have. All other types are left
alone, at no cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from trident.state.encoding.equal_keys import OneForm, canonical

__all__ = ["keys_of", "one_form", "one_form_of"]


def one_form(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return a table with the named columns in their one form."""
    for name in names:
        at = table.schema.get_field_index(name)
        if pa.types.is_floating(table.schema.field(at).type):
            table = table.set_column(at, table.schema.field(at), one_form_of(table.column(at)))
    return table


def one_form_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in its one form."""
    if not pa.types.is_floating(column.type):
        return column
    zeros = pc.if_else(pc.equal(column, 0), pa.scalar(0.0, column.type), column)
    return pc.if_else(pc.is_nan(zeros), pa.scalar(math.nan, column.type), zeros)


def keys_of(table: pa.Table, names: Sequence[str]) -> OneForm:
    """Return the key of each row."""
    if not len(names):
        return OneForm([()] * table.num_rows)
    columns = []
    for name in names:
        column = table.column(name)
        values = column.to_pylist()
        columns.append(list(map(canonical, values)) if _has_forms(column.type) else values)
    return OneForm(zip(*columns, strict=True))


def _has_forms(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_floating(type_) or pa.types.is_decimal(type_) or (pa.types.is_timestamp(type_) and type_.tz)
    )
