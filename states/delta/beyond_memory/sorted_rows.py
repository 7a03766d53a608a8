"""Hashes of keys given as Arrow columns, and rows in memory in their order: changes, and the keys of a lookup.

A hash decides in which bucket a row is, so it may never change. Two keys that are equal by
`trident.state.encoding.equal_keys` have equal hashes; keys of different types are never compared, because a column has one
type.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from states.delta.layout import HASH_COLUMN, hashable
from trident.arrow import one_array, python_of
from trident.state.encoding.codec import encode
from trident.state.encoding.equal_keys import canonical_key

Hashes = npt.NDArray[np.int64]  # int64, shape (n,), never negative
Places = npt.NDArray[np.int64]  # int64, shape (n,): numbers of rows
HASH_BITS = 63

_LONG = 64
"""Texts of more bytes are hashed one by one: words of all texts at once would take a round for each eight bytes."""

_NULL, _SEED = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x2545F4914F6CDD1D)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_WORD = 8


class Bucket(NamedTuple):
    """The hashes whose first `depth` bits are `prefix`."""

    depth: int
    prefix: int

    @property
    def first(self) -> int:
        return self.prefix << (HASH_BITS - self.depth)

    @property
    def end(self) -> int:
        return (self.prefix + 1) << (HASH_BITS - self.depth)

    def halves(self) -> tuple[Bucket, Bucket]:
        return Bucket(self.depth + 1, 2 * self.prefix), Bucket(self.depth + 1, 2 * self.prefix + 1)

    def within(self, hashes: Hashes) -> slice:
        """Return which of some hashes, in their order, are in it."""
        first = int(np.searchsorted(hashes, self.first))
        # The end of the last bucket is no int64 any more.
        return slice(first, len(hashes) if self.end >> HASH_BITS else int(np.searchsorted(hashes, self.end)))


def comparable(columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[pa.Array]:
    """Return columns of keys in the form that is hashed and compared: 64-bit numbers, or bytes."""
    return [_comparable(column if isinstance(column, pa.Array) else one_array(column)) for column in columns]


def hashes_of(forms: Sequence[pa.Array]) -> Hashes:
    mixed = np.full(len(forms[0]), _SEED, np.uint64)
    for form in forms:
        words = _words_of_bytes(form) if pa.types.is_large_binary(form.type) else form.fill_null(0).to_numpy()
        words = np.where(nulls(form), _NULL, words) if form.null_count else words
        mixed = _mix(mixed ^ words)
    return (mixed >> np.uint64(64 - HASH_BITS)).view(np.int64)


def same_keys(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    """Tell for each pair of keys, given in their comparable form, whether they are equal."""
    return reduce(np.logical_and, (_same(*pair) for pair in zip(left, right, strict=True)))


def pairs(stored: Hashes, wanted: Hashes) -> tuple[Places, Places]:
    """Return all pairs of places of equal hashes in two arrays that are in order; the places in `wanted` rise."""
    first = np.searchsorted(stored, wanted)
    counts = np.searchsorted(stored, wanted, "right") - first
    places = np.repeat(np.arange(len(wanted)), counts)
    starts = np.cumsum(counts) - counts
    return np.repeat(first - starts, counts) + np.arange(len(places)), places


def _comparable(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_floating(kind):
        numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0  # -0.0 + 0.0 is 0.0
        numbers = np.where(numbers == numbers, numbers, np.nan)
        return pa.array(numbers.view(np.uint64), mask=nulls(column) if column.null_count else None)
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
        if pa.types.is_temporal(kind):
            column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        return column.cast(pa.int64()).view(pa.uint64())
    if pa.types.is_decimal(kind):  # their column has one scale, so equal decimals have one text
        return column.cast(pa.string()).cast(pa.large_binary())
    if pa.types.is_nested(kind):
        coded = [None if part is None else encode(canonical_key((hashable(part),))) for part in python_of(column)]
        return pa.array(coded, pa.large_binary())
    return column.cast(pa.large_binary())


def _words_of_bytes(form: pa.Array) -> npt.NDArray[np.uint64]:
    """Return one word for each text, made of all its bytes and its length."""
    offsets = np.frombuffer(form.buffers()[1], np.int64, len(form) + 1, form.offset * 8)
    lengths = offsets[1:] - offsets[:-1]
    data = b"" if form.buffers()[2] is None else form.buffers()[2].to_pybytes()[offsets[0] : offsets[-1]]
    starts = offsets[:-1] - offsets[0]
    padded = np.frombuffer(data + bytes(_WORD), np.uint8)
    words = np.ndarray(len(data) + 1, "<u8", padded, strides=(1,))  # the eight bytes from each byte on
    mixed = lengths.astype(np.uint64)
    long = np.flatnonzero(lengths > _LONG)
    for at in long.tolist():
        text = data[starts[at] : starts[at] + lengths[at]]
        mixed[at] = int.from_bytes(blake2b(text, digest_size=_WORD).digest(), "little")
    for first in range(0, min(int(lengths.max(initial=0)), _LONG), _WORD):
        rows = np.flatnonzero((lengths > first) & (lengths <= _LONG))
        unused = np.maximum(first + _WORD - lengths[rows], 0).astype(np.uint64) * np.uint64(8)
        taken = words[starts[rows] + first] << unused  # bytes of the next text are shifted out
        mixed[rows] = _mix(mixed[rows] ^ taken)
    return mixed


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return words whose every bit depends on every bit (the end of SplitMix64)."""
    words = words + _NULL
    words = (words ^ (words >> _SHIFTS[0])) * _FACTORS[0]
    words = (words ^ (words >> _SHIFTS[1])) * _FACTORS[1]
    return words ^ (words >> _SHIFTS[2])


