"""The latest values of one version of a table, in the memory of its writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.memory_bounds import MemoryBounds
from states.delta.fence import moved_by_compactions, newest_sentinel
from states.delta.layout import DeltaLayout, RawKey, RawValue, in_order
from states.delta.number_rows import number_table
from states.delta.opened_table import ABSENT, OpenedTable
from trident.state.columns.kept_values import KeptValues
from trident.state.columns.number_columns import NumberColumns
from trident.state.txid import Sentinel
from trident.state.values import OpaqueValue

__all__ = ["Index", "IndexedValues", "LargeState"]


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


class LargeState(Protocol):
    """What keeps a state that is too large for memory."""

    def opened(self) -> LargeIndex | None:
        """Return the values of the version of the table last seen; None if they are not kept in files yet."""

    @property
    def bounds(self) -> MemoryBounds:
        """When a state is too large."""


class StagedCommit(Protocol):
    """The puts of a commit that is staged and not published yet, as far as this process knows."""

    @property
    def seq(self) -> int:
        """The `_seq` of its rows."""

    @property
    def sentinel(self) -> Sentinel:
        """What it lays."""

    def is_published(self, entries: Sequence[Mapping[str, Any]]) -> bool:
        """Whether these entries of the table's history are that commit and compactions, and no other."""

    def go_into(self, index: IndexedValues | LargeIndex) -> None:
        """Bring an index up to date."""


class Index:
    """What a writer holds of one version of its table.

    Attributes
    ----------
    version
        The version; `ABSENT` without a table, None while nothing is held.
    values, sentinel, seq
        The latest values, the sentinel, and the highest `_seq` of this version.
    beyond
        Says whether the state is too large for memory, and opens one that is; None for a state that is never.
    ahead
        What this writer staged last, on top of this version; None if that is no longer open.
    size, is_beyond
        The bytes of the files that were there when the version was loaded, and whether they are too much for memory.
    """

    def __init__(self, table: OpenedTable, layout: DeltaLayout) -> None:
        self._table, self._layout = table, layout
        self.values: IndexedValues | LargeIndex = IndexedValues(layout)
        self.seq = 0
        self.sentinel: Sentinel | None = None
        self.version: int | None = None
        self.beyond: LargeState | None = None
        self.ahead: StagedCommit | None = None
        self.size, self.is_beyond = 0, False

    def load(self) -> bool:
        """Move to the newest version; return whether it had to be read."""
        if self._table.refresh() == self.version or self._is_ahead() or self.moved_by_compactions():
            return False
        self.version = self.ahead = None
        if not self._load_beyond():
            scan = in_order(self._table.scan())
            self.values = IndexedValues(self._layout, lambda: scan)
            self.sentinel, self.seq = self._layout.end(scan)
        self.version = self._table.version
        return True

    def _load_beyond(self) -> bool:
        """Read no rows of the version, or only those that are not in files of a base; False if all may be read."""
        if self.beyond is None:
            return False
        files = self._table.files()
        self.size, self.is_beyond = sum(file.size for file in files), self.beyond.bounds.is_beyond(files)
        large = self.beyond.opened()
        if large is None and not self.is_beyond:
            return False
        self.values = large or IndexedValues(self._layout, lambda: in_order(self._table.scan()))
        self.sentinel, self.seq = newest_sentinel(self._table), max((file.last for file in files), default=0)
        return True

    def moved_by_compactions(self) -> bool:
        """Move to the newest version, if there were only compactions since, which change no content."""
        if self.version in (None, ABSENT):
            return False
        if not moved_by_compactions(self._table, self.version):
            return False
        self.version = self._table.version
        return True

    def _is_ahead(self) -> bool:
        """Move to the newest version, if it shows what this writer staged, and nothing else since."""
        if self.ahead is None or self.version in (None, ABSENT):
            return False
        ahead, self.ahead = self.ahead, None
        if not ahead.is_published(self._table.notes(self._table.version - self.version)):
            return False
        ahead.go_into(self.values)
        self.sentinel, self.seq, self.version = ahead.sentinel, ahead.seq, self._table.version
        return True

    def forget(self) -> None:
        """Hold nothing."""
        self.values, self.sentinel, self.version, self.ahead = IndexedValues(self._layout), None, None, None
