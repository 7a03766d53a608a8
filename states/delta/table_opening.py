"""Opens one Delta table of a state: finds it, refuses what is no table of this state, stays before a damaged end of the log.

A Delta table inside the folder of another one is refused, because the outer vacuum would delete the inner files. States may
be opened in any order, so a writer looks above and below; and no vacuum deletes files that are not named like those of a
table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from states.delta.faults import columns, driver, reading
from states.delta.layout import SENTINEL_COLUMN, SEQ_COLUMN
from states.delta.local_folder import INSIDE, LOG
from states.delta.options import AT_PATH, CHANGES, DeltaOptions, Place
from trident.alignment import ddl_of
from trident.errors import StateError
from trident.fields import widens
from trident.redaction import redacted

if TYPE_CHECKING:
    from deltalake import DeltaTable

_MARK = "trident "


class TableRole(NamedTuple):
    """What a table is opened for."""

    inside: str = CHANGES  # its columns must be right; AT_PATH is written again if it is not as it should be
    read_only: bool = False  # it repairs nothing: it skips a damaged end of the log, and leaves it there
    at: int | None = None  # it stays at this version
    evolves: bool = False  # a former declaration may have made it: it may lack fields, or have narrower types


class TableOpening:
    """A table of the state at `path`, opened for one role; `description` is the line that marks the table."""

    def __init__(self, path: str, schema: pa.Schema, description: str, options: DeltaOptions, role: TableRole) -> None:
        self.role = role
        self.name, self.schema, self.description, self.options = redacted(path), schema, description, options
        self.driver, self.place = driver(), Place.of(path, self.role.inside, options.fsync)
        self.storage = None if options.storage_options is None else dict(options.storage_options)
        self._path, self._at_path = path, Place.of(path, AT_PATH, options.fsync)
        self._damaged: int | None = None  # the log entry that a reader does not go beyond
        self._steps_back = False  # whether an entry without its data is treated as damaged
        # A reader deletes nothing, and the table of the changes has looked for others.
        self._is_alone = self.role.read_only or self.role.inside == AT_PATH

    def _open(self) -> DeltaTable | None:
        """Open the newest version, or the role's; None if there is no table. `StateError`: it is another one, or damaged."""
        with reading(self.name, "open"):
            if not self._is_alone:
                self._refuse_nesting()
                self._is_alone = True
            table = self._version(self.place, self._version_to_open())
            if table is None:
                table = self._made_meanwhile()
        if table is not None:
            if self.role.inside == CHANGES:
                self._check_columns(table)
            mark = table.metadata().description or ""
            if mark.startswith(_MARK) and mark != self.description:
                raise StateError(
                    f"open Delta table {self.name} as {self.description}: it is marked as {mark}. Give the state a path of its "
                    "own"
                )
        return table

    def filesystem(self) -> FileSystem:
        if self.place.folder is None:
            from deltalake.fs import DeltaStorageHandler

            return PyFileSystem(DeltaStorageHandler(self.place.uri, self.storage))
        # Arrow's own file system, not one through Python: an Arrow thread that releases a Python object while the
        # interpreter ends would crash the process.
        return SubTreeFileSystem(str(self.place.folder.path.absolute()), LocalFileSystem())

    def is_replaced(self, version: int) -> bool:
        """Whether the table was deleted or rolled back: delta-rs looks for newer versions only, and does not notice it."""
        folder = self.place.folder
        return self.role.at is None and folder is not None and not folder.has_entry(version)

    def is_before_damage(self) -> bool:
        """Whether there is still a damaged entry after the version that was opened."""
        if self._damaged is None or self.place.folder is None:
            return False
        if self.place.folder.is_damaged(self._damaged, self._steps_back):
            return True
        self._damaged, self._steps_back = None, False  # a writer has renamed it
        return False

    def step_back(self) -> bool:
        """Stay before entries at the end of the log whose data is missing or cut; return whether there are any."""
        folder = self.place.folder
        if folder is None or self.role.at is not None or folder.first_damaged_version(True) is None:
            return False
        self._steps_back = True
        return True

    def mend(self) -> None:
        """Rename the entries that `step_back` stays before, because the log of the topology does not miss them."""
        if self.place.folder is not None and self._steps_back:
            self.place.folder.set_damaged_aside(without_data=True)
            self._damaged, self._steps_back = None, False

    def _version_to_open(self) -> int | None:
        folder = self.place.folder
        if self.role.at is not None or folder is None:
            return self.role.at
        if not self.role.read_only and not self._steps_back:
            folder.set_damaged_aside()
            folder.set_cut_checkpoint_aside()
            return None
        self._damaged = folder.first_damaged_version(self._steps_back)
        return None if self._damaged is None else self._damaged - 1

    def _version(self, place: Place, version: int | None) -> DeltaTable | None:
        if version is not None and version < 0:
            return None
        try:
            table: DeltaTable = self.driver.DeltaTable(place.uri, version=version, storage_options=self.storage)
        except self.driver.exceptions.TableNotFoundError:
            return None
        return table

    def _refuse_nesting(self) -> None:
        """Raise `StateError` if a table is above the state, or, on a local disk, below it."""
        above, below = None, None
        if self._at_path.folder is None:
            is_table = self.driver.DeltaTable.is_deltatable
            above = next((each for each in _parents(self._at_path.uri) if is_table(each, self.storage)), None)
        else:
            folder = self._at_path.folder.path.resolve()
            above = next((str(each) for each in folder.parents if (each / LOG).is_dir()), None)
            below = next(_tables_below(folder), None)
        if above is not None:
            raise StateError(
                f"open Delta table {self.name}: it lies in the folder of Delta table {above}, which deletes files that it does "
                "not know. Nothing was written. Give each state a folder beside the others"
            )
        if below is not None:
            raise StateError(
                f"open Delta table {self.name}: another table, {below}, lies in its folder, and files in there that this one "
                "does not know are deleted. Nothing was written. Move one of them: each state needs a folder beside the others"
            )

    def _made_meanwhile(self) -> DeltaTable | None:
        """Refuse what is not of this state, unless it is the table, made by another process since it was looked for."""
        try:
            self._refuse_others()
        except StateError:
            table = self._version(self.place, self._version_to_open())
            if table is None:
                raise
            return table
        return None

    def _refuse_others(self) -> None:
        """Refuse what is not of this state, in the place of the table or at the path of the state."""
        if self.place.folder is not None:
            self.place.folder.refuse_other_content()
        if self.role.inside == AT_PATH:
            return
        folder, other = self._at_path.folder, self._table_at_path()
        if other is None and folder is not None:
            try:
                folder.refuse_other_content()
            except StateError:
                other = self._table_at_path()
                if other is None:
                    raise  # else a writer has made it since it was looked for
        if other is None:
            return
        if {SEQ_COLUMN, SENTINEL_COLUMN}.issubset(field.name for field in other.schema().fields):
            raise StateError(
                f"open Delta table {self.name}: it holds the changes of a state itself; a state has them in {CHANGES}. Nothing "
                "was written. Give the state a path of its own"
            )
        if not (other.metadata().description or "").startswith(_MARK):
            self._check_columns(other)

    def _table_at_path(self) -> DeltaTable | None:
        folder = self._at_path.folder
        damaged = None if folder is None else folder.first_damaged_version()
        return self._version(self._at_path, None if damaged is None else damaged - 1)

    def _check_columns(self, table: DeltaTable) -> None:
        expected, found = self.driver.Schema.from_arrow(self.schema), table.schema()
        if expected.to_json() != found.to_json() and not fits(
            pa.schema(found.to_arrow()), self.schema, self.role.evolves
        ):
            raise StateError(
                f"open Delta table {self.name} as {self.description}: expected columns {columns(expected)}, found "
                f"{columns(found)}. It belongs to something else, or the types of the state were changed; give the "
                "state a path of its own, or move the old table away"
            )


