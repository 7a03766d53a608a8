"""Types of columns in files that are not written for Spark: which of Spark's types they are read as."""

from __future__ import annotations

import pyarrow as pa

from spouts.rows.driver_rows import ddl_of
from trident.arrow import arrow_type
from trident.errors import TopologyError
from trident.fields import Fields

__all__ = ["fields_of_columns", "reads_as"]

_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_WIDER = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}


def fields_of_columns(schema: pa.Schema) -> Fields:
    """Return the fields of columns; `TopologyError` naming a column that Spark has no type for."""
    return Fields.of(schema.names, [ddl_of(_plain(column.type), column.name) for column in schema])


def reads_as(type_: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column may be read as a type without a loss: it is that type to Spark, or a narrower one."""
    plain = _plain(type_)
    try:
        same = arrow_type(ddl_of(plain, "")) == wanted
    except TopologyError:  # a type that Spark does not have
        return False
    return same or wanted in _WIDER.get(plain, ())


def _plain(type_: pa.DataType) -> pa.DataType:
    if isinstance(type_, pa.DictionaryType):
        return _plain(type_.value_type)
    return _UNSIGNED.get(type_, type_)
