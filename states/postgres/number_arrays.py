"""Opaque numbers of many keys without a Python object for each: a read is one row of arrays, a commit puts arrays of Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from states.postgres.columns import Column, Columns
from trident.state.columns.number_columns import (
    ATTEMPT,
    CURR,
    HAS_CURR,
    HAS_PREV,
    PREV,
    TXID,
    NumberColumns,
    NumberForm,
)
from trident.state.interfaces import StateType
from trident.state.table import KeyColumns
from trident.types import class_of

_VALUES = frozenset({"bigint", "double"})


def fits_arrays(columns: Columns) -> bool:
    """Whether the values are opaque numbers of 64 bits, and the keys texts and whole numbers."""
    is_number = columns.kind is StateType.OPAQUE and not columns.shape.is_struct
    keys, values = ({column.declared for column in some} for some in (columns.keys, columns.values))
    return is_number and set(map(class_of, keys)) <= {str, int} and values <= _VALUES


def select_list(columns: Columns) -> str:
    """Return what a read selects: how many rows are foreign, the keys (of texts the lengths, too), the values."""
    txid, attempt, prev, curr = (f"own.{column.quoted}" for column in (*columns.own, *columns.values))
    parts = [f"count(*) FILTER (WHERE {txid} IS NULL OR {attempt} IS NULL)"]
    for key in columns.keys:
        name = f"own.{key.quoted}"
        if key.declared == "string":  # bytes as they are sent: those of the database may be in another encoding
            parts += [f"array_agg(octet_length(convert_to({name}, 'UTF8')))", f"string_agg({name}, '')"]
        else:
            parts.append(f"array_agg({name})")
    flags = f"({prev} IS NOT NULL)::int * {HAS_PREV} + ({curr} IS NOT NULL)::int * {HAS_CURR}"
    fields = [flags, f"coalesce({curr}, 0)", f"coalesce({prev}, 0)", txid, attempt]
    return ", ".join([*parts, *(f"array_agg({field})" for field in fields)])


class FoundArrays:
    """The rows that reads have found, as arrays.

    `answers`: what each read selected.
    `is_foreign`: whether a row does not say which batch wrote it.
    """

    def __init__(self, columns: Columns, answers: Sequence[Sequence[bytes]]) -> None:
        self.is_foreign = any(any(foreign) for foreign, *_ in answers)
        self._columns = columns
        self._parts = [
            list(part) for part in zip(*(cells for _, *cells in answers if cells[0] is not None), strict=True)
        ]

    def of(self, keys: list[pa.Array]) -> NumberColumns:
        declared = self._columns.values[0].declared
        dtype, wire = (np.float64, ">f8") if declared == "double" else (np.int64, ">i8")
        made = NumberColumns.absent(NumberForm.of(declared), len(keys[0]))
        if self._parts:
            parts = iter(self._parts)
            places = _places(keys, [_keys(parts, key) for key in self._columns.keys])
            there = places >= 0
            places, kinds = places[there], (wire, wire, ">i8", ">i8")
            made.flags[there] = _numbers(next(parts), ">i4")[places]
            for at, kind, part in zip((CURR, PREV, TXID, ATTEMPT), kinds, parts, strict=True):
                field = _numbers(part, kind)[places]
                made.numbers[there, at] = field.astype(dtype).view(np.int64) if kind is wire else field
        return made


@dataclass(frozen=True)
class TablePuts:
    """What a commit puts as a table that was made of what `FoundArrays` gave."""

    keys: KeyColumns
    table: NumberColumns

    def __len__(self) -> int:
        return len(self.keys)

    def arrays(self) -> list[pa.Array]:
        """Return the values of each column of `Columns.read`."""
        return [*self.table.place, *map(self.table.column, (TXID, ATTEMPT, PREV, CURR))]


def _numbers(arrays: Sequence[bytes], wire: str) -> npt.NDArray[Any]:
    """Return the elements of arrays in PostgreSQL's binary format, none of which is null."""
    form = [("length", ">i4"), ("value", wire)]
    return np.concatenate([np.frombuffer(array, form, offset=20)["value"] for array in arrays])


def _keys(parts: Iterator[Sequence[bytes]], column: Column) -> pa.Array:
    if column.form.wire is not None:
        return pa.array(_numbers(next(parts), column.form.wire).astype(column.form.arrow.to_pandas_dtype()))
    return _texts(next(parts), next(parts))


def _texts(lengths: Sequence[bytes], texts: Sequence[bytes]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(_numbers(lengths, ">i4"), dtype=np.int64)])
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts)))


def _places(keys: list[pa.Array], found: list[pa.Array]) -> npt.NDArray[np.int64]:
    """Return the place of each key among those that were found; -1: it was not."""
    if len(keys) == 1:
        return np.asarray(pc.fill_null(pc.index_in(keys[0], value_set=found[0]), -1), np.int64)
    asked, there = (zip(*(part.to_pylist() for part in parts), strict=True) for parts in (keys, found))
    places = {key: at for at, key in enumerate(there)}
    return np.fromiter((places.get(key, -1) for key in asked), np.int64, len(keys[0]))
