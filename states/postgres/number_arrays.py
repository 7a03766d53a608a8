"""Opaque numbers of many keys, or structs of them, without an object for each: a read is one row of arrays, as is a commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from states.postgres.columns import Column, Columns
from trident.fields import normal_type
from trident.state.interfaces import StateConf, StateType
from trident.state.number_columns import NumberForm, absent_numbers
from trident.state.table import OpaqueTable
from trident.types import class_of


def number_form(columns: Columns, conf: StateConf) -> NumberForm | None:
    """Return the form of the values, if they are opaque numbers of 64 bits and the keys texts and whole numbers."""
    is_opaque = columns.kind is StateType.OPAQUE and conf.value_type is not None
    form = NumberForm.of(normal_type(conf.value_type)) if is_opaque else None  # type: ignore[arg-type]
    fits = {class_of(column.declared) for column in columns.keys} <= {str, int}
    return form if fits and form is not None and bool(form.names) == columns.shape.is_struct else None


def select_list(columns: Columns) -> str:
    """Return what a read selects: how many rows are foreign, the keys (of texts the lengths, too), the values."""
    txid, attempt, *befores = [f"own.{column.quoted}" for column in columns.own]
    values = [f"own.{column.quoted}" for column in columns.read[len(columns.keys) + len(columns.own) :]]
    parts = [f"count(*) FILTER (WHERE {txid} IS NULL OR {attempt} IS NULL)"]
    for key in columns.keys:
        name = f"own.{key.quoted}"
        if key.declared == "string":  # bytes as they are sent: those of the database may be in another encoding
            parts += [f"array_agg(octet_length(convert_to({name}, 'UTF8')))", f"string_agg({name}, '')"]
        else:
            parts.append(f"array_agg({name})")
    fields, width = [txid, attempt], len(columns.values)
    for side, is_there in ((befores, "IS FALSE"), (values, "IS NOT TRUE")):
        tests = [f"{name} IS NOT NULL" for name in side[:width]] + [f"{name} {is_there}" for name in side[width:]]
        fields.append(" + ".join(f"({test})::int4 * {1 << at}" for at, test in enumerate(tests)))
        fields += [f"coalesce({name}, 0)" for name in side[:width]]
    return ", ".join([*parts, *(f"array_agg({field})" for field in fields)])


def found_table(
    columns: Columns, form: NumberForm, keys: Sequence[pa.Array], answers: Sequence[Sequence[bytes]]
) -> OpaqueTable | None:
    """Return what reads have found for keys; None if a row does not say which batch wrote it.

    `answers`: what each read selected.
    """
    if any(any(foreign) for foreign, *_ in answers):
        return None
    made = absent_numbers(form, len(keys[0]))
    found = [list(part) for part in zip(*(cells for _, *cells in answers if cells[0] is not None), strict=True)]
    if found:
        parts = iter(found)
        places = _places(keys, [_keys(parts, key) for key in columns.keys])
        there = places >= 0
        places = places[there]
        for head in (made.txids, made.attempts):
            head[there] = _numbers(next(parts), ">i8")[places]
        for side in (made.prevs, made.currs):
            side.flags[there] = _numbers(next(parts), ">i4")[places]
            for at, type_ in enumerate(form.types):
                wire, dtype = (">f8", np.float64) if type_ == "double" else (">i8", np.int64)
                side.numbers[there, at] = _numbers(next(parts), wire)[places].astype(dtype).view(np.int64)
    return made


def value_arrays(table: OpaqueTable) -> list[pa.Array]:
    """Return the values of each column of `Columns.read` behind the keys."""
    txids, attempts, *sides = table.columns
    values = ([*side.arrays(), *([pa.array(side.are_none())] if side.form.names else ())] for side in sides)
    return [pa.array(txids), pa.array(attempts), *chain(*values)]


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


def _places(keys: Sequence[pa.Array], found: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Return the place of each key among those that were found; -1: it was not."""
    if len(keys) == 1:
        return np.asarray(pc.fill_null(pc.index_in(keys[0], value_set=found[0]), -1), np.int64)
    asked, there = (zip(*(part.to_pylist() for part in parts), strict=True) for parts in (keys, found))
    places = {key: at for at, key in enumerate(there)}
    return np.fromiter((places.get(key, -1) for key in asked), np.int64, len(keys[0]))
