"""The maintenance of a Delta state beside its commits: merging files, checkpoints of the log, deleting old files.

A commit only leaves a file and a log entry. When there are enough, a thread merges the newest files, so that each remaining
file has at least twice the rows of all files after it. So there are few files, each row is rewritten only a few times, and at
most a third of the rows are out of date. The merged rows keep their `_seq`, and commits meanwhile append higher ones. A commit
that meets a compaction is based on the version after it (`DeltaBackingMap.end`).

The thread ends when it has nothing left to do. It is not a daemon, so a process that ends waits for a compaction that it has
begun.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from states.delta.data_files import DataFile
from states.delta.faults import VersionMoved
from states.delta.state_table import ABSENT, COMPACTION, StateTable
from states.delta.state_tables import StateTables
from trident.errors import StateError

_LOGGER = logging.getLogger(__name__)
_RUNS_PER_VACUUM = 8
_LARGER_BY = 2
_MOST_ROWS = 1 << 19
_APP = "trident-maintenance"


class Maintenance:
    """Keeps one table small. The commit at which it is due starts it. It has a table object and a thread of its own.

    `tables`: the state; the thread opens the table of its changes again.
    `merged`: returns the `_seq` up to which all changes are in a base, which deletions must still reach; None without a base.
    """

    def __init__(self, tables: StateTables, merged: Callable[[], int | None]) -> None:
        self._source, self._layout, self._options = tables.changes, tables.layout, tables.options
        self._what, self._merged = tables.what, merged
        self._files = self._entries = self._runs = 0
        self._thread: threading.Thread | None = None
        self._closing = False

    def opened(self, files: int) -> None:
        """Note the number of files of a table that was read."""
        self._files = files

    def after_commit(self) -> None:
        """Note a commit, which left a file and a log entry; start the maintenance if it is due and not running."""
        self._files, self._entries = self._files + 1, self._entries + 1
        compact = self._files >= self._options.compact_after_commits
        checkpoint = self._entries >= self._options.checkpoint_interval
        if not (compact or checkpoint) or (self._thread is not None and self._thread.is_alive()):
            return
        self._files = 0 if compact else self._files
        self._entries = 0 if checkpoint else self._entries
        self._closing = False
        if not self._options.background_maintenance:
            self.run(compact, checkpoint)
            return
        self._thread = threading.Thread(target=self.run, args=(compact, checkpoint), name=f"{self._what}: maintenance")
        self._thread.start()

    def wait(self) -> None:
        """Return when no maintenance is running."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Wait for the current step, skip the others, and return."""
        self._closing = True
        self.wait()

    def run(self, compact: bool, checkpoint: bool) -> None:
        """Do what is due. A failed step is tried again the next time, because no batch depends on it."""
        table = self._source.another()
        try:
            if table.refresh() == ABSENT:
                return
            if compact:
                self._compact(table)
            if checkpoint and not self._closing:
                table.checkpoint()
                table.delete_old_versions()
            self._runs += compact
            if compact and self._runs % _RUNS_PER_VACUUM == 0 and not self._closing:
                table.vacuum()
        except (VersionMoved, StateError) as error:
            _LOGGER.warning("maintenance of %s was postponed: %s", self._what, error)

    def _compact(self, table: StateTable) -> None:
        files, merged = table.files(), self._merged()
        if merged is not None:
            files = last_rows([file for file in files if file.first > merged])
        first = first_to_merge(files)
        if first == len(files):
            return
        everything, at = first == 0 and merged is None, table.version
        rows = table.scan(None, None, files[first:])
        if table.version != at:
            raise VersionMoved(f"the files of version {at} were deleted meanwhile")
        note = {COMPACTION: "rows" if everything else "files"}
        table.replace(self._layout.reduced(rows, drop_deleted=everything), files[first:], (_APP, at), note)


def last_rows(files: list[DataFile]) -> list[DataFile]:
    """Return the last files, of so few rows together that they are merged in little memory."""
    rows = 0
    for number, file in reversed(list(enumerate(files))):
        rows += file.rows
        if rows > _MOST_ROWS:
            return files[number + 1 :]
    return files


def first_to_merge(files: Sequence[DataFile]) -> int:
    """Return the first file, in the order of their rows, of those to merge (all after it too); the number of files if none."""
    later = sum(file.rows for file in files)
    for number, file in enumerate(files):
        later -= file.rows
        if file.rows < _LARGER_BY * later:
            return number
    return len(files)
