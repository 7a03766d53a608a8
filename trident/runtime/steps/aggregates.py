"""Aggregation of a batch for a state, in two places: partials where the tuples are, and their merge where the state is.

A partial is a table of the grouping columns and one column `output`; the same `combine` merges partials. Count, Sum,
Min, Max, First and Last run as Arrow kernels, any other combiner row by row.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import arrow_type, schema_of
from trident.fields import Fields
from trident.graph import Aggregation
from trident.operations import Count, Max, Min, Sum
from trident.runtime.steps.failures import TupleErrors
from trident.runtime.steps.first_and_last import is_pick, picked, picked_of_partials
from trident.runtime.steps.key_columns import keys_of, one_form
from trident.runtime.steps.rows import columns_of, iterate
from trident.state.encoding.equal_keys import OneForm
from trident.state.interfaces import Key

__all__ = [
    "has_kernel",
    "is_native",
    "is_plain_key",
    "merge_partials",
    "merged",
    "merging_kernel",
    "partial",
    "rows_of",
]

# the kernel that aggregates tuples, the kernel that merges partials
_KERNELS: dict[type[Any], tuple[str, str]] = {
    Count: ("count_all", "sum"),
    Sum: ("sum", "sum"),
    Max: ("max", "max"),
    Min: ("min", "min"),
}

_PLAIN_KEYS = {"string", "bigint", "int", "smallint", "tinyint"}

_MANY_ROWS = 30_000
"""Up to this many rows, counting values is faster than `group_by`, which takes 0.15 ms to start."""

_FEW_ROWS = 64
"""Up to this many rows, a Python object per row costs less than the start of a kernel."""


def is_native(aggregator: Any) -> bool:
    """Whether an Arrow kernel does what the aggregator does. A sum that may overflow still runs row by row."""
    return type(aggregator) in _KERNELS or is_pick(aggregator)


def has_kernel(aggregation: Aggregation, table: pa.Table) -> bool:
    """Whether an Arrow kernel can aggregate this table."""
    return is_native(aggregation.aggregator) and not _may_overflow(aggregation, table, aggregation.inputs)


def is_plain_key(type_: str | None) -> bool:
    """Whether Arrow and Python agree, without any care, on which values of a field's type are equal."""
    return type_ in _PLAIN_KEYS


