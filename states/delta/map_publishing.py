"""The part of the map over one Delta table that says what people may read."""

from __future__ import annotations

import logging
import os

from states.delta.beyond_memory.base_table import BaseTable
from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.merging import BeyondMemory
from states.delta.map_reads import DeltaReads
from states.delta.options import DeltaOptions
from states.delta.published import PublishedRows
from states.delta.published_table import Shown
from states.delta.publisher import Due, Publisher
from trident.errors import StateError
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel, Snapshot, Txid

__all__ = ["DeltaPublishing"]

_LOGGER = logging.getLogger(__name__)

_NEWEST = Snapshot(1 << 62)
"""Without a log every write counts."""


class DeltaPublishing(DeltaReads):
    """A map whose committed batches are published at its path. See `DeltaBackingMap`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: StateType,
        conf: StateConf | None = None,
        partition: int = 0,
        options: DeltaOptions | None = None,
    ) -> None:
        super().__init__(path, kind, conf, partition, options)
        conf = StateConf() if conf is None else conf
        options, layout = DeltaOptions() if options is None else options, self._layout
        self._options, self._name = options, conf.prefix
        self._rows = PublishedRows(layout, conf)
        table, *others = (BaseTable(os.fspath(path), self._rows.schema, layout.description, options) for _ in range(3))
        names = conf.prefix, self._what
        self._publisher = Publisher(self._table, table, self._rows, layout, options, *names)
        self._beyond = BeyondMemory(self._table, (others[0], others[1]), self._rows, layout, options, *names)
        self._index.beyond = None if conf.read_only else self._beyond
        self._recorded: Due | None = None  # what is committed, as far as this writer knows

    def recorded(self, snapshot: Snapshot) -> None:
        """Publish the state after a batch that the log holds; called between two commits."""
        sentinel = None if self._seen is None else self._seen[0]
        if self._reader is None and sentinel is not None:
            try:
                self._publish(snapshot, sentinel, sentinel)
            except StateError as error:  # the batch is recorded; the next one reads the state again
                _LOGGER.warning("%s", error)

    def _publish_before(self, txid: Txid) -> None:
        """Publish what the commit that begins is based on: the state after the batch before."""
        if txid.expected is not None:
            self._publish(Snapshot(int(txid) - 1, txid.winners), txid.expected, self._index.sentinel)

    def _publish_newest(self, txid: Txid | None = None) -> None:
        """Publish the newest writes of a state without a log."""
        if (txid is None or txid.incarnation is None) and self._index.sentinel is None:
            self._publish(_NEWEST, None, None)

    def _publish(self, snapshot: Snapshot, shown: Sentinel | None, found: Sentinel | None) -> None:
        # Of an opaque state, what a batch wrote that is not recorded can be told apart; of the others it cannot.
        is_committed = found is None or found.txid <= snapshot.txid
        if not (is_committed or self._layout.kind is StateType.OPAQUE):
            return
        self._recorded = Due(Shown(snapshot.txid, shown, self._table.version), snapshot)
        self._keep_up(self._recorded, is_committed)

    def _keep_up(self, due: Due, is_committed: bool) -> None:
        """Publish what is due; what is all committed goes into the base, if there is one."""
        values = self._index.values
        if not isinstance(values, LargeIndex):
            self._publisher.publish(due)
        elif is_committed:
            self._merge(values, due)

    # ---- beyond memory --------------------------------------------------------------------------------------------

    def _merge(self, values: LargeIndex, due: Due) -> None:
        try:
            self._beyond.offer(values, due, self._index.seq)
        except StateError:
            self._forget()
            raise
        self._maintenance.merged = self._beyond.held

    def _grow(self, txid: Txid) -> bool:
        """Keep the state in files from now on, if it is too large for memory; False if another writer has committed meanwhile.

        It happens when a commit begins: then all rows are of committed batches.
        """
        values, sentinel = self._index.values, self._index.sentinel
        if isinstance(values, LargeIndex) or sentinel is None or sentinel.txid >= txid:
            return True
        is_read, index = values.is_read, self._index
        if not (self._beyond.bounds.is_too_large(len(values), index.size) if is_read else index.is_beyond):
            return True
        self._publisher.forget()
        self._maintenance.close()
        snapshot = Snapshot(int(txid) - 1, txid.winners)
        self._beyond.grow(snapshot, Due(Shown(snapshot.txid, sentinel, self._table.version), snapshot), self._index.seq)
        self._index.forget()
        self._load()
        return self._index.sentinel == sentinel

    def _finish_publishing(self) -> None:
        """Publish what is committed, and return."""
        values, due = self._index.values, self._recorded
        self._publisher.finish()
        self._beyond.wait()
        if not isinstance(values, LargeIndex):
            return
        try:
            self._beyond.settle(values)
            sentinel = self._index.sentinel
            if (
                due is not None
                and sentinel is not None
                and sentinel.txid <= due.snapshot.txid
                and values.values.changes
            ):
                self._beyond.start(values, due, self._index.seq)
                self._beyond.wait()
                self._beyond.settle(values)
        except StateError as error:
            _LOGGER.warning("%s", error)
            self._forget()
