"""Keeps a state in files once it is too large for memory: its first base, merges of later changes, and their clean-up.

Commits go on as before: a commit is one transaction of the change table, and its rows go into memory. When there are
enough of them, between two commits, a thread begins to merge them into the base. The next commit after the merge uses the
base that it made. Changes that are in the base leave the change table one merge later, so a reader that began before
finds them.

What goes into a base are values of committed batches only (`PublishedRows`). So a merge is harmless whoever makes it: a
writer that was paused and replaced either is refused, because the base has moved, or writes what its successor would have
written.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from states.delta.beyond_memory.base_table import TRIMMED, BaseTable, Holds
from states.delta.beyond_memory.bucketed_base import BucketedBase
from states.delta.beyond_memory.large_index import LargeIndex, Merge
from states.delta.beyond_memory.opened_base import OpenedBase
from states.delta.change_table import ChangeTable, VersionMoved
from states.delta.commit_notes import COMPACTION
from states.delta.fence import moved_by_compactions
from states.delta.layout import DeltaLayout
from states.delta.options import DeltaOptions
from states.delta.published import PublishedRows
from states.delta.publisher import Due, is_newest
from trident.errors import BackendError, StateError
from trident.state.txid import Snapshot

__all__ = ["BeyondMemory"]

_LOGGER = logging.getLogger(__name__)
_SHARE = 20  # merging for the sake of people takes at most one part in so many of the time
_RUNS_PER_CHECKPOINT = 32
_CHANGE_BYTES = 64  # of a change in memory, without long values


class _Outcome(NamedTuple):
    base: BucketedBase | None
    holds: Holds
    error: Exception | None


class BeyondMemory(OpenedBase):
    """Keeps one state in files. Used by the thread of the commits; merges have a thread and table objects of their own.

    Parameters
    ----------
    changes
        The table of the changes.
    tables
        Two objects of the table at the path: for the commits and for merges.
    rows, layout, options
        The columns of both tables, and the options.
    name, what
        The name of the state, and how messages call it.
    """

    def __init__(
        self,
        changes: ChangeTable,
        tables: tuple[BaseTable, BaseTable],
        rows: PublishedRows,
        layout: DeltaLayout,
        options: DeltaOptions,
        name: str,
        what: str,
    ) -> None:
        super().__init__(changes, tables[0], rows, layout, options, name, what)
        self._merging, self._options = tables[1], options
        self._thread: threading.Thread | None = None
        self._outcome: _Outcome | None = None
        self._is_running = False  # until `settle` has used the outcome
        self._not_before, self._runs = 0.0, 0

    # ---- merging, in the thread of the commits --------------------------------------------------------------------

    def offer(self, index: LargeIndex, due: Due, seq: int) -> None:
        """Use a merge that has ended, and begin one if it is due; between commits, all changes up to `seq` being committed.

        Raises
        ------
        BackendError
            Another writer has changed the base: read the state again.
        """
        alive = self._thread is not None and self._thread.is_alive()
        if alive and index.values.nbytes > 2 * self.bounds.bytes_of_changes:
            self.wait()  # so that memory stays bounded if batches are faster than merges
        self.settle(index)
        if not self._is_running and self._is_due(index):
            self.start(index, due, seq)

    def start(self, index: LargeIndex, due: Due, seq: int) -> None:
        """Begin to merge all changes."""
        merge = index.freeze(lambda rows: self._published(rows, due.snapshot))
        held = Holds(seq, due.snapshot.txid)
        self._outcome = _Outcome(
            None, held, BackendError("it ended without a result")
        )  # of an error that was not expected
        self._is_running = True
        if not self._options.background_maintenance:
            self._run(merge, due, held, self._version)
            self.settle(index)
            return
        arguments = merge, due, held, self._version
        self._thread = threading.Thread(target=self._run, args=arguments, name=f"{self._what}: merging")
        self._thread.start()

    def settle(self, index: LargeIndex) -> None:
        """Use a merge that has ended."""
        if not self._is_running or (self._thread is not None and self._thread.is_alive()):
            return
        outcome, self._thread, self._is_running = self._outcome, None, False
        assert outcome is not None, "a merge has an outcome"
        if outcome.base is not None:
            index.merged(outcome.base, outcome.holds.batch)
            self._held_before, self._held = self._held, outcome.holds.seq
            self._version, self._rows_held = self._merging.version, len(outcome.base)
            pa.default_memory_pool().release_unused()
            return
        index.thaw()
        if isinstance(outcome.error, VersionMoved):
            raise BackendError(f"{self._what}: another writer has merged its changes; the batch may be replayed")
        _LOGGER.warning("merging the changes of %s was postponed: %s", self._what, outcome.error)

    def wait(self) -> None:
        """Return when no merge is running."""
        if self._thread is not None:
            self._thread.join()

    def is_due_for(self, changes: int, size: int) -> bool:
        """Whether a merge of so many changes, of so many bytes on the disk, is due."""
        return bool(changes) and (
            time.monotonic() >= self._not_before
            or self.bounds.are_enough(changes, max(size, changes * _CHANGE_BYTES), self._rows_held)
        )

    def is_late(self, changes: int, size: int) -> bool:
        """Whether so many changes are too many to wait for a merge that is running."""
        return max(size, changes * _CHANGE_BYTES) > 2 * self.bounds.bytes_of_changes

    @property
    def is_running(self) -> bool:
        """Whether a merge has begun, and `settle` has not used its outcome."""
        return self._is_running

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _is_due(self, index: LargeIndex) -> bool:
        values = index.values
        if not values.changes:
            return False
        is_time = time.monotonic() >= self._not_before
        return is_time or self.bounds.are_enough(values.changes, values.nbytes, len(values.base))

    def _published(self, rows: pa.Table, snapshot: Snapshot) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        values = self._rows.values(rows, snapshot)
        columns = [*(rows[name] for name in self._layout.key_columns), values]
        return pa.table(columns, schema=self._rows.schema), pc.is_null(values).to_numpy()

    # ---- in the thread of a merge ---------------------------------------------------------------------------------

    def _run(self, merge: Merge, due: Due, holds: Holds, based_on: int) -> None:
        began = time.monotonic()
        try:
            base = self._merge(merge, due, holds, based_on)
            self._outcome = _Outcome(base, holds, None)
        except (VersionMoved, StateError, OSError) as error:
            self._outcome = _Outcome(None, holds, error)
        ended = time.monotonic()
        self._not_before = ended + max(self._options.publish_every_s, (ended - began) * (_SHARE - 1))
        if self._outcome.error is None:
            self._keep_small()

    def _merge(self, merge: Merge, due: Due, holds: Holds, based_on: int) -> BucketedBase:
        table = self._merging
        if table.refresh() != based_on and not moved_by_compactions(table, based_on):
            raise VersionMoved(f"the base is at version {table.version}, not {based_on}")
        rewrites = list(merge.rewrites())
        if not is_newest(self._changes, due.shown):
            raise VersionMoved("another writer has taken over")
        return table.move(merge.base, rewrites, holds, due.shown, self._name)

    def _keep_small(self) -> None:
        """Delete changes that the base before this one held already; now and then checkpoints and old files."""
        self._runs += 1
        try:
            self._trim(self._held)
            if self._runs % _RUNS_PER_CHECKPOINT == 0:
                self._merging.checkpoint()
                self._merging.vacuum()
        except (VersionMoved, StateError, OSError) as error:
            _LOGGER.warning("the clean-up of %s was postponed: %s", self._what, error)

    def _trim(self, seq: int) -> None:
        changes = self._changes.another()
        changes.refresh()
        files = changes.files()[:-1]  # the last one has the sentinel
        gone = [file for file in files if file.last <= seq]
        if gone:
            changes.replace(self._layout.schema.empty_table(), gone, (TRIMMED, seq), {COMPACTION: "merged"})
