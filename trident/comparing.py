"""Compares values, and tables as multisets of rows: floats up to rounding where allowed, as a sum depends on the order."""

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import python_of
from trident.fields import Fields
from trident.naming import shown
from trident.tuples import TridentTuple

_CLOSE, _CLOSE_FLOATS = 1e-9, 1e-6  # by how much rounding may change a double, or 32 bits: of its value, or in all
_PARTS = (list, tuple, deque)

Row = tuple[Any, ...]
Pair = tuple[Row | None, Row | None]
"""Of two tables, a row that only the first has and one that only the second has; None: there is none."""


def is_close(one: Any, other: Any, close: float = _CLOSE, in_all: float | None = None) -> bool:
    """Whether two values are equal; floats in them may differ by `close` of their value, or by `in_all` (default: `close`)."""
    if isinstance(one, float) and isinstance(other, float):
        is_near = math.isclose(one, other, rel_tol=close, abs_tol=close if in_all is None else in_all)
        return is_near or all(map(math.isnan, (one, other)))
    if isinstance(one, np.ndarray):  # whose == is no bool
        return is_close(one.tolist(), other, close, in_all)
    if isinstance(other, np.ndarray):
        return is_close(one, other.tolist(), close, in_all)
    if isinstance(one, Mapping) or isinstance(other, Mapping):
        return _are_close_maps(_as_map(one), _as_map(other), close, in_all)
    if isinstance(one, _PARTS) and isinstance(other, _PARTS):
        return len(one) == len(other) and all(is_close(*pair, close, in_all) for pair in zip(one, other, strict=True))
    return bool(one == other)


def _as_map(value: Any) -> Mapping[Any, Any] | None:
    """Return a map, which may be given as pairs, with one key that is NaN; None if the value is something else."""
    if not isinstance(value, (Mapping, *_PARTS)):
        return None
    try:
        pairs = value.items() if isinstance(value, Mapping) else value
        made = {math.nan if key != key else key: each for key, each in pairs}
        return made if len(made) == len(pairs) else _by_number(pairs)
    except (ArithmeticError, TypeError, ValueError):
        return None


def _by_number(pairs: Iterable[tuple[Any, Any]]) -> Mapping[Any, Any]:
    """Return pairs of which some have the same key, as several that are NaN in a dict, each with a number beside its key."""
    made, counts = dict[Any, Any](), Counter[Any]()
    for key, each in sorted(pairs, key=lambda pair: _order(pair[1])):
        known = math.nan if key != key else key
        made[known, counts[known]] = each
        counts[known] += 1
    return made


def _are_close_maps(
    one: Mapping[Any, Any] | None, other: Mapping[Any, Any] | None, close: float, in_all: float | None
) -> bool:
    if one is None or other is None or one.keys() != other.keys():
        return False
    return all(is_close(each, other[key], close, in_all) for key, each in one.items())


def first_difference(one: pa.Table, other: pa.Table, rounding: bool = False) -> Pair | None:
    """Return the first row that only `one` has, and the first that only `other` has; None if they have the same rows."""
    schema = (one if one.num_rows else other).schema  # an empty table may have fewer columns
    # Those of floats last, so that rows which differ by rounding are sorted alike.
    columns = sorted(range(len(schema)), key=lambda at: pa.types.is_floating(schema.types[at]))
    close = _closeness(schema.types, rounding)
    if one.num_rows == other.num_rows and (not columns or _are_close(one, other, columns, rounding)):
        return None
    if not columns:
        return () if one.num_rows else None, () if other.num_rows else None
    only: list[Row | None] = [None, None]
    for side, row in _unpaired_rows(deque(_rows(one, columns)), deque(_rows(other, columns)), close):
        only[side] = only[side] or tuple(
            value for _, value in sorted(zip(columns, row, strict=True), key=itemgetter(0))
        )
        if None not in only:
            break
    return None if only == [None, None] else (only[0], only[1])


def _are_close(one: pa.Table, other: pa.Table, columns: Sequence[int], rounding: bool) -> bool:
    """Whether Arrow finds the same rows, without a loop in Python; it does not sort values with parts."""
    if one.equals(other):
        return True
    if one.schema != other.schema or any(pa.types.is_nested(type_) for type_ in one.schema.types):
        return False
    order = [(one.column_names[at], "ascending") for at in columns]
    ours, theirs = (table.take(pc.sort_indices(table, order)) for table in (one, other))
    return all(_same_column(*pair, rounding) for pair in zip(ours.columns, theirs.columns, strict=True))


def _unpaired_rows(ours: deque[Row], theirs: deque[Row], close: float) -> Iterator[tuple[int, Row]]:
    """Give the rows that only one side has, with the number of the side; both are sorted."""
    while ours and theirs:
        if is_close(ours[0], theirs[0], close):
            ours.popleft()
            theirs.popleft()
        else:
            side = int(_order(theirs[0]) < _order(ours[0]))
            yield side, (ours, theirs)[side].popleft()
    yield from ((side, row) for side, rows in enumerate((ours, theirs)) for row in rows)


def row_text(names: Sequence[str], row: Row | None) -> str:
    return "nothing" if row is None else shown(TridentTuple(Fields.named(names), row)) if names else "a row"


def _same_column(one: pa.ChunkedArray, other: pa.ChunkedArray, rounding: bool) -> bool:
    if not pa.types.is_floating(one.type):
        return bool(one.equals(other))
    if not one.is_null().equals(other.is_null()):
        return False
    close = _closeness([one.type], rounding)
    ours, theirs = (pc.fill_null(column, 0.0).to_numpy() for column in (one, other))
    return bool(np.allclose(ours, theirs, rtol=close, atol=close, equal_nan=True))


def _closeness(types: Sequence[pa.DataType], rounding: bool) -> float:
    if not rounding:
        return 0.0
    return _CLOSE_FLOATS if any("float" in str(type_) for type_ in types) else _CLOSE


def _rows(table: pa.Table, columns: Sequence[int]) -> list[Row]:
    if not table.num_rows:
        return []
    return sorted(zip(*(python_of(table.column(at)) for at in columns), strict=True), key=_order)


def _order(value: Any) -> Any:
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (1,)
    if isinstance(value, Mapping):
        return 2, sorted((_order(key), _order(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return 2, [_order(each) for each in value]
    return 3, value