def partial(step: str, aggregation: Aggregation, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    """Aggregate one table of a batch: one row per key; ungrouped, one row, or none if the table is empty."""
    schema = schema_of(aggregation.partial)
    kernel = _KERNELS.get(type(aggregation.aggregator))
    if table.num_rows == 0:
        return schema.empty_table()
    if table.num_rows <= _MANY_ROWS and _counts_one_field(aggregation):
        return pa.Table.from_arrays(_value_counts(table.column(aggregation.group.names[0])), schema=schema)
    table = one_form(table, aggregation.group.names)
    if is_pick(aggregation.aggregator):
        return picked(aggregation, table)
    if kernel is not None:
        table = _as_declared(table, aggregation, schema.types[-1])
    if kernel is None or _may_overflow(aggregation, table, aggregation.inputs):
        return _python_partial(step, aggregation, table, on_error)
    function = kernel[0]
    inputs: Any = [] if function == "count_all" else aggregation.inputs.names[0]
    if aggregation.grouped:
        keys = list(aggregation.group.names)
        grouped = table.group_by(keys, use_threads=False).aggregate([(inputs, function)])
        value = grouped.column("count_all" if function == "count_all" else f"{inputs}_{function}")
        columns = [*(grouped.column(name) for name in keys), value]
    else:
        columns = [_whole(table, function, inputs)]
    return _typed(columns, schema, aggregation)


def _counts_one_field(aggregation: Aggregation) -> bool:
    group = aggregation.group
    return type(aggregation.aggregator) is Count and len(group) == 1 and is_plain_key(group.types[0])


def _value_counts(column: pa.ChunkedArray) -> list[pa.Array]:
    """The distinct values in the order in which they appear, and how often each does."""
    if len(column) > _FEW_ROWS:
        counts = pc.value_counts(column)
        return [counts.field(0), counts.field(1)]
    counted: dict[Any, int] = {}  # no `Counter`, which takes longer to make than these to count
    for value in column.to_pylist():
        counted[value] = counted.get(value, 0) + 1
    return [pa.array(list(counted), column.type), pa.array(list(counted.values()), pa.int64())]


def _as_declared(table: pa.Table, aggregation: Aggregation, type_: pa.DataType) -> pa.Table:
    """Convert whole numbers to doubles if the aggregate is declared as one, because then their sum cannot overflow 64 bits."""
    for name in aggregation.inputs.names if pa.types.is_floating(type_) else ():
        column = table.column(name)
        if pa.types.is_integer(column.type):
            table = table.set_column(table.schema.get_field_index(name), name, column.cast(type_, safe=False))
    return table


def _may_overflow(aggregation: Aggregation, table: pa.Table, summed: Fields) -> bool:
    """Whether a sum may exceed 64 bits or 38 digits: Arrow's kernel would silently wrap around."""
    if type(aggregation.aggregator) is not Sum:
        return False
    column = table.column(summed.names[0])
    if pa.types.is_integer(column.type):
        limit = 1 << 63
    elif pa.types.is_decimal(column.type):
        limit = 10 ** (38 - column.type.scale)
    else:
        return False
    bounds = pc.min_max(column).as_py()
    return bool(max(abs(int(bounds["min"] or 0)), abs(int(bounds["max"] or 0))) + 1 >= limit // max(1, table.num_rows))


def _whole(table: pa.Table, function: str, inputs: Any) -> pa.Array:
    if function == "count_all":
        return pa.array([table.num_rows], pa.int64())
    column = table.column(inputs)
    return pa.array([getattr(pc, function)(column).as_py()], column.type if function in ("min", "max") else None)


def _typed(columns: list[Any], schema: pa.Schema, aggregation: Aggregation) -> pa.Table:
    value = columns[-1].cast(schema.types[-1])
    if isinstance(aggregation.aggregator, Sum) and value.null_count:
        value = pc.fill_null(value, pa.array([0], schema.types[-1])[0])  # a sum over nothing but nulls is 0
    return pa.table([*columns[:-1], value], schema=schema)


def _python_partial(step: str, aggregation: Aggregation, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    aggregator = aggregation.aggregator
    found: dict[Key, Any] = {}
    keys = keys_of(table, aggregation.group.names)

    def visit(at: int, row: Any) -> None:
        key = keys[at]
        before = found[key] if key in found else aggregator.zero()
        value = aggregator.init(row)
        found[key] = value if before is None else aggregator.combine(before, value)

    iterate(step, table, aggregation.inputs, on_error, visit)
    fields = aggregation.partial
    rows = [(*key, value) for key, value in found.items()]
    return pa.table(columns_of(step, fields, rows), schema=schema_of(fields))


def merging_kernel(aggregation: Aggregation) -> str | None:
    """Return the function of Arrow that merges partials, as a store of columns knows it; None if there is none."""
    kernel = _KERNELS.get(type(aggregation.aggregator))
    return kernel and kernel[1]


def merged(aggregation: Aggregation, parts: list[pa.Table]) -> pa.Table | None:
    """Merge partials with a kernel: one row per key, no row for no input. None if no kernel can do it."""
    parts = [part for part in parts if part.num_rows]
    if len(parts) < 2:
        return parts[0] if parts else schema_of(aggregation.partial).empty_table()
    kernel, table = merging_kernel(aggregation), pa.concat_tables(parts)
    if is_pick(aggregation.aggregator):
        return picked_of_partials(aggregation, table)
    if kernel is None or _may_overflow(aggregation, table, aggregation.output):
        return None
    return _merge_native(aggregation, table, kernel)


def merge_partials(aggregation: Aggregation, parts: list[pa.Table]) -> tuple[list[Key], list[Any]]:
    """Merge partials of all tasks: distinct keys and their values, in the same order (ungrouped: at most one)."""
    table = merged(aggregation, parts)
    if table is not None:
        return rows_of(table, aggregation)
    found: dict[Key, Any] = {}
    combine = aggregation.aggregator.combine
    for key, value in zip(*rows_of(pa.concat_tables(parts), aggregation), strict=True):
        before = found.get(key)
        found[key] = value if before is None else combine(before, value)
    return OneForm(found), list(found.values())


def rows_of(table: pa.Table, aggregation: Aggregation) -> tuple[list[Key], list[Any]]:
    """Return the keys and values of a partial, in the same order."""
    return keys_of(table, aggregation.group.names), table.column(aggregation.output.names[0]).to_pylist()


def _merge_native(aggregation: Aggregation, table: pa.Table, function: str) -> pa.Table:
    output = aggregation.output.names[0]
    schema = schema_of(aggregation.partial)
    if not aggregation.grouped:
        value = getattr(pc, function)(table.column(output)).as_py()
        return pa.table([pa.array([value], arrow_type(aggregation.output.types[0] or ""))], schema=schema)
    keys = list(aggregation.group.names)
    grouped = table.group_by(keys, use_threads=False).aggregate([(output, function)])
    columns = [*(grouped.column(name) for name in keys), grouped.column(f"{output}_{function}")]
    return pa.table([c.cast(t) for c, t in zip(columns, schema.types, strict=True)], schema=schema)
