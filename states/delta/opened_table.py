"""One Delta table through delta-rs: follow its versions, and read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from states.delta.data_files import DataFile, data_files, read_files
from states.delta.faults import reading
from states.delta.followed_table import ABSENT, FollowedTable
from trident.errors import BackendError, StateError, StoreAwayError
from trident.object_stores import short

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["ABSENT", "OpenedTable"]

_READ_TRIES = 5
_BATCH_ROWS = 1 << 19


class OpenedTable(FollowedTable):
    """A table that is read."""

    def scan(
        self,
        filter: pc.Expression | None = None,
        columns: list[str] | None = None,
        files: Sequence[DataFile] | None = None,
    ) -> pa.Table:
        """Read the rows of the version last seen, or of a newer one if its files were deleted meanwhile.

        With `files`, only those of these files of the version.
        """
        for left in range(_READ_TRIES - 1, -1, -1):
            if self._table is None:
                break
            with reading(self.name, "read"):
                try:
                    if files is not None:
                        return read_files(list(files), self._schema, self._filesystem(), columns, filter)
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

    def transaction(self, app: str) -> int | None:
        """Return the version of the last transaction of an application, None if there was none."""
        if self._table is None:
            return None
        with reading(self.name, "read the log of"):
            return self._opened().transaction_version(app)

    def batches(self) -> Iterator[pa.Table]:
        """Iterate over all rows of the version last seen, some at a time."""
        with reading(self.name, "read"):
            for batch in self._dataset(self._opened()).to_batches(batch_size=_BATCH_ROWS, batch_readahead=1):
                yield pa.Table.from_batches([batch])

    def readable(self) -> bool:
        """Tell whether the version can still be read: its log entries and all of its data files are there.

        Raises
        ------
        StoreAwayError
            The object store does not say it.
        """
        try:
            self.refresh()
        except StoreAwayError:
            raise
        except StateError:
            return False
        if self._table is None:
            return False
        with reading(self.name, "list the files of"):
            dataset = self._dataset(self._opened())
            found = dataset.filesystem.get_file_info(dataset.files) if dataset.files else []
        return all(info.is_file for info in found)

    def _dataset(self, table: DeltaTable) -> Any:
        return table.to_pyarrow_dataset(filesystem=None if self._place.local is None else self._filesystem())

    def _filesystem(self) -> FileSystem:
        local = self._place.local
        if local is None:
            from deltalake.fs import DeltaStorageHandler

            return PyFileSystem(DeltaStorageHandler(self._place.uri, self._storage))
        # Arrow's own file system, not one through Python: an Arrow thread that releases a Python object while the
        # interpreter ends would crash the process.
        return SubTreeFileSystem(str(local.absolute()), LocalFileSystem())

    def notes(self, count: int | None = None) -> list[dict[str, Any]]:
        """Return the notes of the last `count` versions up to the one last seen (None: all in the log), newest first."""
        if self._table is None:
            return []
        with reading(self.name, "read the log of"):
            at, table = self._opened().version(), self._opened()
            for _ in range(_READ_TRIES):
                newest = self._newest()
                # It reads from the newest version on, and counts from the one that this object has seen.
                entries = table.history(None if count is None else count + newest - at)
                if self._newest() == newest:
                    numbered = [{**entry, "version": newest - number} for number, entry in enumerate(entries)]
                    return [entry for entry in numbered if entry["version"] <= at]
        raise BackendError(f"the log of Delta table {self.name} grows faster than it can be read; try again")

    def _newest(self) -> int:
        """Return the newest version that is in the log now."""
        folder, newest = self._folder, self._opened().version()
        if folder is None:
            return int(self._driver.DeltaTable(self._place.uri, storage_options=self._storage).version())
        while folder.has_entry(newest + 1) and not folder.is_damaged(newest + 1):
            newest += 1
        return newest
