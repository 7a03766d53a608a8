"""Rows of a batch that are in the driver: collected there as a table, cut into parts and shipped with the job."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from trident.arrow import table_of
from trident.errors import SpoutError
from trident.fields import Fields

__all__ = ["TableEmitter", "checksum", "slices", "table_of_emitted"]


class TableEmitter:
    """Gives parts that are tables already."""

    is_quick = True  # it never waits, so the loop may call it

    def emit(self, part: pa.Table) -> Iterator[pa.Table]:
        """Yield the part."""
        yield part


def slices(table: pa.Table, parallelism: int) -> list[pa.Table]:
    """Cut a table into at most `parallelism` slices, none if it has no rows."""
    size = max(1, -(-table.num_rows // max(1, parallelism)))
    return [table.slice(start, size) for start in range(0, table.num_rows, size)]


def table_of_emitted(call: str, fields: Fields, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Build a table from rows that a call of the user's has emitted; `SpoutError` if they do not fit the fields."""
    try:
        return table_of(fields, rows)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SpoutError(f"{call} emitted rows that do not fit its fields ({fields}): {error}") from error


def checksum(table: pa.Table) -> int:
    """Return the checksum of a table that was built from rows."""
    crc = 0
    for column in table.columns:
        for buffer in column.chunk(0).buffers():
            crc = crc if buffer is None else zlib.crc32(buffer, crc)
    return crc
