"""The backing map of a state whose commits tasks stage, and its driver publishes (E8 of docs/architecture.md).

A task does all of a commit but the transaction: it compares the sentinel, reads, collects puts, and stages them as a data
file. The driver adds that file to the table, in one transaction based on the version that the task read, and does the
upkeep. A task keeps its index for the next batch: what it staged is in it as soon as the table shows it. If the table shows
something else, the task reads it again.
A state may outgrow memory: then a task keeps what changed since the last merge, and the driver merges from the table. If the
driver commits some batches by itself (small ones, with `engine="auto"`), it has an index for as long as no task stages, and
merges from that: the index goes on with each base that it has made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.unread_merges import UnreadMerges
from states.delta.commit_notes import STAGED_AS, CommitNote, is_only_staged
from states.delta.index import IndexedValues
from states.delta.map import DeltaBackingMap
from states.delta.published_table import Shown
from states.delta.publisher import Due
from states.delta.puts import Puts
from states.delta.staged_files import Staged, StagedName
from trident.errors import SecondRunError, StateError
from trident.state.sentinel import check_move
from trident.state.txid import Sentinel, Snapshot, Txid

__all__ = ["DeltaStagingMap"]

_LOGGER = logging.getLogger(__name__)


class _Ahead(NamedTuple):
    name: str
    puts: Puts
    sentinel: Sentinel
    seq: int

    def is_published(self, entries: Sequence[Mapping[str, Any]]) -> bool:
        return is_only_staged(entries, self.name)

    def go_into(self, index: IndexedValues | LargeIndex) -> None:
        self.puts.go_into(index)


class DeltaStagingMap(DeltaBackingMap):
    """A `DeltaBackingMap` that stages the commits of tasks, and publishes what they staged."""

    _stages = False
    _staged: Staged | None = None
    _has_looked = False  # for what earlier drivers and their tasks have staged
    _merges: UnreadMerges | None = None  # of a driver that publishes, until it commits by itself

    # ---- in a task ------------------------------------------------------------------------------------------------

    def staged_by(self, commit: Callable[[], None]) -> bytes:
        """Call what ends the commit, and stage it instead of committing it; return what `publish` needs."""
        self._stages, self._staged = True, None
        try:
            commit()
        finally:
            self._stages = False
        staged, self._staged = self._staged, None
        if staged is None:
            raise StateError(f"nothing was staged for {self._what}")
        return staged.packed()

    def end(self, txid: Txid) -> None:
        """Commit, or stage, the puts and the sentinel."""
        if not self._stages:
            super().end(txid)
            return
        index, puts, claim = self._index, self._puts, self._claim
        if not self._begun or claim is None or index.version is None:
            raise StateError(f"end of batch {int(txid)} in {self._what} without its begin, or without a log")
        try:
            name, seq = StagedName.of_commit(claim, self._partition), max(index.seq, index.version) + 1
            self._staged = self._table.stage(puts.table(seq, claim), seq, index.version, name)
            index.ahead = _Ahead(str(name), puts, claim, seq)
        finally:
            self._drop_commit()

    def _prepare(self, txid: Txid) -> None:
        if not txid.run or self._claim is None:
            if not self._merges_from_index():
                raise self._overtaken(self._claim)
            super()._prepare(txid)
            return
        own = StagedName.of_commit(self._claim, self._partition)
        if any(name.is_other_run_of(own) for name in self._table.staged()):
            raise SecondRunError(self._what, str(self._claim))
        self._table.discard(self._claim.incarnation, txid.attempt - 1)
        if not self._follow_base():
            raise self._overtaken(self._claim)

    def _follow_base(self) -> bool:
        """Use the newest base of a state that is kept in files; False if another writer has committed meanwhile."""
        if not self._beyond.has_other_base(self._is_large):
            return True
        sentinel = self._index.sentinel
        self._index.forget()
        self._load()
        return self._index.sentinel == sentinel

    @property
    def _is_large(self) -> bool:
        return isinstance(self._index.values, LargeIndex)

    # ---- in the driver --------------------------------------------------------------------------------------------

    def publish(self, own: Sentinel, txid: Txid, staged: Staged) -> None:
        """Commit what a task staged for this attempt; its sentinel was read before.

        Raises
        ------
        FencedError
            A higher attempt has committed. Nothing was written.
        BackendError
            Something else than a compaction has committed since the task began (nothing was written), or the store
            refused; the batch may be replayed with a higher attempt.
        """
        (found,) = self._seen or (None,)
        check_move(self._what, own, found, found)
        snapshot = Snapshot(int(txid) - 1, txid.winners)
        merges = self._opened_merges()
        if found is not None and found.txid < txid and not merges.is_begun:
            self._grow_unread(merges, snapshot, found)
        if txid.expected is not None:
            self._publish(snapshot, txid.expected, found)
        note = CommitNote.of_commit(txid).metadata() | {STAGED_AS: staged.name}
        try:
            is_written = self._table.publish(staged, (self._app, own.version), note)
        except Exception:
            self._forget()
            raise
        if not is_written:
            self._forget()
            raise self._overtaken(own)
        self._seen = (own,)
        self._index.forget()  # the rows are in the memory of the tasks
        self._maintenance.after_commit()
        self._table.discard(own.incarnation, own.attempt)

    def recorded(self, snapshot: Snapshot) -> None:
        """Delete what earlier drivers left; then publish the state after a batch that the log holds."""
        if not self._has_looked and self._reader is None:
            self._has_looked = True
            self._table.discard("", 0)
        super().recorded(snapshot)

    def reset(self) -> None:
        """Empty the table, sentinel included, in one transaction."""
        super().reset()
        self._merges = None
        self._table.discard("", 0)

    def _opened_merges(self) -> UnreadMerges:
        if self._merges is None:
            values = self._index.values
            self._beyond.wait()
            if isinstance(values, LargeIndex):
                self._beyond.settle(values)
            self._index.forget()
            self._merges, self._has_looked = UnreadMerges(self._table, self._beyond), True
            self._maintenance.opened(len(self._table.files()))
            self._maintenance.merged = self._beyond.held if self._merges.is_begun else None
        return self._merges

    def _merges_from_index(self) -> bool:
        """Merge from the index from now on, because this driver commits by itself; False if another writer has committed."""
        merges, self._merges = self._merges, None
        if merges is None or not self._beyond.is_running:
            return True
        sentinel = self._index.sentinel
        try:
            merges.end()
        except StateError:
            self._forget()
            raise
        self._index.forget()  # it was read over the base before the merge
        self._load()
        return self._index.sentinel == sentinel

    def _grow_unread(self, merges: UnreadMerges, snapshot: Snapshot, found: Sentinel) -> None:
        """Keep the state in files from now on, if it is too large for memory; all of its rows are of committed batches."""
        files = self._table.files()
        if not self._beyond.bounds.is_beyond(files):
            return
        self._publisher.forget()
        self._maintenance.close()
        due = Due(Shown(snapshot.txid, found, self._table.version), snapshot)
        self._beyond.grow(snapshot, due, max(file.last for file in files))
        merges.begin()
        self._maintenance.merged = self._beyond.held

    def _keep_up(self, due: Due, is_committed: bool) -> None:
        merges = self._merges
        if merges is None:
            super()._keep_up(due, is_committed)
        elif not merges.is_begun:
            self._publisher.publish(due)
        elif is_committed:
            merges.offer(due)
            self._maintenance.merged = self._beyond.held

    def _finish_publishing(self) -> None:
        merges, due = self._merges, self._recorded
        if merges is None or not merges.is_begun:
            super()._finish_publishing()
            return
        (sentinel,) = self._seen or (None,)
        is_committed = due is not None and sentinel is not None and sentinel.txid <= due.snapshot.txid
        try:
            merges.finish(due if is_committed else None)
        except StateError as error:
            _LOGGER.warning("%s", error)
