"""One Delta table of a state, opened and followed: where it is, its newest version, and a damaged end of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import pyarrow as pa

from states.delta.faults import driver, reading
from states.delta.nesting import refuse_nesting
from states.delta.options import DeltaOptions
from states.delta.table_check import is_marked, known_schema
from states.delta.table_places import AT_PATH, CHANGES, Place, is_change_table
from trident.errors import BackendError
from trident.redaction import redacted

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from states.delta.local_folder import TableFolder

__all__ = ["ABSENT", "FollowedTable"]

ABSENT = -1
"""The version of a table that does not exist."""


class FollowedTable:
    """A Delta table of given columns, at the version that this object last saw. Used by one thread at a time.

    Parameters
    ----------
    path
        Directory, or URI of an object store.
    schemas, description
        The columns of a new table, those that an older one may have, and the line that marks the table.
    options
        See `DeltaOptions`.
    read_only
        True for an object that repairs nothing: it skips a damaged end of the log, and leaves it there.
    at
        Stay at this version.
    inside
        Which table of the state: `AT_PATH` or `CHANGES`; None: its changes, wherever they are.
    """

    def __init__(
        self,
        path: str,
        schemas: tuple[pa.Schema, ...],
        description: str,
        options: DeltaOptions,
        read_only: bool = False,
        at: int | None = None,
        inside: str | None = None,
    ) -> None:
        self._driver = driver()
        self.path, self._schemas, self._description, self._options = path, schemas, description, options
        self._schema = schemas[0]
        self.name = redacted(path)
        self._storage = None if options.storage_options is None else dict(options.storage_options)
        self._inside = inside
        self._places = {each: Place.of(path, each, options.fsync) for each in (AT_PATH, CHANGES)}
        self._place = self._places[inside or AT_PATH]
        self._read_only, self._at = read_only, at
        self._table: DeltaTable | None = None
        self._committed: int | None = None  # the version that this object committed, until delta-rs has read its entry
        self._damaged: int | None = None  # the log entry that a reader does not go beyond
        self._steps_back = False  # whether an entry without its data is treated as damaged
        self.is_alone = read_only  # a reader deletes nothing

    def another(self, read_only: bool = False, at: int | None = None) -> Self:
        """Return a new object for the same table, for another thread or another version."""
        inside = self._inside if at is None else self._place.inside
        other = type(self)(self.path, self._schemas, self._description, self._options, read_only, at, inside)
        other.is_alone = other.is_alone or self.is_alone
        return other

    @property
    def version(self) -> int:
        """The version last seen; `ABSENT` without a table."""
        if self._table is None:
            return ABSENT
        return self._table.version() if self._committed is None else self._committed

    @property
    def inside(self) -> str:
        """Where the table is: `AT_PATH` or `CHANGES`. Versions of one place say nothing about the other."""
        return self._place.inside

    @property
    def _folder(self) -> TableFolder | None:
        return self._place.folder

    def identity(self) -> tuple[int, int]:
        """Return the version last seen, and an identity that distinguishes it from the same version of another table here."""
        entry = 0 if self._folder is None else self._folder.entry_id(self.version)
        return self.version, hash((self.inside, entry))

    def forget(self) -> None:
        """Forget the table; the next `refresh` opens it again."""
        self._table = self._committed = None

    def refresh(self) -> int:
        """Move to the newest version and return it; `ABSENT` if there is no table.

        Raises
        ------
        StateError
            There is something else at the path, its columns differ, or its log is damaged.
        """
        if self._table is not None and self._replaced():
            self.forget()
        if self._table is not None:
            if self._at is None and not self._is_before_damage():
                with reading(self.name, "read the log of"):
                    self._table.update_incremental()
                self._committed = None
                if self._has_moved():
                    self.forget()
                    return self.refresh()
            return self.version
        with reading(self.name, "open"):
            if not self.is_alone:
                path = self._places[AT_PATH]
                refuse_nesting(self.name, path.uri, path.local, self._is_table)
                self.is_alone = True
            table = self._find()
        if table is None:
            return ABSENT
        self._schema = self._known(table)
        self._table = table
        return self.version

    def step_back(self) -> bool:
        """Stay before entries at the end of the log whose data is missing or cut; return whether there are any.

        It is for callers who then compare the state with the log of the topology, which knows whether that is a loss.
        """
        if self._folder is None or self._at is not None or self._folder.first_damaged_version(True) is None:
            return False
        self.forget()
        self._steps_back = True
        return True

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _opened(self) -> DeltaTable:
        if self._table is None:
            raise BackendError(f"Delta table {self.name} is not open")
        if self._committed is not None and self._table.version() != self._committed:
            self._table.load_as_version(self._committed)
        return self._table

    def _find(self) -> DeltaTable | None:
        """Open the table; that of the changes where it is, which ends inside the path if there is none."""
        other: DeltaTable | None = None
        for inside in (AT_PATH, CHANGES) if self._inside is None else (self._inside,):
            self._place = self._places[inside]
            table = self._open(self._version_to_open())
            if table is None and self._folder is not None:
                self._folder.refuse_other_content()
            if table is not None and (inside or self._inside is not None or is_change_table(table)):
                return table
            if table is not None and not is_marked(table):
                other = table
        return other  # of something else: its columns are refused

    def _known(self, table: DeltaTable) -> pa.Schema:
        return known_schema(table, self._schemas, self.name, self._description)

    def _has_moved(self) -> bool:
        # Another writer has moved the changes of a state of an earlier version.
        looks = self._inside is None and self._table is not None and not self.inside
        return looks and self._table is not None and not is_change_table(self._table)

    def _open(self, version: int | None) -> DeltaTable | None:
        if version is not None and version < 0:
            return None
        try:
            table: DeltaTable = self._driver.DeltaTable(self._place.uri, version=version, storage_options=self._storage)
        except self._driver.exceptions.TableNotFoundError:
            return None
        return table

    def _is_table(self, uri: str) -> bool:
        return bool(self._driver.DeltaTable.is_deltatable(uri, self._storage))

    def _version_to_open(self) -> int | None:
        if self._at is not None or self._folder is None:
            return self._at
        if not self._read_only and not self._steps_back:
            self._folder.set_damaged_aside()
            self._folder.set_cut_checkpoint_aside()
            return None
        self._damaged = self._folder.first_damaged_version(self._steps_back)
        return None if self._damaged is None else self._damaged - 1

    def _is_before_damage(self) -> bool:
        if self._damaged is None or self._folder is None:
            return False
        if self._folder.is_damaged(self._damaged, self._steps_back):
            return True
        self._damaged, self._steps_back = None, False  # a writer has renamed it
        return False

    def _replaced(self) -> bool:
        # delta-rs looks for newer versions only, so it does not notice that the table was deleted or rolled back.
        return self._at is None and self._folder is not None and not self._folder.has_entry(self.version)
