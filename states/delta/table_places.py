"""Where the two tables of a state are: what people read is at its path, its changes are in a folder inside.

The name of that folder begins with an underscore, so no reader of the table at the path looks into it, and no VACUUM does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from states.delta.local_folder import TableFolder
from states.delta.raw_forms import SENTINEL_COLUMN
from states.delta.table_path import local_path

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["AT_PATH", "CHANGES", "Place", "is_change_table"]

AT_PATH = ""
CHANGES = "_trident/changes"


class Place(NamedTuple):
    """The place of one table of a state.

    Attributes
    ----------
    inside
        `AT_PATH` or `CHANGES`.
    uri, local, folder
        Where delta-rs finds it; its folder on this machine, None on an object store.
    """

    inside: str
    uri: str
    local: Path | None
    folder: TableFolder | None

    @staticmethod
    def of(path: str, inside: str, fsync: bool) -> Place:
        """Return a place of the state at a path."""
        local = local_path(path)
        if local is None:
            return Place(inside, "/".join([path.rstrip("/"), inside]) if inside else path, None, None)
        folder = local / inside if inside else local
        return Place(inside, str(folder), folder, TableFolder(folder, fsync))


def is_change_table(table: DeltaTable) -> bool:
    """Tell whether a table holds the changes of a state; the one that people read has no sentinels."""
    return any(field.name == SENTINEL_COLUMN for field in table.schema().fields)
