"""The rows that a test gives a stream, as the Arrow table that its spout would emit; misfits are told by their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from trident.arrow import UNFIT, Misfit, table_of
from trident.errors import TridentError
from trident.fields import Fields


def typed_rows(call: str, fields: Fields, given: Sequence[Any]) -> pa.Table:
    """Return the table of rows: tuples, dicts by field, or bare values where there is one field.

    `call` begins the message of the `TridentError` for a row that does not fit.
    """
    rows = [_row(call, fields, number, row) for number, row in enumerate(given)]
    try:
        return table_of(fields, rows)
    except Misfit as misfit:
        said = f"is not a {misfit.declared}, the type of field {misfit.field!r} ({misfit.reason})"
        raise TridentError(f"{call}: row {misfit.at}: {misfit.shown} {said}") from misfit
    except UNFIT as error:
        raise TridentError(f"{call}: the rows do not fit the fields ({fields}): {error}") from error


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