def _same(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    same: npt.NDArray[np.bool_] = pc.fill_null(pc.equal(left, right), False).to_numpy(zero_copy_only=False)
    return same | (nulls(left) & nulls(right)) if left.null_count and right.null_count else same


def nulls(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return found


class FoundRows(NamedTuple):
    """The rows that a lookup found, and for each the number of its key among those asked for; in no order of the keys."""

    rows: pa.Table
    places: Places

    @staticmethod
    def all(parts: Sequence[FoundRows], schema: pa.Schema) -> FoundRows:
        tables = [part.rows for part in parts] or [schema.empty_table()]
        return FoundRows(pa.concat_tables(tables), np.concatenate([np.empty(0, np.int64), *(p.places for p in parts)]))


class WantedKeys:
    """Distinct keys that are looked up, in the order of their hashes; `places` are their numbers, as the caller counts them."""

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
        if not len(places):
            return self
        left = ~np.isin(self.places, places)
        return WantedKeys(self.hashes[left], self.places[left], self._forms)

    def match(self, keys: pa.Table, at: Places) -> tuple[npt.NDArray[np.bool_], Places]:
        """Tell which rows, by their key columns, have the key at `at` of their hash; return the numbers of these keys."""
        places = self.places[at]
        same = same_keys(comparable(keys.columns), [form.take(pa.array(places)) for form in self._forms])
        return same, places[same]


class SortedRows:
    """Changes of distinct keys, in memory; a key whose column `mark` is null is deleted. Never changed itself."""

    def __init__(self, rows: pa.Table, keys: Sequence[str], mark: str) -> None:
        self._rows, self._keys, self._mark = rows, keys, mark
        self.hashes = hashes_in(rows)

    @staticmethod
    def of(rows: pa.Table, keys: Sequence[str], mark: str) -> SortedRows:
        """Return rows of distinct keys as they come, without hashes."""
        hashes = hashes_of(comparable([rows[name] for name in keys]))
        return SortedRows(in_hash_order(rows.add_column(0, HASH_COLUMN, pa.array(hashes))), keys, mark)

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def rows(self) -> pa.Table:
        return rows_only(self._rows)

    @property
    def nbytes(self) -> int:
        return int(self._rows.nbytes)

    def with_rows(self, rows: pa.Table, keys: Sequence[str], mark: str) -> SortedRows:
        """Return changes of the same keys, in the same order, with other columns."""
        return SortedRows(rows.add_column(0, HASH_COLUMN, self._rows[HASH_COLUMN]), keys, mark)

    def lookup(self, wanted: WantedKeys) -> tuple[FoundRows, Places]:
        """Return the rows of keys, and the numbers of the keys that are deleted here."""
        at, places_at = pairs(self.hashes, wanted.hashes)
        rows = self._rows.take(pa.array(at))
        same, places = wanted.match(rows.select(self._keys), places_at)
        rows = rows_only(rows.filter(pa.array(same)))
        gone = nulls(rows[self._mark])
        return FoundRows(rows.filter(pa.array(~gone)), places[~gone]), places[gone]

    def within(self, bucket: Bucket) -> SortedRows:
        part = bucket.within(self.hashes)
        return SortedRows(self._rows.slice(part.start, part.stop - part.start), self._keys, self._mark)

    def after(self, older: SortedRows) -> SortedRows:
        """Return these changes on top of older ones."""
        rows = pa.concat_tables([self.unchanged_rows(older._rows), self._rows])
        return SortedRows(in_hash_order(rows), self._keys, self._mark)

    def applied_to(self, stored: pa.Table) -> pa.Table:
        """Return stored rows, with their hashes and in order, as these changes leave them."""
        put = self._rows.filter(pc.is_valid(self._rows[self._mark]))
        return in_hash_order(pa.concat_tables([self.unchanged_rows(stored), put]))

    def unchanged_rows(self, stored: pa.Table) -> pa.Table:
        """Return, of stored rows with hashes and in order, those whose keys do not change here; key columns come first."""
        at, of_own = pairs(hashes_in(stored), self.hashes)
        theirs, own = stored.select(range(1, 1 + len(self._keys))), self._rows.select(self._keys)
        left, right = (
            comparable(rows.take(pa.array(places)).columns) for rows, places in ((theirs, at), (own, of_own))
        )
        unchanged = np.ones(stored.num_rows, np.bool_)
        unchanged[at[same_keys(left, right)]] = False
        return stored.filter(pa.array(unchanged))


def hashes_in(rows: pa.Table) -> Hashes:
    hashes: Hashes = rows[HASH_COLUMN].to_numpy()
    return hashes


def in_hash_order(rows: pa.Table) -> pa.Table:
    """Return rows in the order of their hashes, as one chunk."""
    return rows.combine_chunks().take(pa.array(np.argsort(hashes_in(rows), kind="stable")))


def rows_only(rows: pa.Table) -> pa.Table:
    """Return rows without their hashes."""
    return rows.drop_columns([HASH_COLUMN])
