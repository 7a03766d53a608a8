"""The base of a state beyond memory: opened, written for the first time; changes are merged into it beside the commits.

When there are enough changes, between two commits, a thread begins to merge them into the base; the next commit after it uses
the base that it made. Changes that are in the base leave the change table one merge later, so a reader that began before
finds them. What goes into a base are values of committed batches only (`PublishedRows`). So a merge is harmless, no matter
who makes it: a writer that was paused and replaced is refused, because the base has moved, or writes what its successor would
have written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from states.delta.beyond_memory.bucketed_base import BucketedBase
from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.sorted_rows import SortedRows
from states.delta.data_files import DataFile, delete_files, in_turn
from states.delta.faults import VersionMoved
from states.delta.fence import moved_by_compactions, newest_sentinel
from states.delta.layout import in_order
from states.delta.state_table import ABSENT, COMPACTION
from states.delta.state_tables import TRIMMED, Holds, Shown, StateTables, is_newest
from trident.errors import BackendError, ConfigError, StateError

_LOGGER = logging.getLogger(__name__)
_SHARE = 20  # merging for the sake of people takes at most one part in so many of the time
_CHANGE_BYTES = 64  # of a change in memory, without long values
_KEY_BYTES = 300  # of a key in the memory of a writer, without long values
_NOT_MERGED = 4  # files of commits may repeat keys so often before they are counted as keys
_BASE_SHARE = 5  # a merge rewrites the whole base, so it waits until a fifth of it has changed


class _Outcome(NamedTuple):
    base: BucketedBase | None
    holds: Holds
    error: Exception | None


class Merging:
    """Merges of one state. Used by the thread of the commits; a merge has a thread and a table object of its own.

    Methods take the values that this process holds, with the highest `_seq` among them; None if tasks hold them.
    """

    def __init__(self, tables: StateTables, base: OpenedBase) -> None:
        self._tables, self._changes, self._base = tables, tables.changes, base
        self._published = tables.at_path()
        self._thread: threading.Thread | None = None
        self._outcome: _Outcome | None = None
        self._unread: LargeIndex | None = None  # changes of tasks that are being merged
        self.is_running = False  # whether a merge has begun, and `settle` has not used its outcome
        self._not_before = 0.0

    def offer(self, due: Shown, index: LargeIndex | None, seq: int) -> None:
        """Between commits, use a merge that has ended, and begin one if due; `BackendError`: read the state again."""
        if self.is_running and self._changes_of(index)[1] > 2 * self._base.bytes_of_changes:
            self.wait()  # so that memory stays bounded if batches are faster than merges
        self.settle(index)
        if self.is_running:
            return
        changes, nbytes = self._changes_of(index)
        is_large = changes >= self._base.most_changes or nbytes > self._base.bytes_of_changes
        if changes and (is_large or time.monotonic() >= self._not_before):
            self._start(due, index, seq)

    def finish(self, due: Shown | None, index: LargeIndex | None, seq: int) -> None:
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
            index.adopt_base(outcome.base, outcome.holds.batch)
            self._base.adopt(outcome.base, outcome.holds, self._published.version)
            pa.default_memory_pool().release_unused()
            return
        index.thaw()
        if isinstance(outcome.error, VersionMoved):
            raise BackendError(f"{self._tables.what}: another writer has merged its changes; the batch may be replayed")
        _LOGGER.warning("merging the changes of %s was postponed: %s", self._tables.what, outcome.error)

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def drop(self) -> None:
        self.wait()
        self._thread, self._unread, self.is_running = None, None, False

    def _changes_of(self, index: LargeIndex | None) -> tuple[int, int]:
        """Return the number of changes that are not merged yet, and their bytes in memory."""
        if index is not None:
            return index.changes, index.nbytes
        files = self._files()
        rows = sum(file.rows for file in files)
        return rows, max(sum(file.size for file in files), rows * _CHANGE_BYTES)

    def _files(self) -> list[DataFile]:
        merged = self._base.merged_seq()
        return [file for file in self._changes.files() if merged is None or file.last > merged]

    def _start(self, due: Shown, index: LargeIndex | None, seq: int) -> None:
        unread = None
        if index is None:
            files = self._files()
            index = unread = self._base.open_index() if files else None
            seq = max((file.last for file in files), default=0)
        if index is None or not index.changes:
            return
        holds, frozen = Holds(seq, due.txid), index.freeze()
        arguments = index.base, frozen, due, holds, self._base.version, self._base.merged_seq()
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
        self, base: BucketedBase, changes: SortedRows, due: Shown, holds: Holds, based_on: int, held: int | None
    ) -> None:
        began = time.monotonic()
        table, rows = self._published, self._tables.rows
        try:
            if table.refresh() != based_on and not moved_by_compactions(table, based_on):
                raise VersionMoved(f"the base is at version {table.version}, not {based_on}")
            after = base.merge(changes, lambda part: rows.in_base(part, due.snapshot), not table.has_columns())
            if not is_newest(self._changes, due):
                raise VersionMoved("another writer has taken over")
            table.move(base, after, holds.seq, due)
            self._outcome = _Outcome(after, holds, None)
        except (VersionMoved, StateError, OSError) as error:
            self._outcome = _Outcome(None, holds, error)
        ended = time.monotonic()
        self._not_before = ended + max(self._tables.options.publish_every_s, (ended - began) * (_SHARE - 1))
        if self._outcome.error is None:
            self._keep_small(held)

    def _keep_small(self, held: int | None) -> None:
        """Delete changes that the base before this one held already; now and then checkpoints and old files."""
        try:
            changes, seq = self._changes.another(), -1 if held is None else held
            changes.refresh()
            gone = [file for file in changes.files()[:-1] if file.last <= seq]  # the last file has the sentinel
            if gone:
                nothing = self._tables.layout.schema.empty_table()
                changes.replace(nothing, gone, (TRIMMED, seq), {COMPACTION: "merged"})
        except (VersionMoved, StateError, OSError) as error:
            _LOGGER.warning("the clean-up of %s was postponed: %s", self._tables.what, error)
        self._published.keep_small()


class OpenedBase:
    """What this process knows of the base of a state. Used by the thread of the commits."""

    def __init__(self, tables: StateTables) -> None:
        self._tables, self._changes, self._published = tables, tables.changes, tables.at_path()
        self._keys, self._bytes = tables.options.max_keys_in_memory, tables.options.max_mb_in_memory << 20
        self._ttl_s = tables.options.ttl_s
        self.holds: Holds | None = None
        self.version, self.rows = ABSENT, 0

    # ---- what is too much for memory ------------------------------------------------------------------------------

    @property
    def bytes_of_changes(self) -> int:
        return self._bytes // 4

    @property
    def most_changes(self) -> int:
        """From how many changes on a merge into the base is worth it."""
        return max(self._keys // 4, self.rows // _BASE_SHARE)

    def is_beyond(self, files: Sequence[DataFile]) -> bool:
        """Whether the rows of a version are too many for memory, as far as its files show."""
        most, together = max((file.rows for file in files), default=0), sum(file.rows for file in files)
        return self.is_too_large(max(most, together // _NOT_MERGED), sum(file.size for file in files))

    def is_too_large(self, keys: int, size: int) -> bool:
        """Whether so many keys, and bytes of them on the disk, are too many for memory."""
        # The rows of a base do not say when they were written.
        return self._ttl_s is None and (keys > self._keys or keys * _KEY_BYTES + size > self._bytes)

    # ---- the base -------------------------------------------------------------------------------------------------

    def merged_seq(self) -> int | None:
        """Return the `_seq` up to which all changes are in the base; None without a base."""
        return None if self.holds is None else self.holds.seq

    def open_index(self) -> LargeIndex | None:
        """Return the values of the version of the changes last seen; None if they are not in files yet."""
        holds, trimmed = self._newest(), self._changes.transaction(TRIMMED)
        if (holds is None and trimmed is None) or newest_sentinel(self._changes) is None:  # without one it was emptied
            self.holds = None
            return None
        self._tables.check_base(self._changes, holds)
        self._note(holds)
        if holds is None:
            return None
        return self._published.index(self._tables.layout, self._scans(holds.seq))

    def look(self) -> None:
        self._note(self._newest())

    def is_other(self, is_large: bool) -> bool:
        """Whether the base is not the one that was opened last; `is_large` says whether one was."""
        holds = self._newest()
        return is_large if holds is None else not is_large or holds.seq != self.merged_seq()

    def adopt(self, base: BucketedBase, holds: Holds, version: int) -> None:
        """Go on with a base that a merge has made."""
        self.holds, self.version, self.rows = holds, version, len(base)

    def grow(self, due: Shown, seq: int) -> None:
        """Write the first base: all changes of the version last seen, up to `seq`, as of a committed batch."""
        self._published.create()  # another program may have deleted it
        _LOGGER.info("%s is held in files from now on, because it is too large for memory", self._tables.what)
        index = LargeIndex(self._tables.layout, self._published.base([]), due.txid)
        for rows in self._scans():
            index.load(rows)
            if index.nbytes > self.bytes_of_changes:
                self._write_changes(index, due)
        self._write_changes(index, due)
        try:
            self._published.move(None, index.base, seq, due)
        except VersionMoved as moved:
            raise BackendError(f"{self._tables.what}: another writer has committed meanwhile ({moved})") from moved

    def _scans(self, after: int = -1) -> Iterator[pa.Table]:
        """Iterate over the rows of the version of the changes last seen, in the order of `_seq`; some may be up to `after`."""
        for files in in_turn([file for file in self._changes.files() if file.last > after]):
            yield in_order(self._changes.scan(None, None, files))

    def _write_changes(self, index: LargeIndex, due: Shown) -> None:
        """Write the changes of an index into files that no log names yet."""
        before, changes = index.base, index.freeze()
        with self._published.or_forgotten("write files of"):
            after = before.merge(changes, lambda part: self._tables.rows.in_base(part, due.snapshot))
            index.adopt_base(after, due.txid)
            delete_files(self._published.filesystem(), [file.path for file in {*before.files} - {*after.files}])

    def _newest(self) -> Holds | None:
        self._published.refresh()
        return self._published.holds()

    def _note(self, holds: Holds | None) -> None:
        if holds is not None and self._ttl_s is not None:
            raise ConfigError(
                f"ttl_s={self._ttl_s} of {self._tables.what}: the state has outgrown memory and is held in files, whose rows "
                "do not say when they were written. Leave ttl_s out, or move the state to a new path with trident state move"
            )
        self.holds, self.version = holds, self._published.version
        self.rows = sum(file.rows for file in self._published.files())
