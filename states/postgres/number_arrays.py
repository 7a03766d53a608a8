"""Opaque numbers of many keys without a Python object for each: a read is one row of arrays, a commit puts arrays of Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from states.postgres.columns import Column, Columns
from trident.state.columns.number_columns import ATTEMPT, CURR, HAS_CURR, HAS_PREV, PREV, TXID, NumberColumns
from trident.state.interfaces import Key, StateType
from trident.types import class_of

_VALUES = frozenset({"bigint", "double"})


def fits_arrays(columns: Columns) -> bool:
    """Whether the values are opaque numbers of 64 bits, and the keys texts and whole numbers."""
    is_number = columns.kind is StateType.OPAQUE and not columns.shape.is_struct
    keys, values = ({column.declared for column in some} for some in (columns.keys, columns.values))
    return is_number and set(map(class_of, keys)) <= {str, int} and values <= _VALUES


def selected(columns: Columns, only_current: bool = False) -> str:
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
    fields = [flags, f"coalesce({curr}, 0)"]
    fields += [] if only_current else [f"coalesce({prev}, 0)", txid, attempt]
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
        """Return a value per key; where only the current ones were selected, with zeros for the rest."""
        is_double, rows = self._columns.values[0].declared == "double", len(keys[0])
        dtype, wire = (np.float64, ">f8") if is_double else (np.int64, ">i8")
        numbers, flags = np.zeros((rows, 4), np.int64), np.zeros(rows, np.uint8)
        if self._parts:
            parts = iter(self._parts)
            places = _places(keys, [_keys(parts, key) for key in self._columns.keys])
            there = places >= 0
            places, kinds = places[there], (wire, wire, ">i8", ">i8")
            flags[there] = _numbers(next(parts), ">i4")[places]
            for at, kind, part in zip((CURR, PREV, TXID, ATTEMPT), kinds, parts, strict=False):
                field = _numbers(part, kind)[places]
                numbers[there, at] = field.astype(dtype).view(np.int64) if kind is wire else field
        return NumberColumns(numbers, flags, dtype)


class ArrayPuts(Mapping[Key, Any]):
    """What a commit puts by columns. As a mapping it is made when someone asks for a row.

    `arrays`: of each column of `Columns.read` its values.
    """

    def __init__(self, columns: Columns, keys: list[pa.Array], new: NumberColumns) -> None:
        self._columns = columns
        absent = [None, None, new.flags & HAS_PREV == 0, new.flags & HAS_CURR == 0]
        self.arrays = [*keys, *(pa.array(new.column(at), mask=absent[at]) for at in (TXID, ATTEMPT, PREV, CURR))]

    @property
    def last(self) -> tuple[Key, Any]:
        """The last key, and what is put for it."""
        return next(iter(self._stored(len(self) - 1).items()))

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __iter__(self) -> Iterator[Key]:
        return iter(self._rows)

    def __getitem__(self, key: Key) -> Any:
        return self._rows[key]

    @cached_property
    def _rows(self) -> dict[Key, Any]:
        return self._stored(0)

    def _stored(self, start: int) -> dict[Key, Any]:
        parts = (array.slice(start).to_pylist() for array in self.arrays)
        return self._columns.stored(list(zip(*parts, strict=True)))


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
