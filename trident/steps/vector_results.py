"""The results of vectorised user code as typed columns; a wrong result raises an error that names it."""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import UNFIT, Misfit, are_alike, impossible_in, schema_of, strict_cast
from trident.fields import Fields
from trident.naming import counted
from trident.steps.failures import Bounds, WrongResult


def rows_of(name: str, fields: Fields, result: Any, rows: int) -> list[Any]:
    columns = _columns(name, fields, result)
    for column in columns:
        if len(column) != rows:
            _refuse(
                f"{name} returned {len(column)} values for {rows} tuples; it must return one per tuple, in order, or be "
                "declared with flat=True"
            )
    return columns


def parents_and_columns(
    name: str, fields: Fields, result: Any, rows: int, bounds: Bounds, parents_needed: bool
) -> tuple[Any, list[Any]]:
    """Return the parents (None if there are none and none are needed) and columns of a flat function."""
    parents, columns = _split_flat(name, fields, result, rows, parents_needed)
    if parents is not None:
        if len(parents) > bounds.per_tuple < int(np.bincount(parents).max()):
            bounds.refuse_tuple()
    elif len(columns[0]) > bounds.per_tuple * rows:  # some tuple must have given too many
        bounds.refuse_tuple()
    return parents, columns


def _split_flat(name: str, fields: Fields, result: Any, rows: int, parents_needed: bool) -> tuple[Any, list[Any]]:
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if isinstance(result, (pa.ListArray, pa.LargeListArray)):
        if len(result) != rows:
            _refuse(f"{name} returned {len(result)} lists for {rows} tuples; it must return one per tuple, in order")
        parents, elements = _elements(result)
        return parents, _columns(name, fields, elements)
    if isinstance(result, tuple) and len(result) == 2:
        columns = _same_length(name, _columns(name, fields, result[1]))
        return _parents(name, result[0], rows, len(columns[0])), columns
    if parents_needed:
        _refuse(
            f"{name} returned {_kind(result)}; with flat=True it must return a list array with a list per tuple, or "
            "(parents, columns)"
        )
    return None, _same_length(name, _columns(name, fields, result))


def mask_of(name: str, result: Any, rows: int) -> Any:
    if not isinstance(result, (pa.Array, pa.ChunkedArray)) or not pa.types.is_boolean(result.type):
        _refuse(f"{name} returned {_kind(result)}; a filter must return a boolean array with a value per tuple")
    if len(result) != rows:
        _refuse(f"{name} returned {len(result)} values for {rows} tuples; a filter must return one per tuple")
    return result


def _refuse(cause: str) -> NoReturn:
    raise WrongResult(cause)


def _kind(result: Any) -> str:
    if isinstance(result, (pa.Array, pa.ChunkedArray)):
        return f"an array of {result.type}"
    return type(result).__name__


def _elements(lists: Any) -> tuple[Any, Any]:
    """Return the elements of all lists, none of one that is null, and the number of the list that each is in (int64)."""
    if lists.null_count:
        valid = pc.indices_nonzero(lists.is_valid())
        parents, elements = _elements(lists.drop_null())
        return valid.to_numpy()[parents].astype(np.int64), elements
    return pc.list_parent_indices(lists).to_numpy().astype(np.int64), lists.flatten()


def _parents(name: str, parents: Any, rows: int, count: int) -> Any:
    if isinstance(parents, pa.ChunkedArray):
        parents = parents.combine_chunks()
    if not isinstance(parents, (pa.Array, np.ndarray)):
        _refuse(f"{name} returned {_kind(parents)} as parents; they must be an array of whole numbers")
    array = pa.array(parents)
    if not pa.types.is_integer(array.type) or array.null_count:
        _refuse(f"{name} returned an array of {array.type} as parents; they must be whole numbers without nulls")
    if len(array) != count:
        _refuse(f"{name} returned {len(array)} parents for {count} rows; it must return one per row")
    found = array.to_numpy().astype(np.int64)
    if count and not 0 <= found.min() <= found.max() < rows:
        _refuse(
            f"{name} returned parents from {found.min()} to {found.max()} for {rows} tuples; they count from 0 to "
            f"{rows - 1}"
        )
    return found


def _same_length(name: str, columns: list[Any]) -> list[Any]:
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        _refuse(f"{name} returned columns of different lengths: {lengths}")
    return columns


def _columns(name: str, fields: Fields, result: Any) -> list[Any]:
    """One array per field; a record batch is matched by name if it has the same names, else by position."""
    columns = _column_list(fields, result)
    if len(columns) != len(fields):
        given, wanted = counted(len(columns), "column"), counted(len(fields), "output field")
        _refuse(f"{name} returned {given} for the {wanted} {list(fields.names)}")
    schema = schema_of(fields)
    return [
        _typed_column(name, f"field {field!r}, which is declared {declared} ({type_})", type_, column)
        for field, declared, type_, column in zip(schema.names, fields.types, schema.types, columns, strict=True)
    ]


def _column_list(fields: Fields, result: Any) -> Sequence[Any]:
    if isinstance(result, (pa.RecordBatch, pa.Table)):
        same = sorted(result.schema.names) == sorted(fields.names)
        return [result.column(name) for name in fields.names] if same else result.columns
    is_struct = isinstance(result, (pa.Array, pa.ChunkedArray)) and pa.types.is_struct(result.type)
    if is_struct and not (len(fields) == 1 and (fields.types[0] or "").startswith("struct<")):
        return list(result.flatten())
    if isinstance(result, list) and not all(isinstance(one, (pa.Array, pa.ChunkedArray)) for one in result):
        return [result]  # plain values, which are refused
    return result if isinstance(result, (tuple, list)) else [result]


def _typed_column(name: str, field: str, type_: pa.DataType, column: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(column, pa.Array):
        _refuse(f"{name} returned {_kind(column)} for {field}; it must return a pyarrow.Array")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_null(column.type) and not are_alike(column.type, type_):
        _refuse(f"{name} returned {column.type} for {field}")
    try:
        typed = strict_cast(column, type_, name)
    except UNFIT as error:
        said = f"{error.shown} ({error.reason})" if isinstance(error, Misfit) else error
        raise WrongResult(f"{name} returned {column.type} for {field}: {said}") from error
    return check_possible(name, typed)


def check_possible(name: str, column: Any) -> Any:
    """Return a column; raises `WrongResult` if it holds what no value may be."""
    why, _ = impossible_in(column)
    if why:
        raise WrongResult(f"{name} gives an impossible value: {why}")
    return column
