"""The rows of a table in buckets of files: lookups and merges touch one bucket at a time, so their memory is bounded.

A row is in the bucket that its hash is in. There is at most one file to a bucket, none to an empty one, and no bucket within
another; only the name of a file says which it is. A bucket that grows is split in two as it is rewritten.

Two columns of the Parquet file are no columns of the table: the hash, by which rows are ordered, and the attempt that wrote
the value. Readers ask for columns by their names, so they never see them. A former declaration may have written a file, or
the next one, which has been given up since; so its values get the type that is declared when they are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from states.delta.beyond_memory.sorted_rows import (
    Bucket,
    FoundRows,
    Hashes,
    Places,
    SortedRows,
    WantedKeys,
    hashes_in,
    pairs,
    rows_only,
)  # fmt: skip
from states.delta.data_files import write_parquet
from states.delta.faults import reading
from states.delta.layout import ATTEMPT_COLUMN, HASH_COLUMN
from trident.alignment import rebuild
from trident.errors import StateError

ATTEMPT = pa.field(ATTEMPT_COLUMN, pa.int64())
"""The last column of a file: by the attempt one knows which declaration wrote a value. Null, or no column: it is not known."""

ROWS_PER_GROUP = 1 << 14  # a lookup of one key reads so many rows
MOST_ROWS, MOST_BYTES = 1 << 18, 1 << 25  # in memory, of a bucket before it is split
_DICTIONARY_BYTES = 1 << 14  # columns of few different values (batches, attempts) fit; others give up soon
EVERYTHING = Bucket(0, 0)
_NAME = re.compile(r"part-b(\d+)-([\da-f]+)-[\da-f-]+\.parquet")


class BucketFile(NamedTuple):
    """A data file: its name, its bytes and rows, and its bucket."""

    path: str
    size: int
    rows: int
    bucket: Bucket

    @staticmethod
    def of(path: str, size: int, rows: int) -> BucketFile | None:
        """Return the file that a log names; None for a file of another program."""
        name = _NAME.fullmatch(path)
        return None if name is None else BucketFile(path, size, rows, Bucket(int(name[1]), int(name[2], 16)))


def is_bucket(path: str) -> bool:
    """Whether a file is one of a bucket, by its name."""
    return _NAME.fullmatch(path.rpartition("/")[2]) is not None


def write_bucket(rows: pa.Table, bucket: Bucket, system: FileSystem) -> BucketFile:
    """Write rows with their hashes, in order, into a file of its own, which no log names yet."""
    name = f"part-b{bucket.depth}-{bucket.prefix:x}-{uuid4()}.parquet"
    size = write_parquet(
        rows, name, system, ROWS_PER_GROUP, dictionary_pagesize_limit=_DICTIONARY_BYTES,
        use_dictionary=[column for column in rows.column_names if column != HASH_COLUMN], write_statistics=[HASH_COLUMN],
    )  # fmt: skip
    return BucketFile(name, size, rows.num_rows, bucket)


def with_hash(schema: pa.Schema) -> pa.Schema:
    return schema.insert(0, pa.field(HASH_COLUMN, pa.int64()))


class BucketedBase:
    """The rows of one version of a table, on the disk. Never changed itself, and so for any number of threads."""

    def __init__(
        self, files: Sequence[BucketFile], schema: pa.Schema, keys: Sequence[str], system: FileSystem, name: str
    ) -> None:
        self.files = tuple(sorted(files, key=lambda file: file.bucket.first))
        self.schema, self.keys, self._system, self.name = schema, tuple(keys), system, name
        for one, other in zip(self.files, self.files[1:], strict=False):
            if one.bucket.end > other.bucket.first:
                raise StateError(f"the hashes of data file {other.path} overlap with the hashes of {one.path}")

    def __len__(self) -> int:
        return sum(file.rows for file in self.files)

    def lookup(self, wanted: WantedKeys) -> FoundRows:
        return FoundRows.all(list(self._find_rows(wanted)), self.schema)

    def rows(self, changes: SortedRows | None = None) -> Iterator[pa.Table]:
        """Iterate over all rows, or those that some changes do not change, a bucket at a time."""
        for file in self.files:
            rows = self._stored_rows(file)
            part = None if changes is None else changes.within(file.bucket)
            yield rows_only(rows if part is None else part.unchanged_rows(rows))

    def merge(
        self,
        changes: Callable[[Bucket], SortedRows],
        finish: Callable[[SortedRows], SortedRows] | None = None,
        all_files: bool = False,
    ) -> BucketedBase:
        """Return the base after the changes of each bucket, to which `finish` gives its columns.

        The buckets that they touch, or all, are written.

        No log names the new files yet; if they are not used, they are the caller's to delete.
        """
        files = list[BucketFile]()
        for bucket, file in self._cover(EVERYTHING, list(self.files)):
            part = changes(bucket)
            if len(part) or (all_files and file is not None):
                stored = with_hash(self.schema).empty_table() if file is None else self._stored_rows(file)
                files += self._write_files((part if finish is None else finish(part)).applied_to(stored), bucket)
            elif file is not None:
                files.append(file)
        return BucketedBase(files, self.schema, self.keys, self._system, self.name)

    def _write_files(self, rows: pa.Table, bucket: Bucket) -> Iterator[BucketFile]:
        """Write rows of a bucket, with their hashes and in order, into as many files as the limits ask for."""
        if rows.num_rows > 1 and (rows.num_rows > MOST_ROWS or rows.nbytes > MOST_BYTES):
            hashes = hashes_in(rows)
            if hashes[0] != hashes[-1]:
                for half in bucket.halves():
                    part = half.within(hashes)
                    yield from self._write_files(rows.slice(part.start, part.stop - part.start), half)
                return
        if rows.num_rows:
            yield write_bucket(rows, bucket, self._system)

    def _find_rows(self, wanted: WantedKeys) -> Iterator[FoundRows]:
        for file in self.files:
            part = wanted.within(file.bucket)
            if not len(part):
                continue
            with self._opened(file) as stored:
                rows, at = candidates(stored, part.hashes, self.schema)
            same, places = part.match(rows.select(self.keys), at)
            rows = rows_only(rows)
            yield FoundRows(rows if same.all() else rows.filter(pa.array(same)), places)

    def _stored_rows(self, file: BucketFile) -> pa.Table:
        with self._opened(file) as stored:
            return in_columns(stored.read(), self.schema)

    @contextmanager
    def _opened(self, file: BucketFile) -> Iterator[pq.ParquetFile]:
        with reading(self.name, "read"), self._system.open_input_file(file.path) as source:
            yield pq.ParquetFile(source)

    def _cover(self, bucket: Bucket, files: list[BucketFile]) -> Iterator[tuple[Bucket, BucketFile | None]]:
        """Iterate over buckets that have all hashes together, with their files; an empty one has none."""
        if not files or files[0].bucket == bucket:
            yield bucket, files[0] if files else None
            return
        for half in bucket.halves():
            yield from self._cover(half, [file for file in files if half.first <= file.bucket.first < half.end])


def candidates(file: pq.ParquetFile, wanted: Hashes, schema: pa.Schema) -> tuple[pa.Table, Places]:
    """Return the rows with the hashes that are wanted, given in order, and the place of each one's hash in `wanted`."""
    metadata, groups = file.metadata, []
    for group in range(metadata.num_row_groups):  # those that may hold a hash
        bounds = metadata.row_group(group).column(0).statistics  # the hash is the first column
        first, end = np.searchsorted(wanted, bounds.min), np.searchsorted(wanted, bounds.max, "right")
        groups += [group] if first < end else []
    stored = file.read_row_groups(groups, [HASH_COLUMN])[HASH_COLUMN].to_numpy()
    at, places = pairs(stored, wanted)
    # Keys that are new cost their hashes only.
    lengths = np.array([metadata.row_group(group).num_rows for group in groups], np.int64)
    starts = np.cumsum(lengths) - lengths
    group_of = np.searchsorted(starts, at, "right") - 1
    hit = np.unique(group_of)
    moved = np.zeros(len(groups), np.int64)  # by how much rows move if the groups before them are not read
    moved[hit] = starts[hit] - (np.cumsum(lengths[hit]) - lengths[hit])
    rows = in_columns(file.read_row_groups([groups[one] for one in hit.tolist()]), schema)
    return rows.take(pa.array(at - moved[group_of])), places


def in_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return stored rows, with their hashes, in the columns of a schema."""
    own = with_hash(schema)
    if rows.schema.equals(own):
        return rows
    columns = [  # by their places, because their names may have changed
        # A narrower type holds all values, because only a later declaration had the wider one.
        rebuild(column, wanted, "", lambda part, to, _: part.cast(to))
        for column, wanted in zip(rows.columns, own.types, strict=False)
    ]
    columns += [pa.chunked_array([pa.nulls(rows.num_rows, type_)]) for type_ in own.types[len(columns) :]]
    return pa.table(columns, schema=own)
