"""One Delta table of a state, opened and followed: where it is, its newest version, and a damaged end of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import pyarrow as pa

from states.delta.faults import driver, reading
from states.delta.nesting import refuse_nesting
from states.delta.options import DeltaOptions
from states.delta.table_check import check_schema, is_marked
from states.delta.table_places import AT_PATH, CHANGES, Place, is_change_table
from trident.errors import BackendError, StateError
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
    schema, description
        The columns, and the line that marks the table.
    options
        See `DeltaOptions`.
    read_only
        True for an object that repairs nothing: it skips a damaged end of the log, and leaves it there.
    at
        Stay at this version.
    inside
        Which table of the state: `AT_PATH` or `CHANGES`.
    """

    def __init__(
        self,
        path: str,
        schema: pa.Schema,
        description: str,
        options: DeltaOptions,
        read_only: bool = False,
        at: int | None = None,
        inside: str = CHANGES,
    ) -> None:
        self._driver = driver()
        self.path, self._schema, self._description, self._options = path, schema, description, options
        self.name = redacted(path)
        self._storage = None if options.storage_options is None else dict(options.storage_options)
        self._place = Place.of(path, inside, options.fsync)
        self._read_only, self._at = read_only, at
        self._table: DeltaTable | None = None
        self._committed: int | None = None  # the version that this object committed, until delta-rs has read its entry
        self._damaged: int | None = None  # the log entry that a reader does not go beyond
        self._steps_back = False  # whether an entry without its data is treated as damaged
        self.is_alone = read_only  # a reader deletes nothing

    def another(self, read_only: bool = False, at: int | None = None) -> Self:
        """Return a new object for the same table, for another thread or another version."""
        other = type(self)(self.path, self._schema, self._description, self._options, read_only, at, self.inside)
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
        """Where the table is: `AT_PATH` or `CHANGES`."""
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
            return self.version
        with reading(self.name, "open"):
            if not self.is_alone:
                path = Place.of(self.path, AT_PATH, self._options.fsync)
                refuse_nesting(self.name, path.uri, path.local, self._is_table)
                self.is_alone = True
            table = self._find()
        if table is None:
            return ABSENT
        self._check(table)
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
        table = self._open(self._place, self._version_to_open())
        if table is None:
            self._refuse_others()
        return table

    def _refuse_others(self) -> None:
        """Refuse what is not of this state, in the place of the table or at the path of the state."""
        if self._folder is not None:
            self._folder.refuse_other_content()
        if not self.inside:
            return
        at_path = Place.of(self.path, AT_PATH, self._options.fsync)
        damaged = None if at_path.folder is None else at_path.folder.first_damaged_version()
        other = self._open(at_path, None if damaged is None else damaged - 1)
        if other is None and at_path.folder is not None:
            at_path.folder.refuse_other_content()
        elif other is not None and is_change_table(other):
            raise StateError(
                f"open Delta table {self.name}: it holds the changes of a state itself; a state has them in {CHANGES}. Nothing "
                "was written. Give the state a path of its own"
            )
        elif other is not None and not is_marked(other):
            check_schema(other, self._schema, self.name, self._description)

    def _check(self, table: DeltaTable) -> None:
        check_schema(table, self._schema, self.name, self._description)

    def _open(self, place: Place, version: int | None) -> DeltaTable | None:
        if version is not None and version < 0:
            return None
        try:
            table: DeltaTable = self._driver.DeltaTable(place.uri, version=version, storage_options=self._storage)
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
