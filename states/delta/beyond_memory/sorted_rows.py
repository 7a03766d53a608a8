"""Rows in memory in the order of the hash of their key, and the keys of a lookup in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from states.delta.beyond_memory.key_hashes import (
    HASH_COLUMN,
    Bucket,
    Hashes,
    Places,
    comparable,
    hashes_of,
    pairs,
    same_keys,
)


class FoundRows(NamedTuple):
    """The rows that a lookup found, and for each the number of its key among those asked for; in no order of the keys."""

    rows: pa.Table
    places: Places

    @staticmethod
    def all(parts: Sequence[FoundRows], schema: pa.Schema) -> FoundRows:
        """Return what several lookups found together."""
        tables = [part.rows for part in parts] or [schema.empty_table()]
        return FoundRows(pa.concat_tables(tables), np.concatenate([np.empty(0, np.int64), *(p.places for p in parts)]))


class WantedKeys:
    """Distinct keys that are looked up, in the order of their hashes.

    `hashes`: in order.
    `places`: the number of each key, as the caller counts them.
    """

    def __init__(self, hashes: Hashes, places: Places, forms: Sequence[pa.Array]) -> None:
        self.hashes, self.places, self._forms = hashes, places, forms

    @staticmethod
    def of(keys: pa.Table) -> WantedKeys:
        forms = comparable(keys.columns)
        hashes = hashes_of(forms)
        order = np.argsort(hashes, kind="stable")
        return WantedKeys(hashes[order], order, forms)

    def __len__(self) -> int:
        return len(self.hashes)

    def within(self, bucket: Bucket) -> WantedKeys:
        part = bucket.within(self.hashes)
        return WantedKeys(self.hashes[part], self.places[part], self._forms)

    def without(self, places: Places) -> WantedKeys:
        """Return all but some, given by their numbers."""
        if not len(places):
            return self
        left = ~np.isin(self.places, places)
        return WantedKeys(self.hashes[left], self.places[left], self._forms)

    def found(self, keys: pa.Table, at: Places) -> tuple[npt.NDArray[np.bool_], Places]:
        """Tell which of some rows have the key that their hash has at `at`, and return the numbers of these keys.

        `keys`: the key columns of rows with the same hashes.
        """
        places = self.places[at]
        same = same_keys(comparable(keys.columns), [form.take(pa.array(places)) for form in self._forms])
        return same, places[same]


class SortedRows:
    """Changes of distinct keys, in memory: rows that are put, and keys that are deleted. Never changed itself.

    `rows`: with their hashes, in order; of a deleted key only the key counts.
    `deleted`: which of them are deletions.
    `keys`: the key columns.
    `hashes`, `deleted`: of each row.
    """

    def __init__(self, rows: pa.Table, deleted: npt.NDArray[np.bool_], keys: Sequence[str]) -> None:
        self._rows, self.deleted, self._keys = rows, deleted, keys
        self.hashes = hashes_in(rows)

    @staticmethod
    def of(rows: pa.Table, keys: Sequence[str], deleted: npt.NDArray[np.bool_] | None = None) -> SortedRows:
        """Return rows of distinct keys as they come, without hashes; some may be deletions."""
        hashes = hashes_of(comparable([rows[name] for name in keys]))
        table, order = in_hash_order(rows.add_column(0, HASH_COLUMN, pa.array(hashes)))
        return SortedRows(table, np.zeros(len(order), np.bool_) if deleted is None else deleted[order], keys)

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def rows(self) -> pa.Table:
        """The rows, without their hashes."""
        return rows_only(self._rows)

    def with_rows(self, rows: pa.Table, deleted: npt.NDArray[np.bool_], keys: Sequence[str]) -> SortedRows:
        """Return changes of the same keys, in the same order, with other columns and deletions."""
        return SortedRows(rows.add_column(0, HASH_COLUMN, self._rows[HASH_COLUMN]), deleted, keys)

    @property
    def nbytes(self) -> int:
        """The bytes in memory."""
        return int(self._rows.nbytes + self.deleted.nbytes)

    def lookup(self, wanted: WantedKeys) -> tuple[FoundRows, Places]:
        """Return the rows of keys, and the numbers of the keys that are deleted here."""
        at, places_at = pairs(self.hashes, wanted.hashes)
        rows = self._rows.take(pa.array(at))
        same, places = wanted.found(rows.select(self._keys), places_at)
        gone = self.deleted[at[same]]
        there = pa.array(np.flatnonzero(same)[~gone])
        return FoundRows(rows_only(rows).take(there), places[~gone]), places[gone]

    def within(self, bucket: Bucket) -> SortedRows:
        part = bucket.within(self.hashes)
        return SortedRows(self._rows.slice(part.start, part.stop - part.start), self.deleted[part], self._keys)

    def after(self, older: SortedRows) -> SortedRows:
        """Return these changes on top of older ones."""
        unchanged = older._unchanged(self)
        rows = pa.concat_tables([older._rows.filter(pa.array(unchanged)), self._rows])
        table, order = in_hash_order(rows)
        return SortedRows(table, np.concatenate([older.deleted[unchanged], self.deleted])[order], self._keys)

    def applied_to(self, stored: pa.Table) -> pa.Table:
        """Return stored rows, with their hashes and in order, as these changes leave them."""
        unchanged = self.unchanged(stored)
        return in_hash_order(pa.concat_tables([unchanged, self._rows.filter(pa.array(~self.deleted))]))[0]

    def unchanged(self, stored: pa.Table) -> pa.Table:
        """Return, of some stored rows with their hashes and in order, the rows whose keys do not change here.

        The key columns of both come first; they may have other names.
        """
        keys = stored.column_names[1 : 1 + len(self._keys)]
        older = SortedRows(stored, np.zeros(stored.num_rows, np.bool_), keys)
        return stored.filter(pa.array(older._unchanged(self)))

    def _unchanged(self, newer: SortedRows) -> npt.NDArray[np.bool_]:
        at, of_newer = pairs(self.hashes, newer.hashes)
        left, right = (
            comparable(rows.take(pa.array(places)).columns)
            for rows, places in ((self._rows.select(self._keys), at), (newer._rows.select(newer._keys), of_newer))
        )
        unchanged = np.ones(len(self), np.bool_)
        unchanged[at[same_keys(left, right)]] = False
        return unchanged


def hashes_in(rows: pa.Table) -> Hashes:
    hashes: Hashes = rows[HASH_COLUMN].to_numpy()
    return hashes


def in_hash_order(rows: pa.Table) -> tuple[pa.Table, Places]:
    """Return rows in the order of their hashes, as one chunk, and their numbers before."""
    order = np.argsort(hashes_in(rows), kind="stable")
    return rows.combine_chunks().take(pa.array(order)), order


def rows_only(rows: pa.Table) -> pa.Table:
    """Return rows without their hashes."""
    return rows.drop_columns([HASH_COLUMN])
