"""What other programs may read of a state: published beside the commits, or merged into the files of one beyond memory.

The table at the path is brought up to date at most every few seconds, and when the state is closed. It shows committed
batches only: a state learns which these are when its next commit begins, or when the driver says so (`recorded`).

Two writers may publish at once, if one of them was paused and replaced. So a version is based on the one that was read before
the sentinel of the changes was compared: the slower of two is refused, and a state of the past replaces no later one.
"""

from __future__ import annotations

import logging
import threading
import time

from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.merging import Merging, OpenedBase
from states.delta.faults import VersionMoved
from states.delta.index import Index
from states.delta.state_table import ABSENT
from states.delta.state_tables import Shown, StateTables, is_newest
from states.delta.upkeep import Maintenance
from trident.errors import StateError
from trident.state.interfaces import StateType
from trident.state.txid import Sentinel, Snapshot, Txid
from trident.storekit import Retries

_LOGGER = logging.getLogger(__name__)
_RETRIES = Retries(4, 0.0, 0.0)  # of a version that another writer has made first
_SHARE = 40  # publishing takes at most one part in so many of the time
_LOOK_S = 0.2  # how soon the thread notices that the program ends


class Publishing:
    """Publishes the committed batches of a state, from the index of this process, or from what tasks have staged."""

    def __init__(self, tables: StateTables, index: Index, base: OpenedBase, maintenance: Maintenance) -> None:
        self._changes, self._index, self._base, self._maintenance = tables.changes, index, base, maintenance
        self._is_opaque = tables.layout.kind is StateType.OPAQUE
        self.publisher, self._merging = Publisher(tables), Merging(tables, base)
        self._recorded: Shown | None = None  # what is committed, as far as this writer knows
        self._is_unread = False  # whether the rows are in the memory of tasks

    # ---- what is committed ----------------------------------------------------------------------------------------

    def before(self, txid: Txid, newest: Sentinel | None) -> bool:
        """Publish the state after the batch before, into files if it is too large; False: another writer has committed."""
        if newest is not None and newest.txid < txid and not self._has_base and self._is_too_large():
            self.publisher.forget()
            self._maintenance.close()
            seq = max(file.last for file in self._changes.files()) if self._is_unread else self._index.seq
            self._base.grow(Shown(Snapshot(int(txid) - 1, txid.winners), newest, self._changes.version), seq)
            if self._is_unread:
                self._base.look()
            elif not self._index.reload():
                return False
        if txid.expected is not None:
            self._publish(Snapshot(int(txid) - 1, txid.winners), txid.expected, newest)
        return True

    def without_log(self) -> None:
        """Publish the newest writes of a state without a log."""
        if self._index.sentinel is None:
            self._publish(Snapshot(1 << 62), None, None)  # every write counts

    def try_publish(self, snapshot: Snapshot, newest: Sentinel) -> None:
        """Publish the state after a batch that the log holds; what fails is published with the next one."""
        try:
            self._publish(snapshot, newest, newest)
        except StateError as error:
            _LOGGER.warning("%s", error)

    def finish(self, newest: Sentinel | None) -> None:
        """Publish what is committed, and return; `newest` is the sentinel of the changes."""
        self.publisher.finish()
        due, newest = self._recorded, newest if self._is_unread else self._index.sentinel
        is_committed = due is not None and newest is not None and newest.txid <= due.txid
        try:
            self._merging.finish(due if is_committed and self._has_base else None, self._large, self._index.seq)
        except StateError as error:
            _LOGGER.warning("%s", error)
            self._forget()

    # ---- who holds the rows ---------------------------------------------------------------------------------------

    def by_tasks(self) -> None:
        """The rows are in the memory of tasks from now on."""
        if self._is_unread:
            return
        self._merging.wait()
        self._merging.settle(self._large)
        self._index.forget()
        self._base.look()
        self._is_unread = True
        self._maintenance.note_files(len(self._changes.files()))

    def by_index(self) -> bool:
        """The rows are in the index from now on; False if another writer has committed meanwhile."""
        was_unread, self._is_unread = self._is_unread, False
        if not was_unread or not self._merging.is_running:
            return True
        try:
            self._merging.finish(None, None, 0)
        except StateError:
            self._forget()
            raise
        return self._index.reload()  # it was read over the base before the merge

    def follow(self) -> bool:
        """In a task: use the newest base of a state beyond memory; False if another writer has committed meanwhile."""
        return not self._base.is_other(self._index.large is not None) or self._index.reload()

    # ---- the table at the path ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Publish nothing that is due; return when nothing is being published."""
        self.publisher.forget()
        self._merging.drop()
        self._recorded, self._is_unread = None, False

    @property
    def _large(self) -> LargeIndex | None:
        return None if self._is_unread else self._index.large

    @property
    def _has_base(self) -> bool:
        return self._base.holds is not None if self._is_unread else self._large is not None

    def _publish(self, snapshot: Snapshot, shown: Sentinel | None, found: Sentinel | None) -> None:
        # In an opaque state, what an unrecorded batch wrote can be distinguished; in the others it cannot.
        is_committed = found is None or found.txid <= snapshot.txid
        if not (is_committed or self._is_opaque):
            return
        due = self._recorded = Shown(snapshot, shown, self._changes.version)
        if not self._has_base:
            self.publisher.publish(due)
        elif is_committed:  # a base holds no others
            try:
                self._merging.offer(due, self._large, self._index.seq)
            except StateError:
                self._forget()
                raise

    def _is_too_large(self) -> bool:
        return self._base.is_beyond(self._changes.files()) if self._is_unread else self._index.is_too_large()

    def _forget(self) -> None:
        """Read the state again, because another writer has changed it; `by_tasks` looks for its base."""
        self._index.forget()
        self._changes.forget()
        self._is_unread = False


