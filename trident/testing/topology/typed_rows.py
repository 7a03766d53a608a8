"""The rows that a test gives a stream, as the Arrow table that its spout would emit; misfits are told by their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from trident.arrow import arrow_type, table_of
from trident.errors import TridentError
from trident.fields import Fields


def typed_rows(call: str, fields: Fields, given: Sequence[Any]) -> pa.Table:
    """Return the table of rows: tuples, dicts by field, or bare values where there is one field.

    `call` begins the message of the `TridentError` for a row that does not fit.
    """
    rows = [_row(call, fields, number, row) for number, row in enumerate(given)]
    try:
        return table_of(fields, rows)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _misfit(call, fields, rows, error) from error


def _row(call: str, fields: Fields, number: int, row: Any) -> Sequence[Any]:
    if isinstance(row, Mapping) and set(row) == set(fields.names):
        values: Sequence[Any] = [row[name] for name in fields.names]
    elif isinstance(row, (list, tuple)):
        values = row
    elif len(fields) == 1:
        values = (row,)
    else:
        raise TridentError(f"{call}: row {number} is {row!r}; give a tuple of {len(fields)} values ({fields})")
    if len(values) != len(fields):
        raise TridentError(
            f"{call}: row {number} has {len(values)} values {row!r}, the stream has {len(fields)} ({fields})"
        )
    return values


def _misfit(call: str, fields: Fields, rows: Sequence[Sequence[Any]], error: Exception) -> TridentError:
    for number, row in enumerate(rows):
        for name, type_, value in zip(fields.names, fields.types, row, strict=True):
            try:
                pa.array([value], type=arrow_type(type_ or ""))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as cause:
                return TridentError(
                    f"{call}: row {number}: {value!r} is no {type_}, the type of field {name!r} ({cause})"
                )
    return TridentError(f"{call}: the rows do not fit the fields ({fields}): {error}")
