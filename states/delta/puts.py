"""What a commit collects until its end: values by raw key, or the columns of one `multi_put_columns`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.indexed_values import IndexedValues
from states.delta.layout import DeltaLayout, RawKey, RawValue
from states.delta.number_rows import table_of
from trident.state.columns.number_columns import NumberColumns
from trident.state.txid import Sentinel

__all__ = ["Puts"]


class Puts:
    """Puts of one commit; the last one of a key counts."""

    def __init__(self, layout: DeltaLayout, rows: Mapping[RawKey, RawValue] | None = None) -> None:
        self._layout = layout
        self._rows: dict[RawKey, RawValue] = dict(rows or {})
        self._columns: tuple[NumberColumns, NumberColumns] | None = None

    def __bool__(self) -> bool:
        return bool(self._rows) or self._columns is not None

    def put(self, rows: Mapping[RawKey, RawValue]) -> None:
        """Collect values by raw key."""
        self.as_rows().update(rows)

    def as_rows(self) -> dict[RawKey, RawValue]:
        """Collect by raw key from now on; return what was collected."""
        if self._columns is not None:
            self._rows, self._columns = self._of_columns(*self._columns), None
        return self._rows

    def put_columns(self, found: NumberColumns, new: NumberColumns) -> None:
        """Collect columns, as the first puts of the commit."""
        assert not self, "columns come first"
        self._columns = found, new

    def table(self, seq: int, sentinel: Sentinel | None) -> pa.Table:
        """Return them as rows of the change table."""
        if self._columns is None:
            return self._layout.table(list(self._rows), list(self._rows.values()), seq, sentinel)
        found, new = self._columns
        return table_of(self._layout, found.place[0], new, seq, sentinel)

    def go_into(self, index: IndexedValues | LargeIndex) -> None:
        """Bring an index up to date, once they are committed."""
        if self._columns is not None:
            index.put_columns(*self._columns)
            return
        deleted = self._layout.deleted
        gone = [key for key, raw in self._rows.items() if raw is deleted]
        index.put({key: raw for key, raw in self._rows.items() if raw is not deleted} if gone else self._rows)
        index.delete(gone)

    def _of_columns(self, found: NumberColumns, new: NumberColumns) -> dict[RawKey, Any]:
        names = found.place[0]
        names = names.to_pylist() if isinstance(names, pa.Array) else names
        keys = zip(names, strict=True) if len(self._layout.key_columns) == 1 else names
        return dict(zip(keys, new.values(), strict=True))
