"""The files of a table in buckets: a bucket is a range of hashes, and the rows of its file are in the order of their hash.

The hash is a column of the Parquet file that is no column of the table: readers ask for columns by their names, so they
never see it. The name of a file says which bucket it is; nothing else records it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from states.delta.beyond_memory.key_hashes import HASH_BITS, Hashes, Places, pairs

HASH_COLUMN = "_trident_hash"

ROWS_PER_GROUP = 1 << 14
"""A lookup of one key reads so many rows."""

_DICTIONARY_BYTES = 1 << 14  # columns of few different values (batches, attempts) fit; others give up soon
_NAME = re.compile(r"part-b(\d+)-([\da-f]+)-[\da-f-]+\.parquet")


class Bucket(NamedTuple):
    """The hashes whose first `depth` bits are `prefix`."""

    depth: int
    prefix: int

    @property
    def first(self) -> int:
        """The lowest hash."""
        return self.prefix << (HASH_BITS - self.depth)

    @property
    def end(self) -> int:
        """The hash after the highest."""
        return (self.prefix + 1) << (HASH_BITS - self.depth)

    def halves(self) -> tuple[Bucket, Bucket]:
        """Return the two buckets that it is split into."""
        return Bucket(self.depth + 1, 2 * self.prefix), Bucket(self.depth + 1, 2 * self.prefix + 1)

    def within(self, hashes: Hashes) -> slice:
        """Return which of some hashes, in their order, are in it."""
        first = int(np.searchsorted(hashes, self.first))
        # The end of the last bucket is no int64 any more.
        return slice(first, len(hashes) if self.end >> HASH_BITS else int(np.searchsorted(hashes, self.end)))


class BucketFile(NamedTuple):
    """A data file: its name, its bytes and rows, and its bucket."""

    path: str
    size: int
    rows: int
    bucket: Bucket

    @staticmethod
    def of(path: str, size: int, rows: int) -> BucketFile | None:
        """Return the file that a log names; None for a file of another program."""
        name = _name(path)
        return None if name is None else BucketFile(path, size, rows, Bucket(int(name[1]), int(name[2], 16)))


def is_bucket(path: str) -> bool:
    """Whether a file is one of a bucket, by its name."""
    return _name(path) is not None


def _name(path: str) -> re.Match[str] | None:
    return _NAME.fullmatch(path.rpartition("/")[2])


def write_bucket(rows: pa.Table, bucket: Bucket, system: FileSystem) -> BucketFile:
    """Write rows with their hashes, in order, into a file of its own, which no log names yet."""
    name = f"part-b{bucket.depth}-{bucket.prefix:x}-{uuid4()}.parquet"
    try:
        with system.open_output_stream(name) as sink:
            with pq.ParquetWriter(
                sink,
                rows.schema,
                dictionary_pagesize_limit=_DICTIONARY_BYTES,
                use_dictionary=[column for column in rows.column_names if column != HASH_COLUMN],
                write_statistics=[HASH_COLUMN],
            ) as writer:
                writer.write_table(rows, ROWS_PER_GROUP)
            size = sink.tell()
    except BaseException:
        with suppress(OSError):
            system.delete_file(name)
        raise
    return BucketFile(name, size, rows.num_rows, bucket)


class OpenedBucket:
    """A file that is read: the whole of it, or the rows of some hashes."""

    def __init__(self, file: BucketFile, system: FileSystem) -> None:
        self._file = pq.ParquetFile(system.open_input_file(file.path), memory_map=False)

    def __enter__(self) -> OpenedBucket:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close(force=True)

    def rows(self) -> pa.Table:
        """Return all rows, with their hashes."""
        return self._file.read()

    def candidates(self, wanted: Hashes) -> tuple[pa.Table, Places]:
        """Return the rows with the hashes that are wanted, given in order, and the place of each one's hash in `wanted`."""
        groups = self._groups_of(wanted)
        stored = self._file.read_row_groups(groups, [HASH_COLUMN])[HASH_COLUMN].to_numpy()
        at, places = pairs(stored, wanted)
        # Keys that are new cost their hashes only.
        lengths = np.array([self._file.metadata.row_group(group).num_rows for group in groups], np.int64)
        starts = np.cumsum(lengths) - lengths
        group_of = np.searchsorted(starts, at, "right") - 1
        hit = np.unique(group_of)
        moved = np.zeros(len(groups), np.int64)  # by how much rows move if the groups before them are not read
        moved[hit] = starts[hit] - (np.cumsum(lengths[hit]) - lengths[hit])
        rows = self._file.read_row_groups([groups[one] for one in hit.tolist()])
        return rows.take(pa.array(at - moved[group_of])), places

    def _groups_of(self, wanted: Hashes) -> list[int]:
        """Return the row groups that may hold a hash."""
        metadata, groups = self._file.metadata, []
        for group in range(metadata.num_row_groups):
            bounds = metadata.row_group(group).column(0).statistics  # the hash is the first column
            first, end = np.searchsorted(wanted, bounds.min), np.searchsorted(wanted, bounds.max, "right")
            groups += [group] if first < end else []
        return groups
