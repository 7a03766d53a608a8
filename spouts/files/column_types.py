"""Types of columns in files that are not written for Spark: which of Spark's types they are read as."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

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
            pa.field(one.name, _of_moments(one.type))
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


def _of_moments(type_: pa.DataType) -> pa.DataType:
    if isinstance(type_, pa.ListType):
        return pa.list_(_of_moments(type_.value_type))
    if isinstance(type_, pa.MapType):
        return pa.map_(_of_moments(type_.key_type), _of_moments(type_.item_type))
    if isinstance(type_, pa.StructType):
        return pa.struct([pa.field(one.name, _of_moments(one.type)) for one in type_])
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(type_) else type_
