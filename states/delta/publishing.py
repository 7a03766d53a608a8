"""What other programs may read of a state: the table at the path is brought up to date beside the commits, by one thread.

It is written at most every few seconds, when the state is closed, and at once if the changes of a state beyond memory become
too many. It shows committed batches only: a state learns which these are when its next commit begins, or when the driver says
so (`recorded`). A state to be shown is a version of the changes, and is made from their table: of a state in memory all rows
replace the former ones; beyond memory the changes that the base does not hold are merged into it, from their table or, if
this process has them in memory over this very base, from there. The first base is made by the commit that finds the state too
large.

Two writers may publish at once, if one of them was paused and replaced. So a version is based on the one that was read before
the sentinel of the changes was compared: the slower of two is refused, and a state of the past replaces no later one. A base
has values of committed batches only (`PublishedRows`), so who merges does not matter. Changes that are in the base leave
their table one merge later, so a reader that began before finds them.
"""

import logging
import threading
import time

import pyarrow as pa

from states.delta.beyond_memory.bucketed_base import BucketedBase
from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.data_files import delete_files
from states.delta.faults import VersionMoved
from states.delta.fence import newest_sentinel
from states.delta.index import HeldChanges, Index
from states.delta.state_table import ABSENT, COMPACTION, StateTable
from states.delta.state_tables import NOTHING, TRIMMED, Holds, Shown, StateTables, is_newest, last_seq
from states.delta.upkeep import Maintenance
from trident.errors import BackendError, StateError
from trident.state.interfaces import StateType
from trident.state.txid import Sentinel, Snapshot, Txid
from trident.storekit import Retries

_LOGGER = logging.getLogger(__name__)
_RETRIES = Retries(4, 0.0, 0.0)  # of a version that another writer has made first
_SHARE = 40  # publishing takes at most one part in so many of the time
_LOOK_S = 0.2  # how soon the thread notices that the program ends