def fits(found: pa.Schema, own: pa.Schema, evolves: bool) -> bool:
    """Whether columns that are there can hold all of the own; `evolves`: or can be made to, without loss."""
    return _is_like(pa.struct(found), pa.struct(own), evolves) and found.names == own.names


def _is_like(found: pa.DataType, own: pa.DataType, evolves: bool) -> bool:
    if pa.types.is_struct(found) and pa.types.is_struct(own):
        there = {field.name: field.type for field in found}
        return all(_is_like(there[one.name], one.type, evolves) if one.name in there else evolves for one in own)
    return found == own or _holds(found, own) or (evolves and _holds(own, found))


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    old, new = ddl_of(narrow), ddl_of(wide)
    return old is not None and new is not None and widens(old, new)


def _parents(uri: str) -> Iterator[str]:
    scheme, _, rest = uri.partition("://")
    parts = rest.strip("/").split("/")
    for length in range(len(parts) - 1, 0, -1):
        yield f"{scheme}://{'/'.join(parts[:length])}"


def _tables_below(folder: Path) -> Iterator[str]:
    for at, folders, _ in os.walk(folder):
        if LOG in folders and Path(at) != folder:
            yield at
        own = {LOG, INSIDE} if Path(at) == folder else {LOG}
        folders[:] = [name for name in folders if name not in own]
