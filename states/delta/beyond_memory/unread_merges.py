"""Merges of a state whose rows are in the memory of tasks: the driver reads the changes from their table when one is due."""

from __future__ import annotations

from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.merging import BeyondMemory
from states.delta.change_table import ChangeTable
from states.delta.data_files import DataFile
from states.delta.publisher import Due

__all__ = ["UnreadMerges"]


class UnreadMerges:
    """Merges changes into the base of one state, if it has one. Used by the thread of the commits.

    Attributes
    ----------
    is_begun
        Whether the state has a base.

    Parameters
    ----------
    changes, beyond
        The table of the changes, and what merges them.
    """

    def __init__(self, changes: ChangeTable, beyond: BeyondMemory) -> None:
        self._changes, self._beyond = changes, beyond
        self._index: LargeIndex | None = None  # the changes that are being merged
        self.is_begun = beyond.begun()

    def begin(self) -> None:
        """Look for the base again."""
        self.is_begun = self._beyond.begun()

    def offer(self, due: Due) -> None:
        """Use a merge that has ended, and begin one if it is due; between commits, all changes being committed.

        Raises
        ------
        BackendError
            Another writer has changed the base.
        """
        self._settle()
        files, beyond = self._files(), self._beyond
        rows, size = sum(file.rows for file in files), sum(file.size for file in files)
        if self._index is not None and beyond.is_late(rows, size):
            beyond.wait()  # so that the memory of tasks stays bounded if batches are faster than merges
            self._settle()
        if self._index is None and beyond.is_due_for(rows, size):
            self._start(due, files)

    def finish(self, due: Due | None) -> None:
        """Wait for a merge that is running, then merge what is `due`."""
        self.end()
        files = self._files()
        if due is not None and files:
            self._start(due, files)
            self._beyond.wait()
            self._settle()

    def end(self) -> None:
        """Wait for a merge that is running, and use it; `BackendError` as of `offer`."""
        self._beyond.wait()
        self._settle()

    def _files(self) -> list[DataFile]:
        return [file for file in self._changes.files() if file.last > self._beyond.held]

    def _start(self, due: Due, files: list[DataFile]) -> None:
        index = self._beyond.opened()
        if index is not None and index.values.changes:
            self._beyond.start(index, due, max(file.last for file in files))
            self._index = index if self._beyond.is_running else None

    def _settle(self) -> None:
        index = self._index
        if index is None:
            return
        try:
            self._beyond.settle(index)
        except Exception:
            self._index = None
            self.begin()
            raise
        if not self._beyond.is_running:
            self._index = None
