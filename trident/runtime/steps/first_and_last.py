"""The kernel of `First` and `Last`: the number of the row that each key keeps, then the values of those rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import one_array, schema_of
from trident.graph import Aggregation
from trident.operations import First, Last

__all__ = ["is_pick", "picked", "picked_of_partials"]

_RANK = "$rank"


def is_pick(aggregator: Any) -> bool:
    """Whether this kernel does what the aggregator does."""
    return type(aggregator) in (First, Last)


def picked(aggregation: Aggregation, table: pa.Table) -> pa.Table:
    """Aggregate tuples: one row per key; ungrouped, one row."""
    by, inputs = aggregation.aggregator.by, aggregation.inputs.names
    values = table.select(list(inputs))
    whole = by is not None or len(inputs) > 1
    order = None if by is None else table.column(by)
    there = None if whole else values.column(0).is_valid()
    keys, rows = _rows(aggregation, table, order, there)
    return _typed(aggregation, keys, _structs(values.take(rows), rows) if whole else values.column(0).take(rows))


def picked_of_partials(aggregation: Aggregation, table: pa.Table) -> pa.Table:
    """Merge partials, in their order: one row per key; ungrouped, one row."""
    by, values = aggregation.aggregator.by, table.column(aggregation.output.names[0])
    order = None if by is None else pc.struct_field(values, [by])
    keys, rows = _rows(aggregation, table, order, values.is_valid())
    return _typed(aggregation, keys, values.take(rows))


def _rows(
    aggregation: Aggregation, table: pa.Table, order: pa.ChunkedArray | None, there: pa.ChunkedArray | None
) -> tuple[list[pa.ChunkedArray], pa.Array]:
    """Return the columns of the keys, and the row that each keeps: null where all of its rows are skipped."""
    ranks, sorted_rows = _ranks(table.num_rows, order, there)
    function = "min" if type(aggregation.aggregator) is First else "max"
    if aggregation.grouped:
        names = list(aggregation.group.names)
        ranked = table.select(names).append_column(_RANK, ranks)
        grouped = ranked.group_by(names, use_threads=False).aggregate([(_RANK, function)])
        keys, best = [grouped.column(name) for name in names], one_array(grouped.column(f"{_RANK}_{function}"))
    else:
        bounds = pc.min_max(ranks)
        keys, best = [], pa.array([bounds[function].as_py()], pa.int64())
    return keys, best if sorted_rows is None else sorted_rows.take(best)


def _ranks(count: int, order: Any, there: Any) -> tuple[pa.Array, pa.Array | None]:
    """Return the place of each row in the order, null where it is skipped; and the rows by place, None if they are in order."""
    places, sorted_rows = np.arange(count), None
    if order is not None:
        valid = order.is_valid()
        if pa.types.is_floating(order.type):
            valid = pc.fill_null(pc.invert(pc.is_nan(order)), False)
        there = valid if there is None else pc.and_(valid, there)
        sorted_rows = pc.array_sort_indices(one_array(order)).cast(pa.int64())  # stable: equal ones stay in order
        ranks = np.empty(count, np.int64)
        ranks[sorted_rows.to_numpy()] = places
        places = ranks
    mask = None if there is None else ~there.to_numpy().astype(bool)
    return pa.array(places, pa.int64(), mask=mask), sorted_rows


def _structs(values: pa.Table, rows: pa.Array) -> pa.Array:
    columns = [one_array(column) for column in values.columns]
    return pa.StructArray.from_arrays(columns, fields=list(values.schema), mask=rows.is_null())


def _typed(aggregation: Aggregation, keys: list[pa.ChunkedArray], values: Any) -> pa.Table:
    schema = schema_of(aggregation.partial)
    return pa.table([*keys, values.cast(schema.types[-1])], schema=schema)
