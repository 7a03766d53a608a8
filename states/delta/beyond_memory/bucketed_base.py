"""The rows of a table in buckets of files: lookups and merges touch one bucket at a time, so their memory is bounded.

A row is in the bucket that its hash is in. There is at most one file to a bucket, none to an empty one, and no bucket
within another. A bucket that grows is split in two as it is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyarrow.fs import FileSystem

from states.delta.beyond_memory.bucket_files import Bucket, BucketFile, OpenedBucket, with_hash, write_bucket
from states.delta.beyond_memory.sorted_rows import FoundRows, SortedRows, WantedKeys, hashes_in, rows_only
from trident.errors import StateError

_EVERYTHING = Bucket(0, 0)


class BucketLimits(NamedTuple):
    """How many rows, and how many bytes of them in memory, a bucket may have before it is split."""

    rows: int = 1 << 18
    nbytes: int = 1 << 25


class BucketedBase:
    """The rows of one version of a table, on the disk. Never changed itself, and so for any number of threads.

    `files`: all files of the version.
    `schema`, `keys`: the columns of the rows, and which of them make the key of a row.
    `system`: the folder of the files.
    `limits`: when buckets are split.
    Raises `StateError`: a bucket has two files, or is within another.
    """

    def __init__(
        self,
        files: Sequence[BucketFile],
        schema: pa.Schema,
        keys: Sequence[str],
        system: FileSystem,
        limits: BucketLimits | None = None,
    ) -> None:
        self.files = tuple(sorted(files, key=lambda file: file.bucket.first))
        self.schema, self.keys, self._system, self.limits = schema, tuple(keys), system, limits or BucketLimits()
        for one, other in zip(self.files, self.files[1:], strict=False):
            if one.bucket.end > other.bucket.first:
                raise StateError(f"the hashes of data file {other.path} overlap with the hashes of {one.path}")

    def __len__(self) -> int:
        return sum(file.rows for file in self.files)

    def lookup(self, wanted: WantedKeys) -> FoundRows:
        """Return the rows of keys; absent keys have none."""
        return FoundRows.all(list(self._found(wanted)), self.schema)

    def rows(self, changes: SortedRows | None = None) -> Iterator[pa.Table]:
        """Iterate over all rows, or those that some changes do not change, a bucket at a time."""
        for file in self.files:
            with self._opened(file) as opened:
                rows = opened.rows()
            part = None if changes is None else changes.within(file.bucket)
            yield rows_only(rows if part is None else part.unchanged(rows))

    def merge(
        self, changes: SortedRows, finish: Callable[[SortedRows], SortedRows] | None = None, all_files: bool = False
    ) -> BucketedBase:
        """Return the base after changes: the buckets that they touch, or `all_files`, are written, one at a time.

        No log names the new files yet; if they are not used, they are the caller's to delete.

        `finish`: gives some of the changes the columns of the base, if they have others.
        """
        files = list[BucketFile]()
        for bucket, file in self._cover(_EVERYTHING, list(self.files)):
            part = changes.within(bucket)
            if len(part) or (all_files and file is not None):
                files += self._merged(bucket, file, part if finish is None else finish(part))
            elif file is not None:
                files.append(file)
        return BucketedBase(files, self.schema, self.keys, self._system, self.limits)

    def _written(self, rows: pa.Table, bucket: Bucket) -> Iterator[BucketFile]:
        """Write rows of a bucket, with their hashes and in order, into as many files as the limits ask for."""
        if rows.num_rows > 1 and (rows.num_rows > self.limits.rows or rows.nbytes > self.limits.nbytes):
            hashes = hashes_in(rows)
            if hashes[0] != hashes[-1]:
                for half in bucket.halves():
                    part = half.within(hashes)
                    yield from self._written(rows.slice(part.start, part.stop - part.start), half)
                return
        if rows.num_rows:
            yield write_bucket(rows, bucket, self._system)

    def _found(self, wanted: WantedKeys) -> Iterator[FoundRows]:
        for file in self.files:
            part = wanted.within(file.bucket)
            if not len(part):
                continue
            with self._opened(file) as opened:
                rows, at = opened.candidates(part.hashes)
            same, places = part.found(rows.select(self.keys), at)
            rows = rows_only(rows)
            yield FoundRows(rows if same.all() else rows.filter(pa.array(same)), places)

    def _merged(self, bucket: Bucket, file: BucketFile | None, changes: SortedRows) -> Iterator[BucketFile]:
        if file is None:
            stored = with_hash(self.schema).empty_table()
        else:
            with self._opened(file) as opened:
                stored = opened.rows()
        return self._written(changes.applied_to(stored), bucket)

    def _opened(self, file: BucketFile) -> OpenedBucket:
        return OpenedBucket(file, self._system, self.schema)

    def _cover(self, bucket: Bucket, files: list[BucketFile]) -> Iterator[tuple[Bucket, BucketFile | None]]:
        """Iterate over buckets that have all hashes together, with their files; an empty one has none."""
        if not files or files[0].bucket == bucket:
            yield bucket, files[0] if files else None
            return
        for half in bucket.halves():
            yield from self._cover(half, [file for file in files if half.first <= file.bucket.first < half.end])
