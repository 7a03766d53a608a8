"""The base of a state beyond memory as readers in any process see it, behind the changes that they have read first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from states.delta.beyond_memory.base_table import TRIMMED, BaseTable, Holds
from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.layout import SEQ_COLUMN, RawKey, RawValue, in_order
from states.delta.published_table import PublishedTable, Shown
from states.delta.state_table import ABSENT, StateTable
from states.delta.state_tables import StateTables
from trident.errors import StateError
from trident.object_stores import short

_TRIES = 5

R = TypeVar("R")


class BaseReads:
    """Reads the base of one state: the newest, or the one of an earlier time.

    `tables`: the state.
    """

    def __init__(self, tables: StateTables) -> None:
        self._tables, self._layout = tables, tables.layout
        self._table = tables.at_path(read_only=True)

    def get(self, keys: Sequence[RawKey]) -> dict[RawKey, RawValue | None]:
        """Return the raw values of keys that have no change; nothing without a base."""
        if not keys:
            return {}

        def read() -> dict[RawKey, RawValue | None]:
            index = self._index(self._table)
            return {} if index is None else dict(zip(keys, index.get(keys), strict=True))

        return self._again(read)

    def over(self, changes: pa.Table) -> LargeIndex | None:
        """Return everything: the newest base with changes over it, which were read before; None without a base."""
        return self._again(lambda: self._index(self._table, changes))

    def at(self, changes: StateTable, txid: int) -> LargeIndex | None:
        """Return the state of a version of the changes, as of a batch; None if there was no base yet.

        Raises `StateError`: the base of that time is no longer there.
        """
        version = self.version_at(changes, txid)
        return None if version is None else self._index(self._tables.at_path(True, version), in_order(changes.scan()))

    def version_at(self, changes: StateTable, txid: int) -> int | None:
        """Return the version of the base behind a version of the changes, as of a batch; None and errors as `at`."""
        self._table.refresh()
        if self._holds(self._table) is None:
            return None
        version = PublishedTable(self._table).version_of(Shown(txid, None, changes.version))
        old = None if version is None else self._tables.at_path(True, version)
        holds = None if old is None or old.refresh() == ABSENT else self._holds(old)
        trimmed = changes.transaction(TRIMMED)
        if trimmed is not None and trimmed > (-1 if holds is None else holds.seq):
            raise StateError(
                f"read Delta state {self._table.name} as of batch {txid}: the rows that had not changed for long are no longer "
                "retained. A state beyond memory keeps them for published_hours"
            )
        return None if holds is None else version

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _holds(self, table: StateTable) -> Holds | None:
        return BaseTable(table, self._tables.name).holds()

    def _index(self, table: StateTable, changes: pa.Table | None = None) -> LargeIndex | None:
        table.refresh()
        base = BaseTable(table, self._tables.name)
        holds = base.holds()
        if holds is None:
            return None
        index = LargeIndex(self._layout, base.base(), holds.batch)
        if changes is not None:
            index.load(changes.filter(pc.greater(changes[SEQ_COLUMN], holds.seq)))
        return index

    def _again(self, read: Callable[[], R]) -> R:
        """Read; once more with a newer base if the files of this one are gone."""
        for left in range(_TRIES - 1, -1, -1):
            try:
                return read()
            except FileNotFoundError as error:
                if not left:
                    raise StateError(f"cannot read Delta table {self._table.name}: {short(error)}") from error
                self._table.forget()
        raise AssertionError("the last try returns or raises")
