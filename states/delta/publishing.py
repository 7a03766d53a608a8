"""What other programs may read of a state: published beside the commits, or merged into the files of one beyond memory."""

from __future__ import annotations

import logging

from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.merging import Merging
from states.delta.beyond_memory.opened_base import OpenedBase
from states.delta.index import Index
from states.delta.maintenance import Maintenance
from states.delta.published_table import Due, Shown
from states.delta.publisher import Publisher
from states.delta.state_table import StateTable
from states.delta.state_tables import StateTables
from trident.errors import StateError
from trident.state.interfaces import StateType
from trident.state.txid import Sentinel, Snapshot, Txid

_LOGGER = logging.getLogger(__name__)

_NEWEST = Snapshot(1 << 62)
"""Without a log every write counts."""


class Publishing:
    """Publishes the committed batches of a state. Used by the thread of the commits.

    The rows are in the index of this process, or in the memory of tasks: then this process publishes what they staged, and
    reads changes from their table when a merge is due.
    """

    def __init__(
        self, tables: StateTables, changes: StateTable, index: Index, base: OpenedBase, maintenance: Maintenance
    ) -> None:
        self._changes, self._index, self._base, self._maintenance = changes, index, base, maintenance
        self._is_opaque = tables.layout.kind is StateType.OPAQUE
        self._publisher, self._merging = Publisher(tables, changes), Merging(tables, changes, base)
        self._recorded: Due | None = None  # what is committed, as far as this writer knows
        self._is_unread = False  # whether the rows are in the memory of tasks

    # ---- what is committed ----------------------------------------------------------------------------------------

    def before(self, txid: Txid, newest: Sentinel | None) -> bool:
        """Publish what a commit is based on, the state after the batch before.

        A state that is too large for memory is held in files from then on: at this moment all rows are of committed batches.

        Returns
        -------
        bool
            False if another writer has committed meanwhile.
        """
        if newest is not None and newest.txid < txid and not self._has_base and self._is_too_large():
            self._grow(Snapshot(int(txid) - 1, txid.winners), newest)
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
            self._publish(_NEWEST, None, None)

    def recorded(self, snapshot: Snapshot, newest: Sentinel) -> None:
        """Publish the state after a batch that the log holds; what fails is published with the next one."""
        try:
            self._publish(snapshot, newest, newest)
        except StateError as error:
            _LOGGER.warning("%s", error)

    def finish(self, newest: Sentinel | None) -> None:
        """Publish what is committed, and return; `newest` is the sentinel of the changes."""
        self._publisher.finish()
        due, newest = self._recorded, newest if self._is_unread else self._index.sentinel
        is_committed = due is not None and newest is not None and newest.txid <= due.snapshot.txid
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
        self._maintenance.opened(len(self._changes.files()))

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

    def create(self) -> None:
        """Make the table that people read, without rows, if it is absent."""
        self._publisher.create()

    def stop(self) -> None:
        """Publish nothing that is due; return when nothing is being published."""
        self._publisher.forget()
        self._merging.drop()
        self._recorded, self._is_unread = None, False

    def clear(self) -> None:
        """Remove all rows, because the state was emptied."""
        self._publisher.clear()

    # ---- inside ---------------------------------------------------------------------------------------------------

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
        due = self._recorded = Due(Shown(snapshot.txid, shown, self._changes.version), snapshot)
        if not self._has_base:
            self._publisher.publish(due)
        elif is_committed:  # a base holds no others
            try:
                self._merging.offer(due, self._large, self._index.seq)
            except StateError:
                self._forget()
                raise

    def _is_too_large(self) -> bool:
        return self._base.bounds.is_beyond(self._changes.files()) if self._is_unread else self._index.is_too_large()

    def _grow(self, snapshot: Snapshot, newest: Sentinel) -> None:
        self._publisher.forget()
        self._maintenance.close()
        seq = max(file.last for file in self._changes.files()) if self._is_unread else self._index.seq
        self._base.grow(Due(Shown(snapshot.txid, newest, self._changes.version), snapshot), seq)

    def _forget(self) -> None:
        """Read the state again, because another writer has changed it; `by_tasks` looks for its base."""
        self._index.forget()
        self._changes.forget()
        self._is_unread = False
