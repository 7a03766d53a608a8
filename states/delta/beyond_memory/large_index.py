"""The latest values of a table whose rows are beyond memory: a base of files in buckets, and in memory what changed since.

The rows of the base are the published ones: of each key the value after a committed batch P. To the value rule of an opaque
state the batch after P wrote each row of the base and changed nothing: so every reader and every commit after P finds the
value, and a reader of a time before P gets an error that asks for a newer snapshot. Its attempt is the one that wrote the
value, because the attempt says which declaration it is of; to the rule it is all the same.

A commit puts its rows into memory, in a few sorted tables. A merge has such tables over a base, too, and writes the next one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from states.delta.beyond_memory.bucketed_base import EVERYTHING, BucketedBase
from states.delta.beyond_memory.sorted_rows import Bucket, FoundRows, SortedRows, WantedKeys
from states.delta.layout import SENTINEL_COLUMN, SEQ_COLUMN, DeltaLayout, Puts, RawKey, RawValue
from trident.arrow import python_of
from trident.state.interfaces import StateType
from trident.state.number_columns import absent_numbers
from trident.state.table import KeyColumns, OpaqueTable
from trident.state.values import UNKNOWN_ATTEMPT

_ROWS_AT_ONCE = 1 << 18


class LargeIndex:
    """The raw value of each key, in files and in memory, as `IndexedValues` has them. Used by one thread at a time."""

    def __init__(self, layout: DeltaLayout, base: BucketedBase, shown: int, runs: Iterable[SortedRows] = ()) -> None:
        self.base, self._layout, self._shown = base, layout, shown
        self._runs = list(runs)  # the newest last, each at most half as long as the one before

    @property
    def runs(self) -> tuple[SortedRows, ...]:
        """The changes as they are now, for any thread."""
        return tuple(self._runs)

    @property
    def changes(self) -> int:
        return sum(map(len, self._runs))

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self._runs)

    def get(self, keys: Sequence[RawKey]) -> list[RawValue | None]:
        answers: list[RawValue | None] = [None] * len(keys)
        if keys:
            for rows, places in self._as_changes(self._layout.key_parts(keys)):
                values = zip(*(python_of(rows[name]) for name in self._layout.value_columns), strict=True)
                for place, value in zip(places.tolist(), values, strict=True):
                    answers[place] = value
        return answers

    def find(self, keys: Sequence[RawKey]) -> OpaqueTable | None:
        """Return what is there for keys; None if keys that are given field by field have another number of fields."""
        columns = keys if isinstance(keys, KeyColumns) else KeyColumns(self._layout.key_parts(keys))
        if len(columns.parts) != len(self._layout.key_columns):
            return None
        assert self._layout.form is not None, self._layout
        made = absent_numbers(self._layout.form, len(columns))
        for rows, places in self._as_changes(columns.parts):
            made.put(places, self._layout.numbers_of(rows).columns)
        made.place = (columns.names, None)
        return made

    def lookup(self, keys: pa.Table) -> tuple[FoundRows, FoundRows]:
        """Return the changes of distinct keys, a table of key columns, and for the others rows of the base."""
        wanted, parts = WantedKeys.of(keys), []
        for run in reversed(self._runs):
            rows, gone = run.lookup(wanted)
            wanted = wanted.without(np.concatenate([rows.places, gone]))
            parts.append(rows)
        return FoundRows.all(parts, self._layout.data_schema), self.base.lookup(wanted)

    def key_pages(self) -> Iterator[list[RawKey]]:
        changes, width = self._changes_within(EVERYTHING), len(self._layout.key_columns)
        there = pc.is_valid(changes.rows[self._layout.value_columns[0]])
        yield self._layout.raw_keys(changes.rows.filter(there).columns[:width])
        for page in self.base.rows(changes):
            yield self._layout.raw_keys(page.columns[:width])

    def load(self, changes: pa.Table, after: int = -1) -> None:
        """Take rows of the change table `after` a `_seq`: in the order of `_seq`, a key as often as it comes."""
        for first in range(0, changes.num_rows, _ROWS_AT_ONCE):
            part = changes.slice(first, _ROWS_AT_ONCE)
            # A row that was added by hand may have no `_seq`: it is of the first base.
            is_later = pc.fill_null(pc.greater(part[SEQ_COLUMN], after), after < 0)
            rows = part.filter(pc.and_(pc.is_null(part[SENTINEL_COLUMN]), is_later))
            if not self.add(rows, once=True):
                self.add(self._layout.latest_rows(rows, drop_deleted=False))

    def put(self, puts: Puts) -> None:
        self.add(self._layout.table(puts, 0, None))

    def add(self, changes: pa.Table, once: bool = False) -> bool:
        """Write changes, which delete keys without a value; with `once` only if each key comes once, else False."""
        run = self._sorted(changes.select(self._layout.data_schema.names))
        if once and (run.hashes[1:] == run.hashes[:-1]).any():
            return False
        # A row is copied a few times at most, and a lookup asks few tables.
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = run.after(self._runs.pop())
        self._runs += [run] if len(run) else []
        return True

    def merged(self, finish: Callable[[SortedRows], SortedRows] | None = None, all_files: bool = False) -> BucketedBase:
        """Return the base after all changes; see `BucketedBase.merge`."""
        return self.base.merge(self._changes_within, finish, all_files)

    def _as_changes(self, parts: Sequence[Any]) -> Iterator[FoundRows]:
        """Iterate over the rows of keys: changes, and rows of the base as if the batch after it had written them."""
        changes, stored = self.lookup(self._layout.key_table(parts))
        yield changes
        *_, value, attempts = stored.rows.columns
        count, columns = stored.rows.num_rows, [value]
        if self._layout.kind is StateType.OPAQUE:
            columns = [np.full(count, self._shown + 1), attempts.fill_null(UNKNOWN_ATTEMPT), value, value]
        elif self._layout.kind is StateType.TRANSACTIONAL:
            columns = [np.full(count, self._shown), value]
        yield FoundRows(pa.table(columns, names=list(self._layout.value_columns)), stored.places)

    def _changes_within(self, bucket: Bucket) -> SortedRows:
        if not self._runs:
            return self._sorted(self._layout.data_schema.empty_table())
        return reduce(lambda older, run: run.after(older), [run.within(bucket) for run in self._runs])

    def _sorted(self, rows: pa.Table) -> SortedRows:
        return SortedRows.of(rows, self._layout.key_columns, self._layout.value_columns[0])