class Publisher:
    """Brings the table at the path up to date while the state fits into memory, with table objects and a thread of its own."""

    def __init__(self, tables: StateTables) -> None:
        self._tables, self._changes, self._published = tables, tables.changes, tables.at_path()
        self._news = threading.Condition()
        self._due: Shown | None = None
        self._last: Shown | None = None
        self._thread: threading.Thread | None = None
        self._not_before, self._at_once = 0.0, False

    def publish(self, due: Shown) -> None:
        """Publish a committed state soon. A later one takes its place if it comes first."""
        if self._last is not None and self._last.is_same(due):
            return
        self._last = due
        with self._news:
            self._due = due
            if self._tables.options.background_maintenance and (self._thread is None or not self._thread.is_alive()):
                self._at_once = False
                self._thread = threading.Thread(target=self._run, name=f"{self._tables.what}: publishing")
                self._thread.start()
        if not self._tables.options.background_maintenance and time.monotonic() >= self._not_before:
            self.finish()

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
            self._try(due)

    def forget(self) -> None:
        with self._news:
            self._due = self._last = None
        self.finish()

    def clear(self, base_only: bool = False) -> None:
        """Remove all rows, because the state was emptied; `base_only`: those that it would be read from."""

        def clear() -> None:
            if self._published.refresh() != ABSENT and not (base_only and self._published.holds() is None):
                self._published.clear()

        _RETRIES.run(clear, VersionMoved)

    # ---- in the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._is_time():
                    self._news.wait(_LOOK_S)
                due, self._due = self._due, None
                if due is None or not threading.main_thread().is_alive():
                    self._thread = None
                    return
            self._try(due)

    def _is_time(self) -> bool:
        ends = self._at_once or not threading.main_thread().is_alive()
        return ends or self._due is None or time.monotonic() >= self._not_before

    def _try(self, due: Shown) -> None:
        """Publish; what fails is tried again with the next state, because no batch depends on it."""
        began = time.monotonic()
        try:
            self._publish(due)
        except (VersionMoved, StateError) as error:
            self._last = None
            _LOGGER.warning("the table of %s shows an earlier batch for now: %s", self._tables.what, error)
        ended = time.monotonic()
        self._not_before = ended + max(self._tables.options.publish_every_s, (ended - began) * (_SHARE - 1))

    def _publish(self, due: Shown) -> None:
        changes = self._changes.another(read_only=True, at=due.version)

        def show() -> bool:
            is_there = self._published.refresh() != ABSENT
            if self._published.holds() or not is_newest(self._changes, due):
                return False
            shown = self._published.read_shown() if is_there else None
            if shown is not None and (shown.is_same(due) or shown.is_later(due)):
                return False
            if changes.refresh() == ABSENT:
                return False
            latest = self._tables.layout.latest_rows(changes.scan(), drop_deleted=True)
            rows = self._tables.rows.of(latest, due.snapshot)
            self._published.create()  # another program may have deleted it
            self._published.show(rows, due)
            return True

        if _RETRIES.run(show, VersionMoved):
            self._published.keep_small()
