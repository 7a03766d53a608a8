"""Columns of keys in their one form, made where rows enter a grouping or a state (R15).

Values of a column have the declared type already: a decimal has its scale, a moment is in UTC. Only floats have several forms
of one value: Arrow distinguishes -0.0 from 0.0 and one NaN from another by their bits, and in Python no NaN equals another.
As Python objects decimals and moments too get the form that keys without a declared type have. All other types are left
alone, at no cost.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.state.encoding.equal_keys import OneForm, canonical

__all__ = ["keys_in", "keys_of", "one_form", "one_form_of"]

_MOMENTS = pa.timestamp("us", tz="UTC")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


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
    return keys_in([table.column(name) for name in names])


def keys_in(columns: Sequence[pa.Array | pa.ChunkedArray]) -> OneForm:
    """Return the keys that columns, at least one, hold the parts of."""
    return OneForm(zip(*map(_forms, columns), strict=True))


def _forms(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values as Python objects, each as `canonical` gives it."""
    if pa.types.is_timestamp(column.type) and column.type.tz:
        # Arrow's own objects have a zone that is not `dt.UTC`, and take several times as long.
        since = column.cast(_MOMENTS).cast(pa.int64()).to_pylist()
        return [None if us is None else _EPOCH + dt.timedelta(microseconds=us) for us in since]
    values = column.to_pylist()
    has_forms = pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)
    return list(map(canonical, values)) if has_forms else values
