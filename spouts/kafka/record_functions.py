"""The user's functions that turn records into tuples: one record at a time, or the columns of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from spouts.kafka.value_formats import AvroRecords, BadValue, Bytes, Format, TextFormat, typed_fields
from trident.arrow import row_of, table_of
from trident.errors import ConfigError
from trident.fields import Fields, FieldsLike
from trident.servers.avro import Avro


class KafkaRecord(NamedTuple):
    """A record as `ByRecord` passes it on; None where the record has no value or key."""

    value: bytes | None
    key: bytes | None
    timestamp: datetime
    partition: int
    offset: int
    topic: str
    headers: list[dict[str, Any]]


@dataclass(frozen=True)
class ByRecord(Format):
    """What a function makes of each record.

    Attributes
    ----------
    declared
        The fields that are emitted, with their types.
    function
        Gets a `KafkaRecord` and returns a tuple with the values of the fields, or None to leave the record out.
    """

    declared: FieldsLike
    function: Callable[[KafkaRecord], Sequence[Any] | None]
    replaces_all = True

    @property
    def fields(self) -> Fields:
        return typed_fields(self.declared, "ByRecord")

    def read(self, values: pa.Array) -> Sequence[pa.Array]:
        raise NotImplementedError

    def translate(self, table: pa.Table) -> pa.Table:
        """Call the function for each record."""
        rows, causes = [], dict[int, Exception]()
        for at, record in enumerate(zip(*(table[name].to_pylist() for name in KafkaRecord._fields), strict=True)):
            try:
                row = self.function(KafkaRecord(*record))
                if row is not None:
                    rows.append(row_of(row))
            except Exception as error:  # noqa: BLE001  whatever it raises
                causes[at] = error
        if causes:
            said = "the function of ByRecord raised"
            raise BadValue({at: f"{said} {type(error).__name__}: {error}" for at, error in causes.items()}, causes)
        return table_of(self.fields, rows)


@dataclass(frozen=True)
class ByColumns(Format):
    """What a function makes of many records at once; much faster than `ByRecord`.

    Attributes
    ----------
    declared
        The fields that are emitted, with their types.
    function
        Gets a PyArrow table with the columns of `KafkaRecord` and returns one whose columns are the fields, in order. It may
        have other rows.
    """

    declared: FieldsLike
    function: Callable[[pa.Table], pa.Table]
    replaces_all = True

    @property
    def fields(self) -> Fields:
        return typed_fields(self.declared, "ByColumns")

    def read(self, values: pa.Array) -> Sequence[pa.Array]:
        raise NotImplementedError

    def translate(self, table: pa.Table) -> pa.Table:
        """Call the function."""
        return self.function(table)


def format_of(value: Any) -> Format:
    """Return the format that a user names."""
    if value in ("bytes", "text"):
        return Bytes() if value == "bytes" else TextFormat()
    if isinstance(value, Avro):
        return AvroRecords(value)
    if isinstance(value, Format):
        return value
    raise ConfigError(f'value={value!r}: give "bytes", "text", Json(…), Avro(…), ByRecord(…) or ByColumns(…)')
