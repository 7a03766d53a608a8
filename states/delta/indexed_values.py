"""The latest value of each key of a table, in the memory of its writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from states.delta.layout import DeltaLayout, RawKey, RawValue
from states.delta.number_rows import number_table
from trident.state.columns.kept_values import KeptValues
from trident.state.columns.number_columns import NumberColumns
from trident.state.values import OpaqueValue

__all__ = ["IndexedValues"]


class IndexedValues:
    """The raw value of each key. A scan is read and reduced when it is first asked for: to rows, or at once to columns."""

    def __init__(self, layout: DeltaLayout, scan: Callable[[], pa.Table] | None = None) -> None:
        self._layout, self._scan = layout, scan
        self._values = KeptValues(layout.takes_columns)
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

    def keys(self) -> list[RawKey]:
        """Return all keys."""
        return self._reduced().keys()

    def key_pages(self) -> Iterator[list[RawKey]]:
        """Iterate over all keys, in a single page."""
        yield self.keys()

    def put(self, rows: Mapping[RawKey, RawValue]) -> None:
        """Write raw values."""
        self._reduced().put(list(rows), list(rows.values()))

    def delete(self, keys: Sequence[RawKey]) -> None:
        """Delete keys; absent ones are ignored."""
        if keys:
            self._reduced().delete(keys)

    def find(self, parts: Sequence[Sequence[Any]]) -> NumberColumns | None:
        """Return what is there for keys, given field by field; None where rows are quicker or values are no numbers."""
        if self._scan is not None and self._values.may_be_columns:
            self._values.columns = number_table(self._layout, self._scan())
            self._drop_scan()
        elif self._has_plain_rows:
            entries = self._values.entries
            entries.update(zip(entries, map(OpaqueValue._make, entries.values()), strict=True))
            self._has_plain_rows = False
        return self._values.find(parts)

    def find_keys(self, keys: Sequence[RawKey]) -> NumberColumns | None:
        """Return what is there for keys; None if there are no columns."""
        return self._reduced().find_keys(keys)

    def put_columns(self, found: NumberColumns, new: NumberColumns) -> None:
        """Write what was combined with what `find` gave."""
        self._values.put_found(found, new)

    def _reduced(self) -> KeptValues:
        if self._scan is not None:
            self._values.entries.update(self._layout.latest(self._scan()))
            self._has_plain_rows = self._layout.takes_columns
            self._drop_scan()
        return self._values

    def _drop_scan(self) -> None:
        self._scan = None
        pa.default_memory_pool().release_unused()  # Arrow's read took as much memory as the index, and is done
