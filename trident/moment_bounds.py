"""Times that an Arrow column holds and Python has none for: before year 1, after 9999."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_DAYS = (-719_162, 2_932_896)
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def beyond_python(array: pa.Array | pa.ChunkedArray) -> pa.Array | None:
    """Return which values hold a time that Python has none for, as booleans; None if none does."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.chunked_array([chunk for chunk in array.chunks if len(chunk)], array.type).combine_chunks()
    if not _has_beyond(array):
        return None
    if pa.types.is_nested(array.type):
        return pa.array([_has_beyond(array.slice(at, 1)) for at in range(len(array))], pa.bool_())
    numbers, first, last = _numbers(array)
    return pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater(numbers, last)), False)


def _has_beyond(array: Any) -> bool:
    type_ = array.type
    if pa.types.is_struct(type_):
        return any(map(_has_beyond, array.flatten()))
    if pa.types.is_map(type_):
        array = pa.ListArray.from_arrays(
            array.offsets, pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"])
        )
    if pa.types.is_nested(type_):
        return _has_beyond(array.flatten())
    if not (pa.types.is_date32(type_) or (pa.types.is_timestamp(type_) and type_.unit in _PER_DAY)):
        return False  # one in nanoseconds is between 1677 and 2262
    numbers, first, last = _numbers(array)
    bounds = pc.min_max(numbers).as_py()
    return bounds["min"] is not None and not first <= bounds["min"] <= bounds["max"] <= last


def _numbers(array: pa.Array) -> tuple[pa.Array, int, int]:
    """Return the times as numbers, and the first and last that Python has."""
    if pa.types.is_date32(array.type):
        return array.cast(pa.int32()), *_DAYS
    per_day = _PER_DAY[array.type.unit]
    return array.cast(pa.int64()), _DAYS[0] * per_day, (_DAYS[1] + 1) * per_day - 1
