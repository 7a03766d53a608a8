"""Refuses a table that belongs to something else, or to another kind of state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from states.delta.faults import columns, driver
from trident.errors import StateError

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["check_mark", "check_schema", "is_marked"]

_MARK = "trident "


def check_schema(table: DeltaTable, schema: pa.Schema, name: str, description: str) -> None:
    """Refuse a table that is not one of a state.

    Parameters
    ----------
    schema
        The columns of the state's table.
    name, description
        What errors call the table, and the line that marks the tables of this state.

    Raises
    ------
    StateError
        The table has other columns, or another mark.
    """
    expected, found = driver().Schema.from_arrow(schema), table.schema()
    if expected.to_json() != found.to_json():
        raise StateError(
            f"open Delta table {name} as {description}: expected columns {columns(expected)}, found "
            f"{columns(found)}. It belongs to something else, or the types of the state were changed; give the "
            "state a path of its own, or move the old table away"
        )
    check_mark(table, name, description)


def is_marked(table: DeltaTable) -> bool:
    """Tell whether a table is marked as one of a state."""
    return (table.metadata().description or "").startswith(_MARK)


def check_mark(table: DeltaTable, name: str, description: str) -> None:
    """Refuse the table of a state of another kind."""
    mark = table.metadata().description or ""
    if mark.startswith(_MARK) and mark != description:
        raise StateError(
            f"open Delta table {name} as {description}: it is marked as {mark}. Give the state a path of its own"
        )
