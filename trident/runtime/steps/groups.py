"""Rows of the same key: numbered by Arrow, so that a null, a NaN or a zero of either sign is one key everywhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import one_array
from trident.runtime.steps.key_columns import keys_of, one_form_of
from trident.runtime.steps.partitions import places_in

__all__ = ["Ints", "group_ids", "places_of"]

Ints = npt.NDArray[np.int64]


def group_ids(columns: list[pa.ChunkedArray], rows: int) -> tuple[Ints, Ints]:
    """Number the distinct keys in order of appearance.

    Returns two int64 arrays: the number of each row's key (one per row), and the row where each key appears first (one per
    key). Without columns all rows have one key.
    """
    codes = np.zeros(rows, np.int64)
    for column in columns:
        encoded = pc.dictionary_encode(one_array(one_form_of(column)), null_encoding="encode")
        values = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        # Numbered again after each column, so that the numbers stay below the number of rows.
        codes = _numbered(codes * max(1, len(encoded.dictionary)) + values)
    firsts = np.full(int(codes.max()) + 1 if rows else 0, rows, np.int64)
    np.minimum.at(firsts, codes, np.arange(rows))
    return codes, firsts


def places_of(table: pa.Table, names: tuple[str, ...], partitions: int) -> Ints:
    """Return the partition of each row (int64, one per row), by the hash of the named columns.

    The hash is the same in every process and release.
    """
    ids, firsts = group_ids([table.column(name) for name in names], table.num_rows)
    places = np.array(places_in(keys_of(table.select(list(names)).take(pa.array(firsts)), names), partitions), np.int64)
    return places[ids]


def _numbered(codes: Ints) -> Ints:
    numbers: Ints = pa.array(codes).dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers
