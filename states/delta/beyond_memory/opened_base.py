"""The base of a state that is too large for memory: opened with the changes since, or written for the first time."""

from __future__ import annotations

import logging

import pyarrow.compute as pc

from states.delta.beyond_memory.base_table import TRIMMED, BaseTable, Holds
from states.delta.beyond_memory.building import built
from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.memory_bounds import MemoryBounds
from states.delta.change_table import ABSENT, ChangeTable, VersionMoved
from states.delta.fence import newest_sentinel
from states.delta.layout import SENTINEL_COLUMN, SEQ_COLUMN, DeltaLayout, in_order
from states.delta.options import DeltaOptions
from states.delta.published import PublishedRows
from states.delta.publisher import Due
from trident.errors import BackendError, StateError
from trident.state.txid import Snapshot

__all__ = ["OpenedBase"]

_LOGGER = logging.getLogger(__name__)


class OpenedBase:
    """What `BeyondMemory` knows of the base that it opened last. See there for the parameters."""

    def __init__(
        self,
        changes: ChangeTable,
        table: BaseTable,
        rows: PublishedRows,
        layout: DeltaLayout,
        options: DeltaOptions,
        name: str,
        what: str,
    ) -> None:
        self._changes, self._table, self._rows, self._layout = changes, table, rows, layout
        self._name, self._what = name, what
        self.bounds = MemoryBounds(options)
        self._held = self._held_before = -1  # the `_seq` up to which the newest base, and the one before, hold changes
        self._version, self._rows_held = ABSENT, 0

    def opened(self) -> LargeIndex | None:
        """Return the values of the version of the changes last seen; None if they are not kept in files yet.

        Raises
        ------
        StateError
            The base is gone, or is one of an earlier time, and the changes since then are gone.
        """
        self._table.refresh()
        holds, trimmed = self._table.holds(), self._changes.transaction(TRIMMED)
        if (holds is None and trimmed is None) or newest_sentinel(self._changes) is None:  # without one it was emptied
            return None
        if trimmed is not None and trimmed > (-1 if holds is None else holds.seq):
            raise StateError(
                f"{self._what}: the table at its path is one of an earlier time, or no table of this state, and later rows are "
                "nowhere else. Restore its newest version from a copy of the whole folder"
            )
        if holds is None:
            return None
        self._note(holds)
        index = LargeIndex(self._layout, self._table.base(), holds.batch)
        for file in self._changes.files():
            if file.last > holds.seq:
                rows = in_order(self._changes.scan(None, None, [file]))
                index.load(rows.filter(pc.greater(rows[SEQ_COLUMN], holds.seq)))
        return index

    def begun(self) -> bool:
        """Look for a base; return whether there is one."""
        self._table.refresh()
        holds = self._table.holds()
        if holds is not None:
            self._note(holds)
        return holds is not None

    def has_other_base(self, is_large: bool) -> bool:
        """Whether the base is not the one that was opened last; `is_large` says whether one was."""
        self._table.refresh()
        holds = self._table.holds()
        return is_large if holds is None else not is_large or holds.seq != self._held

    def grow(self, snapshot: Snapshot, due: Due, seq: int) -> None:
        """Write the first base: all changes of the version last seen, up to `seq`, as of a committed batch."""
        self._table.create()  # another program may have deleted it
        _LOGGER.info("%s is kept in files from now on, because it is too large for memory", self._what)
        empty, count = self._table.base([]), sum(file.rows for file in self._changes.files())
        data = (part.filter(pc.is_null(part[SENTINEL_COLUMN])) for part in self._changes.batches())
        files = built(
            data,
            empty,
            count,
            lambda rows: self._rows.of(self._layout.reduced(rows, drop_deleted=True), snapshot),
            self._layout.key_columns,
        )
        try:
            self._table.begin(files, Holds(seq, snapshot.txid), due.shown, self._name)
        except VersionMoved as moved:
            raise BackendError(f"{self._what}: another writer has committed meanwhile ({moved})") from moved

    @property
    def held(self) -> int:
        """The `_seq` up to which the base holds changes."""
        return self._held

    def _note(self, holds: Holds) -> None:
        self._held = self._held_before = holds.seq
        self._version, self._rows_held = self._table.version, sum(file.rows for file in self._table.files())
