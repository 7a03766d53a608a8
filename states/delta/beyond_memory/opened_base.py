"""The base of a state that is too large for memory: opened with the changes since, or written for the first time.

Writes a first base from more rows than memory holds, in any order: they are parted by their hashes on the local
disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc

from states.delta.beyond_memory.base_table import TRIMMED, BaseTable, Holds
from states.delta.beyond_memory.bucket_files import Bucket, BucketFile
from states.delta.beyond_memory.bucketed_base import BucketedBase
from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.sorted_rows import hashed, hashes_in, rows_only
from states.delta.data_files import DataFile
from states.delta.faults import VersionMoved
from states.delta.fence import newest_sentinel
from states.delta.layout import SENTINEL_COLUMN, SEQ_COLUMN, in_order
from states.delta.options import DeltaOptions
from states.delta.published_table import Due
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
        self._table = tables.at_path()
        self._base = BaseTable(self._table, tables.name)
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
        index = LargeIndex(self._tables.layout, self._base.base(), holds.batch)
        for file in self._changes.files():
            if file.last > holds.seq:
                rows = in_order(self._changes.scan(None, None, [file]))
                index.load(rows.filter(pc.greater(rows[SEQ_COLUMN], holds.seq)))
        return index

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
        layout, rows_of, empty = self._tables.layout, self._tables.rows, self._base.base([])
        files = built(
            (part.filter(pc.is_null(part[SENTINEL_COLUMN])) for part in self._changes.batches()),
            empty,
            sum(file.rows for file in self._changes.files()),
            lambda rows: rows_of.with_value(rows_of.in_base(layout.reduced(rows, drop_deleted=True), due.snapshot)),
            layout.key_columns,
        )
        try:
            self._base.begin(files, Holds(seq, due.snapshot.txid), due.shown)
        except VersionMoved as moved:
            raise BackendError(f"{self._tables.what}: another writer has committed meanwhile ({moved})") from moved

    def _newest(self) -> Holds | None:
        self._table.refresh()
        return self._base.holds()

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


_MOST_DEPTH = 8  # one open file to each part


def built(
    tables: Iterable[pa.Table],
    empty: BucketedBase,
    rows: int,
    finish: Callable[[pa.Table], pa.Table],
    keys: Sequence[str],
) -> Iterator[BucketFile]:
    """Write all rows, a bucket at a time; no log names the files yet.

    `tables`: the rows: the key columns, and any others. A key may come more than once.
    `empty`: a base without files, which says how it keeps rows.
    `rows`: about how many rows there are.
    `finish`: makes rows of the base of all rows of some keys, in the order in which they came; each key once.
    `keys`: the key columns of the rows; they may have other names in the base.
    """
    depth = 0
    while rows >> depth > empty.limits.rows and depth < _MOST_DEPTH:
        depth += 1
    parts = [Bucket(depth, prefix) for prefix in range(1 << depth)]
    with TemporaryDirectory(prefix="trident-delta-") as folder:
        names = [Path(folder) / f"{part.prefix}.arrow" for part in parts]
        _part(tables, parts, names, keys)
        for part, name in zip(parts, names, strict=True):
            if name.exists():
                with pa.OSFile(str(name)) as source, pa.ipc.open_stream(source) as reader:
                    together = reader.read_all()
                name.unlink()
                yield from empty.written(hashed(finish(together), empty.keys)[0], part)


def _part(tables: Iterable[pa.Table], parts: list[Bucket], names: list[Path], keys: Sequence[str]) -> None:
    with ExitStack() as stack:
        writers: dict[Path, pa.ipc.RecordBatchStreamWriter] = {}
        for table in tables:
            ordered = hashed(table, keys)[0]
            hashes = hashes_in(ordered)
            for part, name in zip(parts, names, strict=True):
                inside = part.within(hashes)
                if inside.start == inside.stop:
                    continue
                if name not in writers:
                    sink = stack.enter_context(pa.OSFile(str(name), "wb"))
                    writers[name] = stack.enter_context(pa.ipc.new_stream(sink, table.schema))
                writers[name].write_table(rows_only(ordered.slice(inside.start, inside.stop - inside.start)))
