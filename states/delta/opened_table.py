"""One Delta table through delta-rs: open it, follow its versions, and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from states.delta.data_files import DataFile, data_files, read_files
from states.delta.faults import driver, reading, short
from states.delta.local_folder import TableFolder
from states.delta.nesting import refuse_nesting
from states.delta.options import DeltaOptions
from states.delta.table_check import known_schema
from states.delta.table_path import local_path
from trident.errors import BackendError, StateError
from trident.redaction import redacted

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["ABSENT", "OpenedTable"]

ABSENT = -1
"""The version of a table that does not exist."""

_READ_TRIES = 5


class OpenedTable:
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
    """

    def __init__(
        self,
        path: str,
        schemas: tuple[pa.Schema, ...],
        description: str,
        options: DeltaOptions,
        read_only: bool = False,
        at: int | None = None,
    ) -> None:
        self._driver = driver()
        self.path, self._schemas, self._description, self._options = path, schemas, description, options
        self._schema = schemas[0]
        self.name = redacted(path)
        self._storage = None if options.storage_options is None else dict(options.storage_options)
        local = local_path(path)
        self._local = local
        self._folder = None if local is None else TableFolder(local, options.fsync)
        self._uri = path if local is None else str(local)
        self._read_only, self._at = read_only, at
        self._table: DeltaTable | None = None
        self._committed: int | None = None  # the version that this object committed, until delta-rs has read its entry
        self._damaged: int | None = None  # the log entry that a reader does not go beyond
        self._steps_back = False  # whether an entry without its data is treated as damaged
        self.is_alone = read_only  # a reader deletes nothing

    def another(self, read_only: bool = False, at: int | None = None) -> Self:
        """Return a new object for the same table, for another thread or another version."""
        other = type(self)(self.path, self._schemas, self._description, self._options, read_only, at)
        other.is_alone = other.is_alone or self.is_alone
        return other

    @property
    def version(self) -> int:
        """The version last seen; `ABSENT` without a table."""
        if self._table is None:
            return ABSENT
        return self._table.version() if self._committed is None else self._committed

    def identity(self) -> tuple[int, int]:
        """Return the version last seen, and an identity that distinguishes it from the same version of another table here."""
        return self.version, 0 if self._folder is None else self._folder.entry_id(self.version)

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
                refuse_nesting(self.name, self._uri, self._local, self._is_table)
                self.is_alone = True
            try:
                table = self._open(self._version_to_open())
            except self._driver.exceptions.TableNotFoundError:
                if self._folder is not None:
                    self._folder.refuse_other_content()
                return ABSENT
        self._schema = known_schema(table, self._schemas, self.name, self._description)
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

    # ---- reading --------------------------------------------------------------------------------------------------

    def scan(
        self,
        filter: pc.Expression | None = None,
        columns: list[str] | None = None,
        files: Sequence[DataFile] | None = None,
    ) -> pa.Table:
        """Read the rows of the version last seen, or of a newer one if its files were deleted meanwhile.

        With `files`, all rows of these files of the version.
        """
        for left in range(_READ_TRIES - 1, -1, -1):
            if self._table is None:
                break
            with reading(self.name, "read"):
                try:
                    if files is not None:
                        return read_files(list(files), self._schema, self._filesystem())
                    return self._dataset(self._opened()).to_table(columns, filter)
                except FileNotFoundError as error:
                    if not left or self._at is not None:
                        raise StateError(
                            f"cannot read Delta table {self.name}: data files are missing: {short(error)}. "
                            "Nothing was written. Restore them from a copy"
                        ) from error
            self.forget()
            self.refresh()
        names = columns if columns is not None else self._schema.names
        return self._schema.empty_table().select(names)

    def files(self) -> list[DataFile]:
        """Return the data files of the version last seen, in the order of their rows' `_seq`."""
        if self._table is None:
            return []
        with reading(self.name, "list the files of"):
            return data_files(self._opened())

    def readable(self) -> bool:
        """Tell whether the version can still be read: its log entries and all of its data files are there."""
        try:
            self.refresh()
        except StateError:
            return False
        if self._table is None:
            return False
        with reading(self.name, "list the files of"):
            dataset = self._dataset(self._opened())
            found = dataset.filesystem.get_file_info(dataset.files) if dataset.files else []
        return all(info.is_file for info in found)

    def _dataset(self, table: DeltaTable) -> Any:
        return table.to_pyarrow_dataset(filesystem=None if self._local is None else self._filesystem())

    def _filesystem(self) -> FileSystem:
        if self._local is None:
            from deltalake.fs import DeltaStorageHandler

            return PyFileSystem(DeltaStorageHandler(self._uri, self._storage))
        # Arrow's own file system, not one through Python: an Arrow thread that releases a Python object while the
        # interpreter ends would crash the process.
        return SubTreeFileSystem(str(self._local.absolute()), LocalFileSystem())

    def notes(self, count: int | None = None) -> list[dict[str, Any]]:
        """Return the notes of the last `count` versions (None: all in the log), newest first."""
        if self._table is None:
            return []
        with reading(self.name, "read the log of"):
            return self._opened().history(count)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _opened(self) -> DeltaTable:
        if self._table is None:
            raise BackendError(f"Delta table {self.name} is not open")
        if self._committed is not None and self._table.version() != self._committed:
            self._table.load_as_version(self._committed)
        return self._table

    def _open(self, version: int | None) -> DeltaTable:
        if version is not None and version < 0:
            raise self._driver.exceptions.TableNotFoundError(self.path)
        table: DeltaTable = self._driver.DeltaTable(self._uri, version=version, storage_options=self._storage)
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
