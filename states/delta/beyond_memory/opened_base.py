"""The base of a state that is too large for memory: opened with the changes since, or written for the first time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa

from states.delta.beyond_memory.bucketed_base import BucketedBase
from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.data_files import DataFile, in_turn
from states.delta.faults import VersionMoved
from states.delta.fence import newest_sentinel
from states.delta.layout import in_order
from states.delta.old_versions import delete_files
from states.delta.options import DeltaOptions
from states.delta.published_table import TRIMMED, Due, Holds
from states.delta.state_table import ABSENT, StateTable
from states.delta.state_tables import StateTables
from trident.errors import BackendError, ConfigError, StateError

_LOGGER = logging.getLogger(__name__)
_KEY_BYTES = 300  # of a key in the memory of a writer, without long values
_NOT_MERGED = 4  # files of commits may repeat keys so often before they are counted as keys
_BASE_SHARE = 5  # a merge rewrites the whole base, so it waits until a fifth of it has changed


class OpenedBase:
    """What this process knows of the base of a state. Used by the thread of the commits.

    `tables`, `changes`: the state, and the table of its changes.
    `bounds`: when the state is too large for memory.
    `holds`, `version`, `rows`: what the base holds that was opened last, the version of its table, and its number of rows; None
    without one.
    """

    def __init__(self, tables: StateTables, changes: StateTable) -> None:
        self._tables, self._changes = tables, changes
        self._published = tables.at_path()
        self._table = self._published.table
        self.bounds, self._ttl_s = MemoryBounds(tables.options), tables.options.ttl_s
        self.holds: Holds | None = None
        self.version, self.rows = ABSENT, 0

    def merged(self) -> int | None:
        """Return the `_seq` up to which all changes are in the base; None without a base."""
        return None if self.holds is None else self.holds.seq

    def opened(self) -> LargeIndex | None:
        """Return the values of the version of the changes last seen; None if they are not in files yet.

        Raises `StateError`: the base is gone, or is one of an earlier time, and the changes since then are gone.
        """
        holds, trimmed = self._newest(), self._changes.transaction(TRIMMED)
        if (holds is None and trimmed is None) or newest_sentinel(self._changes) is None:  # without one it was emptied
            self.holds = None
            return None
        if trimmed is not None and trimmed > (-1 if holds is None else holds.seq):
            raise StateError(
                f"{self._tables.what}: the table at its path is an older one, or not a table of this state, and later "
                "rows are nowhere else. Restore its newest version from a copy of the whole folder"
            )
        self._note(holds)
        if holds is None:
            return None
        return self._published.index(self._tables.layout, self._scans(holds.seq))

    def look(self) -> None:
        """Look for a base without reading any rows."""
        self._note(self._newest())

    def is_other(self, is_large: bool) -> bool:
        """Whether the base is not the one that was opened last; `is_large` says whether one was."""
        holds = self._newest()
        return is_large if holds is None else not is_large or holds.seq != self.merged()

    def moved(self, base: BucketedBase, holds: Holds, version: int) -> None:
        """Go on with a base that a merge has made."""
        self.holds, self.version, self.rows = holds, version, len(base)

    def grow(self, due: Due, seq: int) -> None:
        """Write the first base: all changes of the version last seen, up to `seq`, as of a committed batch."""
        self._table.create()  # another program may have deleted it
        _LOGGER.info("%s is held in files from now on, because it is too large for memory", self._tables.what)
        index = LargeIndex(self._tables.layout, self._published.base([]), due.snapshot.txid)
        for rows in self._scans():
            index.load(rows)
            if index.nbytes > self.bounds.bytes_of_changes:
                self._written(index, due)
        self._written(index, due)
        try:
            self._published.move(None, index.base, Holds(seq, due.snapshot.txid), due.shown)
        except VersionMoved as moved:
            raise BackendError(f"{self._tables.what}: another writer has committed meanwhile ({moved})") from moved

    def _scans(self, after: int = -1) -> Iterator[pa.Table]:
        """Iterate over the rows of the version of the changes last seen, in the order of `_seq`; some may be up to `after`."""
        for files in in_turn([file for file in self._changes.files() if file.last > after]):
            yield in_order(self._changes.scan(None, None, files))

    def _written(self, index: LargeIndex, due: Due) -> None:
        """Write the changes of an index into files that no log names yet."""
        before, changes = index.base, index.freeze()
        after = before.merge(changes, lambda part: self._tables.rows.in_base(part, due.snapshot))
        index.merged(after, due.snapshot.txid)
        delete_files(self._table.filesystem(), [file.path for file in {*before.files} - {*after.files}])

    def _newest(self) -> Holds | None:
        self._table.refresh()
        return self._published.holds()

    def _note(self, holds: Holds | None) -> None:
        if holds is not None and self._ttl_s is not None:
            raise ConfigError(
                f"ttl_s={self._ttl_s} of {self._tables.what}: the state has outgrown memory and is held in files, whose rows "
                "do not say when they were written. Leave ttl_s out, or move the state to a new path with trident state move"
            )
        self.holds, self.version = holds, self._table.version
        self.rows = sum(file.rows for file in self._table.files())


class MemoryBounds:
    """When a state is too large for the memory of its writer, and when changes are enough to be merged into its files."""

    def __init__(self, options: DeltaOptions) -> None:
        self._keys, self._bytes = options.max_keys_in_memory, options.max_mb_in_memory << 20
        self._grows = options.ttl_s is None  # the rows of a base do not say when they were written

    @property
    def bytes_of_changes(self) -> int:
        """How many bytes the changes since the base may take before they are merged."""
        return self._bytes // 4

    def is_beyond(self, files: Sequence[DataFile]) -> bool:
        """Whether the rows of a version are too many for memory, as far as its files show."""
        most, together = max((file.rows for file in files), default=0), sum(file.rows for file in files)
        return self.is_too_large(max(most, together // _NOT_MERGED), sum(file.size for file in files))

    def is_too_large(self, keys: int, size: int) -> bool:
        """Whether so many keys, and bytes of them on the disk, are too many for memory."""
        return self._grows and (keys > self._keys or keys * _KEY_BYTES + size > self._bytes)

    def are_enough(self, changes: int, size: int, base: int) -> bool:
        """Whether so many changes, and bytes of them, are worth a merge into a base of so many rows."""
        return changes >= max(self._keys // 4, base // _BASE_SHARE) or size > self.bytes_of_changes
