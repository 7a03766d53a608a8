"""The files of a table in buckets: a bucket is a range of hashes, and the rows of its file are in the order of their hash.

Two columns of the Parquet file are no columns of the table: the hash, and the attempt that wrote the value. Readers ask for
columns by their names, so they never see them. The name of a file says which bucket it is; nothing else records it.

A file has the columns that its table had when it was written. A former declaration may have written it, or the next one, which
has been given up since; so its values get the type that is declared when they are read.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from states.delta.beyond_memory.key_hashes import HASH_BITS, Hashes, Places, pairs
from states.delta.data_files import write_parquet
from trident.alignment import rebuild

HASH_COLUMN = "_trident_hash"
ATTEMPT = pa.field("_trident_attempt", pa.int64())
"""The last column of a file: by the attempt one knows which declaration wrote a value. Null, or no column: it is not known."""

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
    size = write_parquet(
        rows, name, system, ROWS_PER_GROUP, dictionary_pagesize_limit=_DICTIONARY_BYTES,
        use_dictionary=[column for column in rows.column_names if column != HASH_COLUMN], write_statistics=[HASH_COLUMN],
    )  # fmt: skip
    return BucketFile(name, size, rows.num_rows, bucket)


class OpenedBucket:
    """A file that is read: the whole of it, or the rows of some hashes; as rows with their hashes and the columns of `schema`.

    Columns are what they are by their places, because their names may have changed; those that the file has not are null.
    """

    def __init__(self, file: BucketFile, system: FileSystem, schema: pa.Schema) -> None:
        self._file = pq.ParquetFile(system.open_input_file(file.path), memory_map=False)
        self._schema = with_hash(schema)

    def __enter__(self) -> OpenedBucket:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close(force=True)

    def rows(self) -> pa.Table:
        """Return all rows."""
        return self._in_columns(self._file.read())

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
        rows = self._in_columns(self._file.read_row_groups([groups[one] for one in hit.tolist()]))
        return rows.take(pa.array(at - moved[group_of])), places

    def _in_columns(self, rows: pa.Table) -> pa.Table:
        if rows.schema.equals(self._schema):
            return rows
        columns = [_column(*one) for one in zip(rows.columns, self._schema.types, strict=False)]
        columns += [pa.chunked_array([pa.nulls(rows.num_rows, type_)]) for type_ in self._schema.types[len(columns) :]]
        return pa.table(columns, schema=self._schema)

    def _groups_of(self, wanted: Hashes) -> list[int]:
        """Return the row groups that may hold a hash."""
        metadata, groups = self._file.metadata, []
        for group in range(metadata.num_row_groups):
            bounds = metadata.row_group(group).column(0).statistics  # the hash is the first column
            first, end = np.searchsorted(wanted, bounds.min), np.searchsorted(wanted, bounds.max, "right")
            groups += [group] if first < end else []
        return groups


def with_hash(schema: pa.Schema) -> pa.Schema:
    """Return the columns of rows that have their hashes."""
    return schema.insert(0, pa.field(HASH_COLUMN, pa.int64()))


def _column(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([rebuild(chunk, wanted, "", _cast) for chunk in column.chunks], wanted)


def _cast(array: pa.Array, wanted: pa.DataType, _: str) -> pa.Array:
    return array.cast(wanted)  # a narrower type holds all values, because only a later declaration had the wider one
