"""Keys: columns in their one form (R15), rows of the same key, and the partition that a key is in (R11).

Of the declared types only floats have several forms of one value: Arrow tells -0.0 from 0.0 and one NaN from another by their
bits, and in Python no NaN equals another. As Python objects decimals and moments too get the form of keys without a type.

The keys that a stream removes from a state travel with a mark. A key that a batch removes is absent after it: what the batch
adds to it is dropped, so no key is updated and removed by one commit, and the order of the two does not matter.
"""

import datetime as dt
import math
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import one_array
from trident.fields import Fields
from trident.graph import REMOVED
from trident.state.encoding.codec import encode, encode_tuples
from trident.state.encoding.equal_keys import CanonicalKeys, canonical, canonical_key, canonical_keys
from trident.state.interfaces import Key

_MOMENTS = pa.timestamp("us", tz="UTC")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def one_form(table: pa.Table, names: Sequence[str]) -> pa.Table:
    for name in names:
        at = table.schema.get_field_index(name)
        if pa.types.is_floating(table.schema.field(at).type):
            table = table.set_column(at, table.schema.field(at), one_form_of(table.column(at)))
    return table


def one_form_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_floating(column.type):
        return column
    zeros = pc.if_else(pc.equal(column, 0), pa.scalar(0.0, column.type), column)
    return pc.if_else(pc.is_nan(zeros), pa.scalar(math.nan, column.type), zeros)


def keys_of(table: pa.Table, names: Sequence[str]) -> CanonicalKeys:
    if not len(names):
        return CanonicalKeys([()] * table.num_rows)
    return CanonicalKeys(zip(*(_forms(table.column(name)) for name in names), strict=True))


def _forms(column: pa.ChunkedArray) -> list[Any]:
    """Return the values as Python objects, each as `canonical` gives it."""
    type_ = column.type  # each look at it makes an object
    if pa.types.is_timestamp(type_) and type_.tz:
        # Arrow's own objects have a zone that is not `dt.UTC`, and take several times as long.
        since = column.cast(_MOMENTS).cast(pa.int64()).to_pylist()
        return [None if us is None else _EPOCH + dt.timedelta(microseconds=us) for us in since]
    values = column.to_pylist()
    has_forms = pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    return list(map(canonical, values)) if has_forms else values


Ints = npt.NDArray[np.int64]


def group_and_aggregate(keys: Sequence[Any], asked: Sequence[tuple[Any, str]]) -> list[Any]:
    """Group by columns, without any to one row, and aggregate columns; return the keys, then one for each function."""
    # A NaN is greater than any number, where Arrow skips it.
    asked, width = list(asked), len(keys) + len(asked)
    with_nan = [at for at, (column, function) in enumerate(asked) if function in ("min", "max") and has_nan(column)]
    for at in with_nan:
        column, function = asked[at]
        are_nan = pc.is_nan(column)
        asked[at] = pc.if_else(are_nan, pa.scalar(None, column.type), column), function
        asked.append((are_nan.cast(pa.int8()), "max"))
    done = _arrow_groups(keys, asked)
    for at, nans in zip(with_nan, done[width:], strict=True):
        numbers = done[len(keys) + at]
        nan = pc.if_else(pc.equal(nans, 1), pa.scalar(math.nan, numbers.type), pa.scalar(None, numbers.type))
        done[len(keys) + at] = pc.coalesce(numbers, nan) if asked[at][1] == "min" else pc.coalesce(nan, numbers)
    return done[:width]


def _arrow_groups(keys: Sequence[Any], asked: Sequence[tuple[Any, str]]) -> list[Any]:
    """Do it. Arrow makes names, such as `price_sum`, which a field of the user's may have: it is given none of the fields'."""
    if not keys:
        return [pa.chunked_array([_whole(column, function)]) for column, function in asked]
    names, given = [f"k{at}" for at in range(len(keys))], [f"v{at}" for at in range(len(asked))]
    columns = dict(zip(names, keys, strict=True))
    columns |= {name: column for name, (column, how) in zip(given, asked, strict=True) if how != "count_all"}
    wanted: Any = [(name if name in columns else [], how) for name, (_, how) in zip(given, asked, strict=True)]
    done = pa.table(columns).group_by(names, use_threads=False).aggregate(wanted)
    return [done.column(name) for name in (*names, *(f"{name}_{how}" if name else how for name, how in wanted))]


def _whole(column: Any, function: str) -> pa.Array:
    return pa.array([len(column)]) if function == "count_all" else pa.repeat(getattr(pc, function)(column), 1)


