"""Values in the memory of a writer: the latest of each key of a table, and what a commit collects until its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.layout import DeltaLayout, RawKey, RawValue
from trident.state.columns.kept_values import KeptValues
from trident.state.columns.number_columns import NumberColumns
from trident.state.table import KeyColumns, listed
from trident.state.txid import Sentinel
from trident.state.values import OpaqueValue


class IndexedValues:
    """The raw value of each key. A scan is read and reduced when it is first asked for: to rows, or at once to columns."""

    def __init__(self, layout: DeltaLayout, scan: Callable[[], pa.Table] | None = None) -> None:
        self._layout, self._scan = layout, scan
        self._values = KeptValues(layout.takes_columns, layout.form)
        self._has_plain_rows = False  # rows of a scan are plain tuples, which no columns take

    def get(self, keys: Sequence[RawKey]) -> list[RawValue | None]:
        """Return a raw value per key, None for an absent one."""
        return self._reduced().get(keys)

    def __len__(self) -> int:
        return len(self._reduced())

    @property
    def is_read(self) -> bool:
        """Whether the scan was reduced."""
        return self._scan is None

    def key_pages(self) -> Iterator[list[RawKey]]:
        """Iterate over all keys, in a single page."""
        yield self._reduced().keys()

    def put(self, rows: Mapping[RawKey, RawValue]) -> None:
        """Write raw values, and delete the keys whose value marks that."""
        deleted = self._layout.deleted
        gone = [key for key, raw in rows.items() if raw is deleted]
        if gone:
            rows = {key: raw for key, raw in rows.items() if raw is not deleted}
        self._reduced().put(list(rows), list(rows.values()))
        if gone:
            self._reduced().delete(gone)

    def find(self, keys: Sequence[RawKey]) -> NumberColumns | None:
        """Return what is there for keys; None where rows are quicker or values are no numbers."""
        if not isinstance(keys, KeyColumns):
            return self._reduced().find(keys)
        if self._scan is not None and self._values.may_be_columns:
            self._values.columns = self._layout.number_table(self._scan())
            self._drop_scan()
        elif self._has_plain_rows:
            entries = self._values.entries
            entries.update(zip(entries, map(OpaqueValue._make, entries.values()), strict=True))
            self._has_plain_rows = False
        return self._values.find(keys)

    def put_columns(self, new: NumberColumns) -> None:
        """Write what was combined with what `find` gave."""
        assert self._values.columns is not None, "nothing was put since the find"
        self._values.columns.put_found(new)

    def _reduced(self) -> KeptValues:
        if self._scan is not None:
            self._values.entries.update(self._layout.latest(self._scan()))
            self._has_plain_rows = self._layout.takes_columns
            self._drop_scan()
        return self._values

    def _drop_scan(self) -> None:
        self._scan = None
        pa.default_memory_pool().release_unused()  # Arrow's read took as much memory as the index, and is done


class Puts:
    """Puts of one commit; the last one of a key counts."""

    def __init__(self, layout: DeltaLayout, rows: Mapping[RawKey, RawValue] | None = None) -> None:
        self._layout = layout
        self._rows: dict[RawKey, RawValue] = dict(rows or {})
        self._columns: NumberColumns | None = None

    def __bool__(self) -> bool:
        return bool(self._rows) or self._columns is not None

    def put(self, rows: Mapping[RawKey, RawValue]) -> None:
        """Collect values by raw key."""
        self.as_rows().update(rows)

    def as_rows(self) -> dict[RawKey, RawValue]:
        """Collect by raw key from now on; return what was collected."""
        if self._columns is not None:
            self._rows, self._columns = self._of_columns(self._columns), None
        return self._rows

    def put_columns(self, new: NumberColumns) -> None:
        """Collect columns, as the first puts of the commit."""
        assert not self, "columns come first"
        self._columns = new

    def table(self, seq: int, sentinel: Sentinel | None) -> pa.Table:
        """Return them as rows of the change table."""
        if self._columns is None:
            return self._layout.table(list(self._rows), list(self._rows.values()), seq, sentinel)
        return self._layout.table_of(self._columns, seq, sentinel)

    def go_into(self, index: IndexedValues | LargeIndex) -> None:
        """Bring an index up to date, once they are committed."""
        if self._columns is not None:
            index.put_columns(self._columns)
        else:
            index.put(self._rows)

    def _of_columns(self, new: NumberColumns) -> dict[RawKey, Any]:
        names = listed(new.place[0])
        keys = zip(names, strict=True) if len(self._layout.key_columns) == 1 else names
        return dict(zip(keys, new, strict=True))
