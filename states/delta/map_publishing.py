"""The part of the map over one Delta table that says what people may read, and moves tables of earlier versions."""

from __future__ import annotations

import os

from states.delta.map_reads import DeltaReads
from states.delta.moving import move_over
from states.delta.options import DeltaOptions
from states.delta.published import PublishedRows
from states.delta.published_table import PublishedTable, Shown
from states.delta.publisher import Due, Publisher
from states.delta.table_places import AT_PATH
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel, Snapshot, Txid

__all__ = ["DeltaPublishing"]

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
        table = PublishedTable(os.fspath(path), self._rows.schema, layout.description, options)
        self._publisher = Publisher(self._table, table, self._rows, layout, options, conf.prefix, self._what)

    def recorded(self, snapshot: Snapshot) -> None:
        """Publish the state after a batch that the log holds; called between two commits."""
        sentinel = None if self._seen is None else self._seen[0]
        if self._reader is None and sentinel is not None:
            self._publish(snapshot, sentinel, sentinel)

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
        if self._table.inside != AT_PATH and (is_committed or self._layout.kind is StateType.OPAQUE):
            self._publisher.publish(Due(Shown(snapshot.txid, shown, self._table.version), snapshot))

    def _move_over(self, txid: Txid) -> bool:
        """Move a table of an earlier version; False if another writer has committed meanwhile."""
        if self._table.inside != AT_PATH:
            return True
        self._maintenance.close()
        seen, table = self._index.sentinel, self._publisher.table
        if not move_over(self._table, table, self._layout, self._rows, self._options, txid, seen, self._name):
            return False
        self._table.forget()
        self._load()
        return self._table.inside != AT_PATH and self._index.sentinel == seen