def has_nan(column: Any) -> bool:
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def extreme(column: Any, function: str) -> Any:
    """Return the least (`min`) or the greatest (`max`) value of a column, a null if it has none."""
    return group_and_aggregate([], [(column, function)])[0][0]


def group_ids(columns: list[pa.ChunkedArray], rows: int) -> tuple[Ints, Ints]:
    """Number the distinct keys in order of appearance; return the number of each row's, and the row where each is first."""
    codes = np.zeros(rows, np.int64)
    for column in columns:
        encoded = pc.dictionary_encode(one_array(one_form_of(column)), null_encoding="encode")
        values = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        # Numbered again after each column, so that the numbers stay below the number of rows.
        numbered = pa.array(codes * max(1, len(encoded.dictionary)) + values).dictionary_encode()
        codes = numbered.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    firsts = np.full(int(codes.max()) + 1 if rows else 0, rows, np.int64)
    np.minimum.at(firsts, codes, np.arange(rows))
    return codes, firsts


def nulls_apart(keys: pa.Table, ids: Ints, firsts: Ints) -> tuple[Ints, Ints, int]:
    """Give each row with a null in its key a key of its own, as in SQL, behind all others; return how many these are, too."""
    nulls = np.zeros(len(ids), bool)
    for column in keys.columns:
        nulls |= pc.is_null(column).to_numpy()
    if not nulls.any():
        return ids, firsts, len(firsts)
    rows = np.flatnonzero(nulls)
    apart = ids.copy()
    apart[rows] = len(firsts) + np.arange(len(rows))
    left, ids = np.unique(apart, return_inverse=True)  # the keys with a null have no rows now
    return ids, np.concatenate([firsts, rows])[left], len(left) - len(rows)


def places_of(table: pa.Table, names: tuple[str, ...], partitions: int) -> Ints:
    """Return the partition of each row by the hash of the named columns, the same in every process and release."""
    ids, firsts = group_ids([table.column(name) for name in names], table.num_rows)
    places = np.array(places_in(keys_of(table.select(list(names)).take(pa.array(firsts)), names), partitions), np.int64)
    return places[ids]


def partition_of(key: Key, partitions: int) -> int:
    return 0 if partitions == 1 else crc32(encode(canonical_key(key))) % partitions


def partition_of_total(partitions: int) -> int:
    """Return the state partition of the one value of a state without keys, for all who write or read it."""
    return partition_of((), partitions)


def places_in(keys: Sequence[Key], partitions: int) -> list[int]:
    """Return the state partition of each key: as `partition_of`, for many keys in a tenth of the time."""
    return [crc32(data) % partitions for data in encode_tuples(canonical_keys(keys))]


def partitions_of(keys: Sequence[Key], partitions: int) -> dict[int, list[int]]:
    """Return the positions of `keys` by partition, in order of partition; partitions without keys are left out."""
    if partitions == 1:
        return {0: list(range(len(keys)))} if keys else {}
    places: dict[int, list[int]] = {}
    for at, place in enumerate(places_in(keys, partitions)):
        places.setdefault(place, []).append(at)
    return dict(sorted(places.items()))


def removals_of(key: Fields, table: pa.Table) -> pa.Table:
    return pa.table([pa.nulls(table.num_rows, pa.bool_()), *table.columns], names=[REMOVED, *key.names])


def are_removals(table: pa.Table) -> bool:
    return bool(table.column_names[:1] == [REMOVED])


def without_removed(key: Fields, tables: Sequence[pa.Table]) -> tuple[list[pa.Table], list[Key]]:
    """Return the updates of a batch without those of keys that it removes; and these keys, each once, in their one form."""
    updates = [table for table in tables if not are_removals(table)]
    removals = [table for table in tables if are_removals(table) and table.num_rows]
    if not removals:
        return updates, []
    gone = pa.concat_tables(removals).select(list(key.names))
    kept = [_without(table, gone) if table.num_rows else table for table in updates]
    return kept, CanonicalKeys(dict.fromkeys(keys_of(gone, key.names)))


def _without(table: pa.Table, gone: pa.Table) -> pa.Table:
    names = gone.column_names
    both = pa.concat_tables([table.select(names), gone], promote_options="permissive")
    ids, _ = group_ids(both.columns, both.num_rows)
    stays = ~np.isin(ids[: table.num_rows], ids[table.num_rows :])
    return table if stays.all() else table.filter(pa.array(stays))
