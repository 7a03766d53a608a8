"""Fields as Arrow: the one place where DDL types become Arrow types and rows become tables."""

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pyarrow as pa

from trident.errors import CorruptValueError, TopologyError
from trident.fields import Fields, split_commas, struct_fields
from trident.strict_columns import UNFIT, Misfit, impossible_in, is_kept_by_float, strict_array, strict_column
from trident.types import simple_type

__all__ = ["UNFIT", "Misfit", "impossible_in", "strict_array", "strict_column"]  # of another module


@lru_cache(maxsize=1024)
def arrow_type(ddl: str) -> pa.DataType:
    simple = simple_type(ddl)
    if simple is not None:
        return simple.arrow
    head, _, rest = ddl.partition("<")
    parts = split_commas(rest[:-1])
    if head == "array":
        return pa.list_(arrow_type(parts[0].strip()))
    if head == "map":
        return pa.map_(arrow_type(parts[0].strip()), arrow_type(parts[1].strip()))
    if head == "struct":
        return pa.struct([pa.field(name, arrow_type(type_)) for name, type_ in struct_fields(ddl)])
    raise TopologyError(f"{ddl!r} is not a Spark type")


@lru_cache(maxsize=1024)
def schema_of(fields: Fields) -> pa.Schema:
    return pa.schema([pa.field(name, arrow_type(_known_type(fields, name))) for name in fields.names])


def row_of(values: Any) -> tuple[Any, ...]:
    """Return a row of user code as a tuple of its own; `TypeError` for a text or a dict, whose parts are not its values."""
    if isinstance(values, str | bytes | bytearray | Mapping | Set) or not isinstance(values, Iterable):
        raise TypeError(f"a row is a tuple or list with one value per field, not {values!r:.200}")
    return tuple(values)


