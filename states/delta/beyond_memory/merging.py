"""Merges the changes of a state beyond memory into its base, beside the commits.

Commits go on as before: a commit is one transaction of the change table, and its rows go into memory. When there are
enough of them, between two commits, a thread begins to merge them into the base. The next commit after the merge uses the
base that it made. Changes that are in the base leave the change table one merge later, so a reader that began before
finds them. If the rows are in the memory of tasks, the driver reads the changes from their table for a merge.

What goes into a base are values of committed batches only (`PublishedRows`). So a merge is harmless, no matter who makes it: a
writer that was paused and replaced either is refused, because the base has moved, or writes what its successor would have
written.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import NamedTuple

import pyarrow as pa

from states.delta.beyond_memory.bucketed_base import BucketedBase
from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.opened_base import OpenedBase
from states.delta.beyond_memory.sorted_rows import SortedRows
from states.delta.data_files import DataFile
from states.delta.faults import VersionMoved
from states.delta.fence import moved_by_compactions
from states.delta.published_table import TRIMMED, Due, Holds, is_newest
from states.delta.state_table import COMPACTION, StateTable
from states.delta.state_tables import StateTables
from trident.errors import BackendError, StateError

_LOGGER = logging.getLogger(__name__)
_SHARE = 20  # merging for the sake of people takes at most one part in so many of the time
_CHANGE_BYTES = 64  # of a change in memory, without long values


class _Outcome(NamedTuple):
    base: BucketedBase | None
    holds: Holds
    error: Exception | None


class Merging:
    """Merges of one state. Used by the thread of the commits; a merge has a thread and a table object of its own.

    The methods take the values that this process holds, with the highest `_seq` among them; None if tasks hold them.

    `tables`, `changes`, `base`: the state, the table of its changes, and its base.
    """

    def __init__(self, tables: StateTables, changes: StateTable, base: OpenedBase) -> None:
        self._tables, self._changes, self._base = tables, changes, base
        self._published = tables.at_path()
        self._thread: threading.Thread | None = None
        self._outcome: _Outcome | None = None
        self._unread: LargeIndex | None = None  # changes of tasks that are being merged
        self.is_running = False
        """Whether a merge has begun, and `settle` has not used its outcome."""
        self._not_before = 0.0

    def offer(self, due: Due, index: LargeIndex | None, seq: int) -> None:
        """Use a merge that has ended, and begin one if it is due; between commits, all changes being committed.

        Raises `BackendError`: another writer has changed the base: read the state again.
        """
        bounds = self._base.bounds
        if self.is_running and self._changes_of(index)[1] > 2 * bounds.bytes_of_changes:
            self.wait()  # so that memory stays bounded if batches are faster than merges
        self.settle(index)
        if self.is_running:
            return
        changes, nbytes = self._changes_of(index)
        is_time = time.monotonic() >= self._not_before
        if changes and (is_time or bounds.are_enough(changes, nbytes, self._base.rows)):
            self._start(due, index, seq)

    def finish(self, due: Due | None, index: LargeIndex | None, seq: int) -> None:
        """Wait for a merge that is running, and use it; then merge what is `due`. `BackendError` as of `offer`."""
        self.wait()
        self.settle(index)
        if due is not None:
            self._start(due, index, seq)
            self.wait()
            self.settle(index)

    def settle(self, index: LargeIndex | None) -> None:
        """Use a merge that has ended; `BackendError` as of `offer`."""
        if not self.is_running or (self._thread is not None and self._thread.is_alive()):
            return
        outcome, index = self._outcome, index or self._unread
        self._thread, self._unread, self.is_running = None, None, False
        assert outcome is not None, "a merge has an outcome"
        if index is None:  # forgotten meanwhile; the next one is opened over what the merge has left
            return
        if outcome.base is not None:
            index.merged(outcome.base, outcome.holds.batch)
            self._base.moved(outcome.base, outcome.holds, self._published.table.version)
            pa.default_memory_pool().release_unused()
            return
        index.thaw()
        if isinstance(outcome.error, VersionMoved):
            raise BackendError(f"{self._tables.what}: another writer has merged its changes; the batch may be replayed")
        _LOGGER.warning("merging the changes of %s was postponed: %s", self._tables.what, outcome.error)

    def wait(self) -> None:
        """Return when no merge is running."""
        if self._thread is not None:
            self._thread.join()

    def drop(self) -> None:
        """Use no outcome of a merge that has ended."""
        self.wait()
        self._thread, self._unread, self.is_running = None, None, False

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _changes_of(self, index: LargeIndex | None) -> tuple[int, int]:
        """Return the number of changes that are not merged yet, and their bytes in memory."""
        if index is not None:
            return index.changes, index.nbytes
        files = self._files()
        rows = sum(file.rows for file in files)
        return rows, max(sum(file.size for file in files), rows * _CHANGE_BYTES)

    def _files(self) -> list[DataFile]:
        merged = self._base.merged()
        return [file for file in self._changes.files() if merged is None or file.last > merged]

    def _start(self, due: Due, index: LargeIndex | None, seq: int) -> None:
        """Begin to merge all changes."""
        unread = None
        if index is None:
            files = self._files()
            index = unread = self._base.opened() if files else None
            seq = max((file.last for file in files), default=0)
        if index is None or not index.changes:
            return
        holds, frozen = Holds(seq, due.snapshot.txid), index.freeze()
        arguments = index.base, frozen, due, holds, self._base.version, self._base.merged()
        # Of an error that was not expected.
        self._outcome = _Outcome(None, holds, BackendError("it ended without a result"))
        self._unread, self.is_running = unread, True
        if not self._tables.options.background_maintenance:
            self._run(*arguments)
            self.settle(index)
            return
        self._thread = threading.Thread(target=self._run, args=arguments, name=f"{self._tables.what}: merging")
        self._thread.start()

    # ---- in the thread of a merge ---------------------------------------------------------------------------------

    def _run(
        self, base: BucketedBase, changes: SortedRows, due: Due, holds: Holds, based_on: int, held: int | None
    ) -> None:
        began = time.monotonic()
        try:
            base = self._merged(base, changes, due, holds, based_on)
            self._outcome = _Outcome(base, holds, None)
        except (VersionMoved, StateError, OSError) as error:
            self._outcome = _Outcome(None, holds, error)
        ended = time.monotonic()
        self._not_before = ended + max(self._tables.options.publish_every_s, (ended - began) * (_SHARE - 1))
        if self._outcome.error is None:
            self._keep_small(held)

    def _merged(self, base: BucketedBase, changes: SortedRows, due: Due, holds: Holds, based_on: int) -> BucketedBase:
        table = self._published.table
        if table.refresh() != based_on and not moved_by_compactions(table, based_on):
            raise VersionMoved(f"the base is at version {table.version}, not {based_on}")
        rows = self._tables.rows
        after = base.merge(changes, lambda part: rows.in_base(part, due.snapshot), not table.has_columns())
        if not is_newest(self._changes, due.shown):
            raise VersionMoved("another writer has taken over")
        self._published.move(base, after, holds, due.shown)
        return after

    def _keep_small(self, held: int | None) -> None:
        """Delete changes that the base before this one held already; now and then checkpoints and old files."""
        try:
            self._trim(-1 if held is None else held)
        except (VersionMoved, StateError, OSError) as error:
            _LOGGER.warning("the clean-up of %s was postponed: %s", self._tables.what, error)
        self._published.keep_small()

    def _trim(self, seq: int) -> None:
        changes = self._changes.another()
        changes.refresh()
        files = changes.files()[:-1]  # the last one has the sentinel
        gone = [file for file in files if file.last <= seq]
        if gone:
            changes.replace(self._tables.layout.schema.empty_table(), gone, (TRIMMED, seq), {COMPACTION: "merged"})
