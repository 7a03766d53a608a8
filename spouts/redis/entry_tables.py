"""Entries of streams as Arrow tables: values are bytes in Redis, and get the types of the declared fields here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from spouts.files.column_types import refuse_bent_numbers
from spouts.redis.stream_server import Entry
from trident.arrow import arrow_type, schema_of
from trident.errors import SpoutError
from trident.fields import Fields, FieldsLike
from trident.moment_columns import read_moments

_OF_ENTRIES = ("id", "stream")


class EntryTables:
    """Makes tables of entries; pickled to the workers.

    `declared`: the fields of entries that are read, with their types; an entry without one has null there.
    `with_stream`: whether the field `stream` follows after `id`.
    """

    def __init__(self, declared: FieldsLike, with_stream: bool) -> None:
        read = Fields(declared)
        if taken := [name for name in read.names if name in _OF_ENTRIES]:
            raise ValueError(f"the field {taken[0]!r} is the spout's own: entries are read with their id and stream")
        for name, type_ in zip(read.names, read.types, strict=True):
            if type_ is None:
                raise ValueError(f"the field {name!r} has no type; declare it as '{name}: string' or another type")
            if pa.types.is_nested(arrow_type(type_)):
                raise ValueError(f"the field {name!r} is a {type_}, but values in Redis are bytes: read it as a string")
        self._names, self._types = list(read.names), [arrow_type(type_ or "") for type_ in read.types]
        self.fields = Fields(declared, "id: string", *(["stream: string"] if with_stream else []))
        self._with_stream = with_stream

    def table(self, entries: Sequence[Entry]) -> pa.Table:
        """Return a row for each entry; `SpoutError` naming entry and field for a value that is not of the field's type."""
        columns = [self._column(entries, name, type_) for name, type_ in zip(self._names, self._types, strict=True)]
        columns.append(pa.array([entry.id for entry in entries], pa.string()))
        if self._with_stream:
            columns.append(pa.array([entry.stream for entry in entries], pa.string()))
        return pa.Table.from_arrays(columns, schema=schema_of(self.fields))

    def _column(self, entries: Sequence[Entry], name: str, type_: pa.DataType) -> pa.Array:
        key = name.encode()
        raw = [entry.fields.get(key) for entry in entries]
        try:
            return _typed(raw, type_)
        except (pa.ArrowException, ValueError) as error:
            raise _misfit(entries, raw, name, type_, error) from error


def _typed(raw: list[bytes | None], type_: pa.DataType) -> Any:
    array = pa.array(raw, pa.binary())
    if pa.types.is_binary(type_):
        return array
    texts = array.cast(pa.string())
    if pa.types.is_temporal(type_):
        return read_moments(texts, type_, "its text")
    made = texts.cast(type_)
    refuse_bent_numbers(texts, made, "its text")
    return made


def _misfit(
    entries: Sequence[Entry], raw: list[bytes | None], name: str, type_: pa.DataType, error: Exception
) -> SpoutError:
    for entry, value in zip(entries, raw, strict=True):
        try:
            _typed([value], type_)
        except (pa.ArrowException, ValueError) as cause:
            why = f": {cause}" if pa.types.is_temporal(type_) else ""
            shown = value if value is None or len(value) <= 80 else value[:80] + b"..."
            return SpoutError(
                f"entry {entry.id} of the stream {entry.stream!r}: the value {shown!r} of field {name!r} is not {type_}{why}. "
                f"Declare the field as '{name}: binary' and read it in a step, whose exceptions may become dead letters"
            )
    return SpoutError(f"field {name!r} cannot be read as {type_}: {error}")
