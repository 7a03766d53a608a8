"""Types of columns in files that are not written for Spark: which of Spark's types they are read as."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trident.alignment import replace_leaves
from trident.errors import TopologyError
from trident.fields import Fields, names_shown


def read_schema(file: pq.ParquetFile) -> pa.Schema:
    """Return the schema of a file, in which Spark's INT96 are the moments that they stand for: Arrow calls them local times."""
    leaves = [file.schema.column(number) for number in range(len(file.schema))]
    moments = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
    schema = file.schema_arrow
    if not moments:
        return schema
    return pa.schema(
        [
            pa.field(one.name, replace_leaves(one.type, _as_moment))
            if any(path == one.name or path.startswith(f"{one.name}.") for path in moments)
            else one
            for one in schema
        ]
    )


def typed_as(fields: Fields, names: Sequence[str], type_of: Callable[[str], str | None], what: str) -> Fields:
    """Return fields with their types; one that is not declared is the column's, of the columns `names` that `what` has."""
    types = list(fields.types)
    for at, name in enumerate(fields.names):
        if types[at] is None:
            if name not in names:
                raise TopologyError(
                    f"field {name!r} has no type, and {what} has no such column to take it from; it has "
                    f"{names_shown(names, name)}"
                )
            types[at] = type_of(name)
    return Fields.of(fields.names, types)


def wide_floats(type_: pa.DataType) -> pa.DataType:
    """Return a type with `double` in place of each `float`."""
    return replace_leaves(type_, lambda one: pa.float64() if pa.types.is_float32(one) else one)


def infinite_floats(table: pa.Table) -> int:
    """Count the infinite numbers in a table, wherever they are."""
    return sum(_infinite(column) for column in table.columns)


def refuse_wide_decimals(table: pa.Table | pa.RecordBatch) -> None:
    """Raise `pa.ArrowInvalid` for a decimal of more digits than its type: Arrow's parsers let 1 pass for a decimal(5,5)."""
    for name, column in zip(table.schema.names, table.columns, strict=True):
        try:
            if "decimal" in str(column.type):
                column.validate(full=True)
        except pa.ArrowInvalid:
            raise pa.ArrowInvalid(f"column {name!r}: a number has more digits than {column.type}") from None


def _infinite(column: pa.ChunkedArray | pa.Array) -> int:
    if pa.types.is_floating(column.type):
        return int(pc.sum(pc.is_inf(column)).as_py() or 0)
    if pa.types.is_struct(column.type):
        return sum(_infinite(one) for one in column.flatten())
    return _infinite(pc.list_flatten(column)) if pa.types.is_list(column.type) else 0


def _as_moment(type_: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(type_) else type_
