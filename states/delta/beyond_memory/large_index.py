"""The latest values of a table whose rows are beyond memory: what `IndexedValues` does, over files in buckets.

The rows of the base are the published ones: of each key the value after a committed batch P. Changes since then are in
memory, in the columns of the change table. To the value rule of an opaque state the batch after P wrote each row of the
base and changed nothing: so every reader and every commit after P finds the value, and a reader of a time
before P gets an error that asks for a newer snapshot. Its attempt is the one that wrote the value, because the attempt says
which declaration it is of; to the rule it is all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from states.delta.beyond_memory.bucketed_base import BucketedBase, Rewrite
from states.delta.beyond_memory.large_values import LargeValues
from states.delta.beyond_memory.sorted_rows import FoundRows, SortedRows
from states.delta.layout import SENTINEL_COLUMN, DeltaLayout, RawKey, RawValue
from trident.arrow import python_of
from trident.state.columns.number_columns import NumberColumns
from trident.state.interfaces import Key, StateType
from trident.state.table import KeyColumns
from trident.state.values import UNKNOWN_ATTEMPT

_ROWS_AT_ONCE = 1 << 18

Publish = Callable[[pa.Table], tuple[pa.Table, npt.NDArray[np.bool_]]]
"""Of changes, in the columns of the change table: the rows of a base, and which of them have no value."""


class Merge(NamedTuple):
    """A merge that has begun: the base, and the changes that go into it."""

    base: BucketedBase
    changes: SortedRows
    publish: Publish

    def rewrites(self, all_files: bool = False) -> Iterator[Rewrite]:
        """Write the buckets that change, or `all_files`, one at a time; in any thread. See `BucketedBase.merge`."""
        return self.base.merge(self.changes, self._published, all_files)

    def _published(self, changes: SortedRows) -> SortedRows:
        rows, without_value = self.publish(changes.rows)
        return changes.with_rows(rows, changes.deleted | without_value, self.base.keys)


class LargeIndex:
    """The raw value of each key, in files and in memory. Used by one thread at a time.

    `layout`: the columns of changes.
    `base`: its rows: the key columns, the value, and the attempt that wrote it.
    `shown`: the batch P that the base shows.
    """

    def __init__(self, layout: DeltaLayout, base: BucketedBase, shown: int) -> None:
        self._layout, self._shown = layout, shown
        self.values = LargeValues(base, layout.data_schema, layout.key_columns)

    def load(self, changes: pa.Table) -> None:
        """Take rows of the change table that are later than the base: in the order of `_seq`, a key as often as it comes."""
        for first in range(0, changes.num_rows, _ROWS_AT_ONCE):
            part = changes.slice(first, _ROWS_AT_ONCE)
            rows = part.filter(part[SENTINEL_COLUMN].is_null())
            if not self._put(rows, once=True):
                self._put(self._layout.reduced(rows, drop_deleted=False))

    # ---- IndexedValues --------------------------------------------------------------------------------------------

    def get(self, keys: Sequence[RawKey]) -> list[RawValue | None]:
        """Return a raw value per key, None for an absent one."""
        answers: list[RawValue | None] = [None] * len(keys)
        if keys:
            changes, stored = self.values.lookup(self._layout.key_table(self._layout.key_parts(keys)))
            columns = [python_of(changes.rows[name]) for name in self._layout.value_columns]
            _fill(answers, changes, zip(*columns, strict=True))
            _fill(answers, stored, self._raw(stored.rows))
        return answers

    def put(self, rows: Mapping[RawKey, RawValue]) -> None:
        """Write raw values, and delete the keys whose value marks that."""
        self._put(self._layout.table(list(rows), list(rows.values()), 0, None))

    def find(self, keys: Sequence[RawKey]) -> NumberColumns | None:
        """Return what is there for keys; None if keys that are given field by field have another number of fields."""
        columns = keys if isinstance(keys, KeyColumns) else KeyColumns(self._layout.key_parts(keys))
        return self._found(columns) if len(columns.parts) == len(self._layout.key_columns) else None

    def put_columns(self, new: NumberColumns) -> None:
        """Write what was combined with what `find` gave."""
        self._put(self._layout.table_of(new, 0, None))

    def key_pages(self) -> Iterator[list[RawKey]]:
        """Iterate over all keys, a bucket at a time."""
        changes, stored = self.values.together()
        yield self._keys_of(changes)
        for page in stored:
            yield self._keys_of(page)

    # ---- merging --------------------------------------------------------------------------------------------------

    def freeze(self, publish: Publish) -> Merge:
        """Begin to merge all changes into the base: between commits, while all of them are of ended attempts.

        `publish`: takes each value as of the last committed batch.
        """
        return Merge(self.values.base, self.values.freeze(), publish)

    def merged(self, base: BucketedBase, shown: int) -> None:
        """Go on with the base that holds the frozen changes, and the batch that it shows."""
        self._shown = shown
        self.values.merged(base)

    def thaw(self) -> None:
        """Take the frozen changes back, because their merge failed."""
        self.values.thaw()

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _put(self, changes: pa.Table, once: bool = False) -> bool:
        """Write changes; with `once` only if each key comes once, else False."""
        rows = changes.select(self._layout.data_schema.names)
        run = self.values.sorted(rows, rows[self._layout.value_columns[0]].is_null().to_numpy())
        if once and (run.hashes[1:] == run.hashes[:-1]).any():
            return False
        self.values.put(run)
        return True

    def _found(self, keys: KeyColumns) -> NumberColumns:
        changes, stored = self.values.lookup(self._layout.key_table(keys.parts))
        new, old = map(self._layout.numbers_of, (changes.rows, self._as_changes(stored.rows)))
        made = NumberColumns.absent(new.form, len(keys))
        for found, columns in ((changes, new), (stored, old)):
            made.numbers[found.places], made.flags[found.places] = columns.numbers, columns.flags
        made.place = (keys.names, None, False)
        return made

    def _as_changes(self, stored: pa.Table) -> pa.Table:
        """Return rows of the base as if the batch that comes next had written them, over themselves."""
        *_, value, attempts = stored.columns
        wrote = [np.full(stored.num_rows, self._shown + 1), attempts.fill_null(UNKNOWN_ATTEMPT)]
        return pa.table([*wrote, value, value], names=list(self._layout.value_columns))

    def _raw(self, stored: pa.Table) -> Iterator[RawValue]:
        shown = self._shown
        *_, values, attempts = map(python_of, stored.columns)
        if self._layout.kind is StateType.OPAQUE:
            known = (UNKNOWN_ATTEMPT if one is None else one for one in attempts)
            return ((shown + 1, attempt, value, value) for attempt, value in zip(known, values, strict=True))
        if self._layout.kind is StateType.TRANSACTIONAL:
            return ((shown, value) for value in values)
        return ((value,) for value in values)

    def _keys_of(self, rows: pa.Table) -> list[Key]:
        return self._layout.raw_keys(rows.columns[: len(self._layout.key_columns)])


def _fill(answers: list[RawValue | None], found: FoundRows, values: Iterator[RawValue]) -> None:
    for place, value in zip(found.places.tolist(), values, strict=True):
        answers[place] = value
