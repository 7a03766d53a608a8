"""Refuses a table that belongs to something else, or to another kind of state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from states.delta.faults import columns, driver
from trident.errors import StateError

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["check_mark", "is_marked", "known_schema"]

_MARK = "trident "


def known_schema(table: DeltaTable, schemas: Sequence[pa.Schema], name: str, description: str) -> pa.Schema:
    """Return which of the schemas that a state knows a table has.

    Parameters
    ----------
    schemas
        The columns of a new table, then those that an older one may have.
    name, description
        What errors call the table, and the line that marks the tables of this state.

    Raises
    ------
    StateError
        The table has other columns, or another mark.
    """
    of_arrow = driver().Schema.from_arrow
    found = table.schema()
    there = next((schema for schema in schemas if of_arrow(schema).to_json() == found.to_json()), None)
    if there is None:
        raise StateError(
            f"open Delta table {name} as {description}: expected columns {columns(of_arrow(schemas[0]))}, found "
            f"{columns(found)}. It belongs to something else, or the types of the state were changed; give the "
            "state a path of its own, or move the old table away"
        )
    check_mark(table, name, description)
    return there


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
