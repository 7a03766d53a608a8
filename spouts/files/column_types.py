"""Types of columns in files that are not written for Spark: which of Spark's types they are read as."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from spouts.rows.driver_rows import ddl_of
from trident.arrow import arrow_type
from trident.errors import TopologyError
from trident.fields import Fields

_OTHER_FORMS = {
    pa.uint8(): pa.int16(),  # Spark has no unsigned numbers
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
}
if hasattr(pa, "string_view"):  # since Arrow 16
    _OTHER_FORMS |= {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_WIDER = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}


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


def fields_of_columns(schema: pa.Schema) -> Fields:
    """Return the fields of columns; `TopologyError` naming a column that Spark has no type for."""
    return Fields.of(schema.names, [ddl_of(_plain(column.type), column.name) for column in schema])


def typed_as(fields: Fields, names: Sequence[str], type_of: Callable[[str], str | None], what: str) -> Fields:
    """Return fields with their types; one that is not declared is the column's, of the columns `names` that `what` has."""
    types = list(fields.types)
    for at, name in enumerate(fields.names):
        if types[at] is None:
            if name not in names:
                raise TopologyError(
                    f"field {name!r} has no type, and {what} has no such column to take it from; it has {list(names)}"
                )
            types[at] = type_of(name)
    return Fields.of(fields.names, types)


def reads_as(type_: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column may be read as a type without a loss: it is that type to Spark, or a narrower one."""
    plain = _plain(type_)
    try:
        same = arrow_type(ddl_of(plain, "")) == wanted
    except TopologyError:  # a type that Spark does not have
        return False
    return same or wanted in _WIDER.get(plain, ())


def _of_moments(type_: pa.DataType) -> pa.DataType:
    return _rebuilt(type_, lambda one: pa.timestamp("us", "UTC") if pa.types.is_timestamp(one) else one)


def _plain(type_: pa.DataType) -> pa.DataType:
    """Return the type without what is only another form of the same values in memory."""
    return _rebuilt(type_, lambda one: _OTHER_FORMS.get(one, one))


def _rebuilt(type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    if isinstance(type_, pa.DictionaryType):
        return _rebuilt(type_.value_type, leaf)
    if isinstance(type_, (pa.ListType, pa.LargeListType)):
        return pa.list_(_rebuilt(type_.value_type, leaf))
    if isinstance(type_, pa.MapType):
        return pa.map_(_rebuilt(type_.key_type, leaf), _rebuilt(type_.item_type, leaf))
    if isinstance(type_, pa.StructType):
        return pa.struct([pa.field(one.name, _rebuilt(one.type, leaf)) for one in type_])
    return leaf(type_)
