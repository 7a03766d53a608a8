"""Columns of others as the types of fields, without a loss: each value is that of the file or table, or is refused.

The one place where Arrow data that is not of this program gets its declared types: Parquet, Delta, DataFrames, Arrow tables.
Members of structs are found by name. What has a greater type than declared is read as long as its values fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.fields import struct_type

__all__ = ["Misfit", "align", "ddl_of", "reads_as", "rebuild", "spark_type"]

Convert = Callable[[pa.Array, pa.DataType, str], pa.Array]


class Misfit(ValueError):
    """A column, or a value in it, that is not of the declared type; its text says where, what and what to do."""


# ---- types --------------------------------------------------------------------------------------------------------------

_DDL = {
    pa.string(): "string", pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int",
    pa.int64(): "bigint", pa.float32(): "float", pa.float64(): "double", pa.binary(): "binary", pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp", pa.timestamp("us"): "timestamp_ntz",
}  # fmt: skip
_AS = {
    pa.null(): pa.string(),  # nobody knows better
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(), pa.large_binary(): pa.binary(),
}  # fmt: skip
if hasattr(pa, "string_view"):  # since Arrow 16
    _AS |= {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)


def spark_type(type_: pa.DataType) -> pa.DataType:
    """Return the type that a column is read as if none is declared; one that Spark does not have stays as it is."""
    if isinstance(type_, pa.BaseExtensionType):
        return spark_type(type_.storage_type)
    if isinstance(type_, pa.DictionaryType):
        return spark_type(type_.value_type)
    if isinstance(type_, _LISTS):
        return pa.list_(spark_type(type_.value_type))
    if isinstance(type_, pa.MapType):
        return pa.map_(spark_type(type_.key_type), spark_type(type_.item_type))
    if isinstance(type_, pa.StructType):
        return pa.struct([pa.field(one.name, spark_type(one.type)) for one in type_])
    if isinstance(type_, pa.TimestampType):
        return pa.timestamp("us", None if type_.tz is None else "UTC")
    if pa.types.is_decimal(type_) and type_.precision <= 38:
        return pa.decimal128(type_.precision, type_.scale)
    return pa.binary() if pa.types.is_fixed_size_binary(type_) else _AS.get(type_, type_)


def ddl_of(type_: pa.DataType) -> str | None:
    """Return the DDL type that a column is read as if none is declared; None if Spark has no type for it."""
    return _ddl(spark_type(type_))


def _ddl(type_: pa.DataType) -> str | None:
    if isinstance(type_, pa.ListType):
        parts = {"": _ddl(type_.value_type)}
    elif isinstance(type_, pa.MapType):
        parts = {"key": _ddl(type_.key_type), "value": _ddl(type_.item_type)}
    elif isinstance(type_, pa.StructType):
        parts = {one.name: _ddl(one.type) for one in type_}
    elif isinstance(type_, pa.Decimal128Type):
        return f"decimal({type_.precision},{type_.scale})"
    else:
        return _DDL.get(type_)
    inner = [part for part in parts.values() if part is not None]
    if len(inner) < len(parts):
        return None
    if isinstance(type_, pa.StructType):
        return struct_type(list(parts), inner)
    return f"{'map' if isinstance(type_, pa.MapType) else 'array'}<{','.join(inner)}>"


def reads_as(type_: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a column may be values of a declared type."""
    found = spark_type(type_)
    if pa.types.is_null(type_) or found == wanted:
        return True
    if isinstance(found, pa.StructType) and isinstance(wanted, pa.StructType):
        both = [one for one in wanted if found.get_field_index(one.name) >= 0]
        is_grown = len(both) in (len(found), len(wanted))  # else a member may have got another name
        return is_grown and bool(both) and all(reads_as(found.field(one.name).type, one.type) for one in both)
    if isinstance(found, pa.ListType) and isinstance(wanted, pa.ListType):
        return reads_as(found.value_type, wanted.value_type)
    if isinstance(found, pa.MapType) and isinstance(wanted, pa.MapType):
        return reads_as(found.key_type, wanted.key_type) and reads_as(found.item_type, wanted.item_type)
    if pa.types.is_decimal(found) or pa.types.is_decimal(wanted):
        return all(pa.types.is_decimal(one) or pa.types.is_integer(one) for one in (found, wanted))
    return all(pa.types.is_integer(one) or pa.types.is_floating(one) for one in (found, wanted))