class Publishing:
    """Publishes the committed batches of a state. Used by the thread of the commits; its own has table objects of its own."""

    def __init__(self, tables: StateTables, index: Index, maintenance: Maintenance) -> None:
        self._tables, self._changes, self._index, self._maintenance = tables, tables.changes, index, maintenance
        self._published, self._options = tables.at_path(), tables.options
        self._news = threading.Condition()
        self._due: tuple[Shown, HeldChanges | None] | None = None
        self._last: Shown | None = None
        self._thread: threading.Thread | None = None
        self._not_before, self._at_once = 0.0, False
        self._is_busy = False  # writing, and not waiting
        self._is_index_old = False  # the base has moved, or cannot be written

    # ---- between two commits --------------------------------------------------------------------------------------

    def before(self, txid: Txid, newest: Sentinel | None) -> None:
        """Publish the state after the batch before, into files if it is too large for memory.

        The index may be loaded again, over another version: then its sentinel is to be compared.
        """
        before = Snapshot(int(txid) - 1, txid.winners)
        self._renew_index()
        if newest is not None and newest.txid < txid and self._index.is_too_large():
            self._grow(Shown(before, newest, self._changes.version))
        if txid.expected is not None:
            self._offer(before, txid.expected, newest)
            self._renew_index()

    def without_log(self) -> None:
        """Publish the newest writes of a state without a log."""
        if self._index.sentinel is None:
            self._offer(Snapshot(1 << 62), None, None)  # every write counts

    def try_publish(self, snapshot: Snapshot, newest: Sentinel) -> None:
        """Publish the state after a batch that the log holds; what fails is published with the next one."""
        try:
            self._offer(snapshot, newest, newest)
        except StateError as error:
            _LOGGER.warning("%s", error)

    def create(self) -> None:
        self.finish()
        self._published.create()

    def finish(self) -> None:
        """Publish now what is due, and return."""
        with self._news:
            thread, self._at_once = self._thread, True
            self._news.notify()
        if thread is not None:
            thread.join()
        with self._news:
            due, self._due = self._due, None
        if due is not None:
            self._try(*due)

    def forget(self) -> None:
        """Publish nothing that is due; return when nothing is being published."""
        with self._news:
            self._due = self._last = None
        self.finish()

    def clear(self, base_only: bool = False) -> None:
        """Remove all rows of a state that is empty, unless another writer fills it; `base_only`: if they are a base."""

        def clear() -> None:
            if self._published.refresh() == ABSENT or (base_only and self._published.holds() is None):
                return
            changes = self._changes.another(read_only=True)  # seen after the base: a later base refuses this version
            if changes.refresh() == ABSENT or newest_sentinel(changes) is None:
                self._published.clear()

        self.finish()
        _RETRIES.run(clear, VersionMoved)

    def _offer(self, snapshot: Snapshot, shown: Sentinel | None, found: Sentinel | None) -> None:
        """Publish a committed state soon. A later one takes its place if it comes first."""
        # In an opaque state, what an unrecorded batch wrote can be distinguished; in the others, and in a base, it cannot.
        can_tell = self._tables.layout.kind is StateType.OPAQUE and self._index.holds is None
        due = Shown(snapshot, shown, self._changes.version)
        is_last = self._last is not None and self._last.is_same(due)
        if is_last or (found is not None and found.txid > snapshot.txid and not can_tell):
            return
        at_once = self._is_urgent()
        with self._news:
            self._due, self._last = (due, self._index.held_changes(due.version)), due
            if self._options.background_maintenance:
                self._wake(at_once)
        if not self._options.background_maintenance and (at_once or time.monotonic() >= self._not_before):
            self.finish()

    def _is_urgent(self) -> bool:
        """Whether there are so many changes beside the base that they are merged at once; waits if there are twice as many."""
        if self._is_busy and self._index.is_full(2):
            self.finish()  # so that memory stays bounded if batches are faster than merges
        # Else changes may be in the base already.
        return not (self._is_busy or self._is_index_old) and self._index.is_full()

    def _wake(self, at_once: bool) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._at_once = False
            self._thread = threading.Thread(target=self._run, name=f"{self._tables.what}: publishing")
            self._thread.start()
        if at_once:
            self._at_once = True
            self._news.notify()

    def _grow(self, due: Shown) -> None:
        """Make the first base, as of a committed batch."""
        self.forget()
        self._maintenance.close()  # it would drop the marks of deleted keys, which a base needs
        self._published.create()  # another program may have deleted it
        _LOGGER.info("%s is held in files from now on, because it is too large for memory", self._tables.what)
        try:
            self._merge(self._changes, due, self._published.base_under(self._changes))
        except VersionMoved as moved:
            raise BackendError(f"{self._tables.what}: another writer has committed meanwhile ({moved})") from moved
        self._index.renew()

    def _renew_index(self) -> None:
        if self._is_index_old:
            self._is_index_old = False
            self._index.renew()

    # ---- in the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._is_time():
                    self._news.wait(_LOOK_S)
                due, self._due, self._at_once = self._due, None, False
                if due is None or not threading.main_thread().is_alive():
                    self._thread = None
                    return
                self._is_busy = True
            self._try(*due)

    def _is_time(self) -> bool:
        ends = self._at_once or not threading.main_thread().is_alive()
        return ends or self._due is None or time.monotonic() >= self._not_before

    def _try(self, due: Shown, held: HeldChanges | None) -> None:
        """Publish; what fails is tried again with the next state, because no batch depends on it."""
        began = time.monotonic()
        try:
            if _RETRIES.run(lambda: self._publish(due, held), VersionMoved):
                self._published.keep_small()
        except (VersionMoved, StateError, OSError) as error:
            self._last, self._is_index_old = None, self._is_index_old or self._index.holds is not None
            _LOGGER.warning("the table of %s shows an earlier batch for now: %s", self._tables.what, error)
        finally:
            ended = time.monotonic()
            self._not_before = ended + max(self._options.publish_every_s, (ended - began) * (_SHARE - 1))
            self._is_busy = False

    def _publish(self, due: Shown, held: HeldChanges | None) -> bool:
        """Make the version that shows a state, as the one after the newest; False: it is not to be shown any more."""
        table, changes = self._published, self._changes.another(read_only=True, at=due.version)
        is_there = table.refresh() != ABSENT
        if not is_newest(self._changes, due):
            return False
        shown = table.read_shown() if is_there else None
        if shown is not None and (shown.is_same(due) or shown.is_later(due)):
            return False
        if changes.refresh() == ABSENT:
            return False
        holds = table.base_under(changes)
        if holds is not None or table.holds() is not None:
            return self._merge(changes, due, holds, held)
        latest = self._tables.layout.latest_rows(changes.scan(), drop_deleted=True)
        table.create()  # another program may have deleted it
        table.show(self._tables.rows.of(latest, due.snapshot), due)
        return True

    def _merge(self, changes: StateTable, due: Shown, holds: Holds | None, held: HeldChanges | None = None) -> bool:
        """Merge changes that the base does not hold into it, or into the first one; False: there are none, or no right to.

        `held`: the changes, if they are in memory; if the base has moved since, they are read like all others.
        """
        table, newest = self._published, newest_sentinel(changes)
        merged, seq = NOTHING if holds is None else holds.seq, last_seq(changes)
        if seq <= merged or newest is None or newest.txid > due.txid:
            return False
        before = table.base([] if holds is None else None)
        with table.or_forgotten("write files of"):
            if held is not None and held.holds == holds:
                pending = LargeIndex(self._tables.layout, before, due.txid, held.runs)
            else:
                pending = self._read_changes(changes, holds, before, due)
            after = self._write_changes(pending, before, due)
        if not is_newest(self._changes, due):
            return False
        table.move(None if holds is None else before, after, seq, due)
        self._is_index_old = True
        pa.default_memory_pool().release_unused()
        if holds is not None:
            self._trim(holds.seq)
        return True

    def _read_changes(self, changes: StateTable, holds: Holds | None, before: BucketedBase, due: Shown) -> LargeIndex:
        """Return the changes that the base does not hold over it, or the last of them over what is written for the others."""
        pending, merged = LargeIndex(self._tables.layout, before, due.txid), NOTHING if holds is None else holds.seq
        # Before there is a base, all values are in memory, too.
        most = self._index.bytes_of_changes * (1 if holds is None else 2)
        for rows in changes.scans_after(merged):
            pending.load(rows, merged)
            if pending.nbytes > most:
                base = self._write_changes(pending, before, due)
                pending = LargeIndex(self._tables.layout, base, due.txid)
        return pending

    def _write_changes(self, pending: LargeIndex, before: BucketedBase, due: Shown) -> BucketedBase:
        """Write changes into files that no log names yet; of those before, only the ones of the base `before` stay."""
        table, all_files = self._published, pending.base is before and not self._published.has_columns()
        after = pending.merged(lambda part: self._tables.rows.in_base(part, due.snapshot), all_files)
        gone = {*pending.base.files} - {*after.files} - {*before.files}
        delete_files(table.filesystem(), [file.path for file in gone])
        return after

    def _trim(self, seq: int) -> None:
        """Delete changes up to a `_seq`, which the base before the last one held already."""
        try:
            changes = self._changes.another()
            changes.refresh()
            gone = [file for file in changes.files()[:-1] if file.last <= seq]  # the last file has the sentinel
            if gone:
                nothing = self._tables.layout.schema.empty_table()
                changes.replace(nothing, gone, (TRIMMED, seq), {COMPACTION: "merged"})
        except (VersionMoved, StateError, OSError) as error:
            _LOGGER.warning("the clean-up of %s was postponed: %s", self._tables.what, error)
