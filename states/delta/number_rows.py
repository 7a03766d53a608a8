"""Opaque numbers between the rows of a change table and columns, without a Python object per value."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from states.delta.layout import DeltaLayout
from states.delta.raw_forms import SENTINEL_COLUMN
from trident.arrow import array_of, one_array, python_of
from trident.state.columns.number_columns import ATTEMPT, CURR, PREV, TXID, NumberColumns
from trident.state.columns.number_table import NumberTable
from trident.state.txid import Sentinel


def table_of(layout: DeltaLayout, new: NumberColumns, seq: int, sentinel: Sentinel | None) -> pa.Table:
    """Build the rows of one commit, and its sentinel's row."""
    names = new.place[0]  # as of `KeyColumns.names`
    parts = [names] if len(layout.key_columns) == 1 else zip(*names, strict=True)
    keys = [key_column(*column) for column in zip(layout.key_columns, layout.key_types, parts, strict=True)]
    numbers = map(new.column, (TXID, ATTEMPT, PREV, CURR))
    marks = pa.nulls(len(new), layout.schema.field(SENTINEL_COLUMN).type)
    rows = pa.table([*keys, *numbers, pa.array(np.full(len(new), seq)), marks], schema=layout.schema)
    return rows if sentinel is None else pa.concat_tables([rows, layout.table([], [], seq, sentinel)])


def number_table(layout: DeltaLayout, scan: pa.Table) -> NumberTable:
    """Reduce a scan in order to the latest numbers of each key."""
    rows = scan.filter(pc.is_null(scan[SENTINEL_COLUMN]))
    parts = [python_of(rows[name]) for name in layout.key_columns]
    last = dict(zip(parts[0] if len(parts) == 1 else zip(*parts, strict=True), range(rows.num_rows), strict=True))
    names = list(last)
    if len(last) < rows.num_rows or rows["txid"].null_count:
        rows = rows.take(pa.array(last.values(), pa.int64()))
        there = pc.is_valid(rows["txid"])
        names = list(compress(names, there.to_pylist()))
        rows = rows.filter(there)
    table = NumberTable(len(parts), layout.form)
    table.fill(names, columns_of(layout, rows))
    return table


def columns_of(layout: DeltaLayout, rows: pa.Table) -> NumberColumns:
    """Return the numbers of rows, or their structs, one for each."""
    assert layout.form is not None, layout
    txids, attempts, prevs, currs = (one_array(rows[name]) for name in layout.value_columns)
    return NumberColumns.read(layout.form, txids, attempts, prevs, currs)


def key_column(name: str, type_: pa.DataType, values: Sequence[Any] | pa.Array) -> pa.Array:
    """Return the values of a key column, given as a list or an Arrow array."""
    return values.cast(type_) if isinstance(values, pa.Array) else array_of(name, type_, values)