# ---- values -------------------------------------------------------------------------------------------------------------


def align(column: Any, wanted: pa.DataType, name: str) -> Any:
    """Return an array as one of a declared type; `Misfit` naming the value if one would lose something."""
    if column.type == wanted:
        return column
    if not reads_as(column.type, wanted):
        raise Misfit(_of_another_type(name, column.type, wanted))
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([rebuild(chunk, wanted, name, _convert) for chunk in column.chunks], wanted)
    return rebuild(column, wanted, name, _convert)


def _of_another_type(name: str, found: pa.DataType, wanted: pa.DataType) -> str:
    type_ = ddl_of(found)
    said = f"column {name!r} is of type {found}, and the field is declared as {ddl_of(wanted)}"
    if type_ is None:
        return f"{said}: Spark has no type for it. Cast it where it is written, as to a string or a bigint, or leave it out"
    return f"{said}. Declare it as {type_}, or leave it out"


def _convert(array: pa.Array, wanted: pa.DataType, path: str) -> pa.Array:
    try:
        return _converted(array, wanted)
    except pa.ArrowInvalid as error:
        if len(array) > 1:
            half = len(array) // 2
            return pa.concat_arrays([_convert(one, wanted, path) for one in (array[:half], array[half:])])
        type_ = ddl_of(array.type)
        raise Misfit(
            f"the value {array[0]} of column {path!r} is no {ddl_of(wanted)}: the column is {array.type}. "
            + (f"Declare it as {type_}" if type_ != ddl_of(wanted) else "Write it in a type that Spark has")
            + ", or leave it out"
        ) from error


def _converted(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if pa.types.is_decimal(wanted) and pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(20, 0))  # Arrow would need digits for every whole number
    if not pa.types.is_floating(wanted) or not (pa.types.is_integer(array.type) or array.type == pa.float64()):
        return array.cast(wanted)
    made = array.cast(wanted, safe=False)  # Arrow refuses some numbers that are exact, and rounds others
    back = made.cast(array.type)
    if not pc.all(pc.or_kleene(pc.equal(back, array), pc.is_nan(made)), min_count=0).as_py():
        raise pa.ArrowInvalid("it is not exact")
    return made


def rebuild(array: pa.Array, wanted: pa.DataType, path: str, convert: Convert) -> pa.Array:
    """Return an array as one of another type; `convert` makes what is no list, map or struct, of its values and its path."""
    if array.type == wanted:
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return rebuild(array.storage, wanted, path, convert)
    if isinstance(array.type, pa.DictionaryType):
        return rebuild(array.dictionary_decode(), wanted, path, convert)
    if isinstance(array.type, pa.StructType) and isinstance(wanted, pa.StructType):
        there = {one.name: column for one, column in zip(array.type, array.flatten(), strict=True)}
        columns = [
            rebuild(there[one.name], one.type, f"{path}.{one.name}", convert)
            if one.name in there
            else pa.nulls(len(array), one.type)
            for one in wanted
        ]
        return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=array.is_null())
    if isinstance(array.type, _LISTS) and isinstance(wanted, pa.ListType):
        values = rebuild(array.flatten(), wanted.value_type, f"{path}[]", convert)
        return pa.ListArray.from_arrays(_offsets(array), values).cast(wanted)
    if isinstance(array.type, pa.MapType) and isinstance(wanted, pa.MapType):
        whole = array.take(pa.array(range(len(array)), pa.int64()))  # with offsets from 0, and nothing under a null
        keys, items = (
            rebuild(part, type_, f"{path}[{what}]", convert)
            for part, type_, what in ((whole.keys, wanted.key_type, "key"), (whole.items, wanted.item_type, "value"))
        )
        return pa.MapArray.from_arrays(_masked(whole, whole.offsets), keys, items).cast(wanted)
    return convert(array, wanted, path)


def _offsets(array: pa.Array) -> pa.Array:
    """Return where the lists begin in the flattened values, in which a null has nothing."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    ends = pc.cumulative_sum(lengths)
    return _masked(array, pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32()))


def _masked(array: pa.Array, offsets: pa.Array) -> pa.Array:
    if not array.null_count:
        return offsets
    return pc.if_else(pa.concat_arrays([array.is_valid(), pa.array([True])]), offsets, None)