def table_of(fields: Fields, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Build a table from rows of plain values; raises `Misfit`, a ValueError, for one that is not of its field's type."""
    schema = schema_of(fields)
    if not {len(schema)}.issuperset(map(len, rows)):
        wrong = next(row for row in rows if len(row) != len(schema))
        raise ValueError(f"a row has {len(wrong)} values, {wrong!r:.200}; give one value per field")
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    typed = map(strict_column, schema.names, fields.types, schema.types, columns)
    return pa.table(list(typed), schema=schema)


_ALIKE = tuple(
    {getattr(pa.lib, f"Type_{name}", None) for name in names.split()}  # an older Arrow lacks some
    for names in (
        "INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64",
        "HALF_FLOAT FLOAT DOUBLE",
        "DECIMAL32 DECIMAL64 DECIMAL128 DECIMAL256",
        "STRING LARGE_STRING STRING_VIEW",
        "BINARY LARGE_BINARY BINARY_VIEW FIXED_SIZE_BINARY",
        "LIST LARGE_LIST",
    )
)


def are_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether types are of one kind, as whole numbers, texts or times are: converted to each other if the values fit."""
    return one.id == other.id or any({one.id, other.id} <= each for each in _ALIKE)


def strict_cast(array: Any, type_: pa.DataType, field: str, declared: str | None = None) -> Any:
    """Return the column of a field as one of another type; raises one of `UNFIT`, mostly `Misfit`, if a value does not fit."""
    of = array.type
    if of == type_:
        return array
    if pa.types.is_dictionary(of):
        return strict_cast(array.cast(of.value_type), type_, field, declared)
    is_simple = are_alike(of, type_) and not pa.types.is_nested(of)
    if is_simple and not (pa.types.is_timestamp(of) and (of.tz is None) != (type_.tz is None)):
        with suppress(*UNFIT):
            made = array.cast(type_)
            if not pa.types.is_float32(type_) or is_kept_by_float(made, array.cast(pa.float64())):
                return made
    # By value, because Arrow's cast makes times of numbers, and drops members of structs.
    return strict_column(field, declared, type_, python_of(array))


def cast_table(table: pa.Table, fields: Fields) -> pa.Table:
    schema = schema_of(fields)
    if table.schema.equals(schema):
        return table
    columns = [table.column(name) for name in schema.names]
    return pa.table(list(map(strict_cast, columns, schema.types, schema.names, fields.types)), schema=schema)


def array_of(name: str, type_: pa.DataType, values: Sequence[Any]) -> Any:
    """Return values as the Arrow array of a column; an error names the column and the value that does not fit."""
    try:
        return strict_cast(values, type_, name) if isinstance(values, pa.Array) else strict_array(values, type_)
    except UNFIT as error:
        bad, said = (error.value, error.reason) if isinstance(error, Misfit) else (None, str(error))
        raise CorruptValueError(
            f"cannot write {bad!r} ({type(bad).__name__}) into column {name!r} of type {type_}: {said}. "
            "Declare the type that the values have, or return values of the declared type"
        ) from error


def ipc_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def table_of_ipc(data: bytes) -> pa.Table:
    """Return the table of an Arrow IPC stream; its buffers are views of `data`."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


def one_table(tables: Iterable[pa.Table]) -> pa.Table:
    """Return tables of the same columns as one; Arrow itself loses the rows of tables without columns."""
    parts = list(tables)
    if parts and not parts[0].num_columns:
        return rows_without_columns(sum(each.num_rows for each in parts))
    return pa.concat_tables(parts)


def rows_without_columns(count: int) -> pa.Table:
    return pa.table({"_": pa.nulls(count)}).select([])


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; beyond 2 GiB of text or bytes as one of a large type."""
    if column.num_chunks == 1:
        return column.chunk(0)
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # no array of the type can hold it
        array = pa.concat_arrays([chunk.cast(large_type(array.type)) for chunk in array.chunks])
    return array


def large_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of texts or bytes of any length together, for that of up to 2 GiB; another type as it is."""
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(type_, type_)


def python_of(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of an array as tuples carry them: maps are dictionaries (`ValueError` if one has a key twice).

    A map whose keys are lists or structs is a list of pairs.
    """
    array = one_array(array) if isinstance(array, pa.ChunkedArray) else array  # each look at it is faster
    values: list[Any] = array.to_pylist()
    return [_with_dicts(value, array.type) for value in values] if _has_map(array.type) else values


def _has_map(type_: pa.DataType) -> bool:
    if not pa.types.is_nested(type_):
        return False
    return pa.types.is_map(type_) or any(_has_map(type_.field(at).type) for at in range(type_.num_fields))


def _with_dicts(value: Any, type_: pa.DataType) -> Any:
    """Do what `to_pylist(maps_as_pydicts="strict")` does, which Arrow has had since its version 20."""
    if value is None or not _has_map(type_):
        return value
    if pa.types.is_map(type_):
        pairs = [(key, _with_dicts(each, type_.item_type)) for key, each in value]
        if pa.types.is_nested(type_.key_type):
            return pairs  # Python has no dictionary of lists or dictionaries
        made = dict(pairs)
        if len(made) < len(value):
            raise ValueError(f"a map has a key twice: {value!r}")
        return made
    if pa.types.is_struct(type_):
        return {field.name: _with_dicts(value[field.name], field.type) for field in type_}
    return [_with_dicts(each, type_.value_type) for each in value]


def _known_type(fields: Fields, name: str) -> str:
    type_ = fields.type_of(name)
    if type_ is None:
        raise TopologyError(f"the type of field {name!r} is not known; declare it as '{name}: string' or another type")
    return type_


# Parts of batches that carry their rows: those of spouts whose rows are in the driver.


class TablePart:
    """A part that carries its rows: a view within the process, pickled an Arrow IPC stream of these rows alone."""

    __slots__ = ("table",)

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled table would take the whole buffers along; a slice is only a view of them.
        return _part_of_ipc, (ipc_of(self.table),)


def _part_of_ipc(data: bytes) -> TablePart:
    return TablePart(table_of_ipc(data))


class TableEmitter:
    """Emits parts that carry their rows."""

    is_quick = True  # it never waits, so the loop may call it

    def emit(self, part: TablePart) -> Iterable[pa.Table]:
        return [part.table]


def cut_table(table: pa.Table, parallelism: int, fewest: int = 1024) -> list[TablePart]:
    """Cut a table into at most `parallelism` views of about equal length, each of `fewest` rows at least, or into one."""
    rows = table.num_rows
    count = max(1, min(parallelism, rows // fewest))
    bounds = [rows * k // count for k in range(count + 1)]
    return [TablePart(table.slice(start, end - start)) for start, end in pairwise(bounds)]
