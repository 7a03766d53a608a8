"""Rows by key beyond memory: a base of files in buckets, and in memory what changed since the base was written.

A commit puts its rows into memory, where a few sorted tables hold them; the table's owner has made them durable elsewhere.
From time to time the owner freezes these changes, merges them into the files of the base with a thread of its own, and
commits the files. Meanwhile commits go on, and lookups see newer changes, then the frozen ones, then the base.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from states.delta.beyond_memory.bucketed_base import BucketedBase
from states.delta.beyond_memory.sorted_rows import FoundRows, SortedRows, WantedKeys


class LargeValues:
    """What is stored per key. Used by one thread at a time; what it returns never changes.

    `base`: the rows on the disk.
    `schema`, `keys`: the columns of changes, and which of them are the key columns; they may have other names in the base.
    `base`: the rows on the disk.
    """

    def __init__(self, base: BucketedBase, schema: pa.Schema, keys: Sequence[str]) -> None:
        self.base, self._schema, self._keys = base, schema, keys
        self._runs: list[SortedRows] = []  # the newest last, each at most half as long as the one before
        self._frozen: SortedRows | None = None

    @property
    def changes(self) -> int:
        """The number of rows in memory."""
        return sum(map(len, self._in_memory()))

    @property
    def nbytes(self) -> int:
        """The bytes in memory."""
        return sum(run.nbytes for run in self._in_memory())

    def lookup(self, keys: pa.Table) -> tuple[FoundRows, FoundRows]:
        """Look up distinct keys, given as a table of key columns.

        Returns
        -------
        tuple[FoundRows, FoundRows]
            The changes, in the columns of changes, and rows of the base, in its columns; a key is in at most one of them.
        """
        wanted, parts = WantedKeys.of(keys), []
        for run in reversed(self._in_memory()):
            rows, gone = run.lookup(wanted)
            wanted = wanted.without(np.concatenate([rows.places, gone]))
            parts.append(rows)
        return FoundRows.all(parts, self._schema), self.base.lookup(wanted)

    def together(self) -> tuple[pa.Table, Iterator[pa.Table]]:
        """Return everything: the changes that are no deletions, and the other rows of the base, a bucket at a time."""
        changes = _together(self._in_memory(), self._schema, self._keys)
        return changes.rows.filter(pa.array(~changes.deleted)), self.base.rows(changes)

    def sorted(self, rows: pa.Table, deleted: npt.NDArray[np.bool_] | None = None) -> SortedRows:
        """Return rows of distinct keys as changes; of a deletion only the key counts."""
        return SortedRows.of(rows, self._keys, deleted)

    def put(self, run: SortedRows) -> None:
        """Write changes."""
        if not len(run):
            return
        # A row is copied a few times at most, and a lookup asks few tables.
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = run.after(self._runs.pop())
        self._runs.append(run)

    def freeze(self) -> SortedRows:
        """Return all changes; those that are put from now on are not among them. `merged` or `thaw` ends it."""
        assert self._frozen is None, "one merge at a time"
        self._frozen, self._runs = _together(self._runs, self._schema, self._keys), []
        return self._frozen

    def merged(self, base: BucketedBase) -> None:
        """Go on with a base that holds the frozen changes."""
        self.base, self._frozen = base, None

    def thaw(self) -> None:
        """Take the frozen changes back, because their merge failed."""
        if self._frozen is not None:
            self._runs, self._frozen = [_together([self._frozen, *self._runs], self._schema, self._keys)], None

    def _in_memory(self) -> list[SortedRows]:
        return self._runs if self._frozen is None else [self._frozen, *self._runs]


def _together(runs: Sequence[SortedRows], schema: pa.Schema, keys: Sequence[str]) -> SortedRows:
    together = SortedRows.of(schema.empty_table(), keys)
    for run in runs:
        together = run.after(together)
    return together
