"""Python values as Arrow columns, without loss: the one way in for what user code, spouts and tests give (R19).

`pa.array(values, type)` cuts 2.75 to 2, takes 5 as a time and loses members of structs. Here a value either comes back equal
and of its declared type, or is refused. Columns of the usual classes are converted by Arrow at once, others value by value.
"""

import datetime as dt
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.naming import shown
from trident.state.encoding.extensions import type_name
from trident.types import NO_VALUE, TYPES, FieldType, decimal_type, number_of

# What Arrow raises for a value that a type cannot hold.
UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
_NONE = type(None)


class Misfit(ValueError):
    """A value that is not of its declared type."""

    def __init__(self, at: int, value: object, reason: str, path: str = "") -> None:
        super().__init__(at, value, reason, path)
        self.at, self.value, self.reason, self.path = at, value, reason, path  # `path`: where in the value, `[3].b`
        self.field, self.declared = "", ""  # as the user wrote it

    @property
    def shown(self) -> str:
        return shown(self.value) + (f" at {self.field}{self.path}" if self.path else "")

    def __str__(self) -> str:
        return f"field {self.field!r} is declared {self.declared}, but got {self.shown} ({self.reason})"


def strict_column(field: str, declared: str | None, type_: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """Return the values of a field as a column; raises `Misfit`, which names the field, for the first that does not fit."""
    try:
        return strict_array(values, type_)
    except Misfit as misfit:
        misfit.field, misfit.declared = field, declared or str(type_)
        raise


def strict_array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return values as an array of a type; raises `Misfit` for the first that does not fit."""
    nested = _NESTED.get(type_.id)
    if nested is not None:
        return nested(values, type_)
    leaf = _LEAVES.get(type_.id)
    if leaf is None:  # no type that a column can have
        return pa.array(values, type=type_)
    if leaf.classes.issuperset(map(type, values)):
        with suppress(*UNFIT):  # then looked at one by one, because a number beyond 2**53 may still be a double
            array = pa.array(values, type=type_)
            if leaf.is_right is None or leaf.is_right(array, values):
                return array
    plain = _each_as(values, leaf.of, type_)
    try:
        return pa.array(plain, type=type_)
    except UNFIT:
        _each_as(values, lambda value, type_: pa.array([leaf.of(value, type_)], type=type_), type_)  # says which one
        raise


def _each_as(values: Sequence[Any], form: Callable[[Any, Any], Any], type_: pa.DataType) -> list[Any]:
    formed = []
    for at, value in enumerate(values):
        try:
            formed.append(None if value is None else form(value, type_))
        except (ArithmeticError, *UNFIT) as error:
            raise Misfit(at, value, str(error) or f"it is of type {type_name(value)}") from None
    return formed


def _double(value: Any, type_: Any) -> float:
    number = number_of(value)
    nearest = float(number)  # OverflowError is an ArithmeticError
    if not isinstance(number, float) and nearest != number and number == number:
        raise ValueError(f"the nearest value of that type is {nearest!r}; round it, or declare the field as a decimal")
    return nearest


def _float(value: Any, type_: Any) -> float:
    wide = _double(value, type_)
    with np.errstate(all="ignore"):
        nearest = float(np.float32(wide))
    is_lost = (wide and not nearest) or math.isinf(nearest) != math.isinf(wide)
    if is_lost or (nearest != wide and not isinstance(value, float | np.floating)):
        raise ValueError(f"the nearest value of that type is {nearest!r}; declare the field as a double")
    return nearest


def _key_form(declared: FieldType, value: Any, type_: Any) -> Any:
    made = declared.form(value)
    if made is NO_VALUE:
        raise ValueError(f"no {declared.name} is exactly this number; {_way_out(declared, number_of(value))}")
    return made


def _way_out(declared: FieldType, number: Any) -> str:
    """Say what is to be done with a number that no value of a type equals."""
    if not isinstance(number, int) and not math.isfinite(number):
        return "declare the field as a double"
    if abs(number) >= 10**38:
        return "declare another type"
    if number != int(number):
        return "round it, or declare another type"
    if declared.python is not Decimal and -(2**63) <= number < 2**63:
        return "declare the field as a bigint"
    return f"declare the field as a decimal with {len(str(abs(int(number))))} digits before its point"


def _decimal(value: Any, type_: Any) -> Any:
    exact = Decimal(number_of(value))  # of a float all digits, not the few that are shown
    return _key_form(decimal_type(type_.precision, type_.scale), exact, type_)


def _moment(value: Any, type_: Any) -> Any:
    if not isinstance(value, dt.datetime):
        way = "datetime.fromtimestamp(seconds, timezone.utc) makes a time of a number"
        raise TypeError(f"it is of type {type_name(value)}; {way}")
    return _key_form(TYPES["timestamp_ntz" if type_.tz is None else "timestamp"], value, type_)


def is_kept_by_float(array: pa.Array, values: Any) -> bool:
    """Whether no value of a float array, made of these, has become infinite or 0."""
    if pc.all(pc.and_(pc.is_finite(array), pc.not_equal(array, 0))).as_py() is not False:
        return True
    wide = pa.array(values, pa.float64())
    return all(one(array).equals(one(wide)) for one in (pc.is_finite, lambda each: pc.equal(each, 0)))


def _is_moment(array: pa.Array, values: Sequence[Any]) -> bool:
    if array.type.tz is None:
        return all(value is None or value.tzinfo is None for value in values)
    offsets = {value.utcoffset() for value in values if value is not None and value.tzinfo is not dt.UTC}
    # Arrow cuts the part of a second off an offset, and shifts the time by it
    return not any(offset and offset.microseconds for offset in offsets) and beyond_python(array) is None


_DAYS = (-719_162, 2_932_896)
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def impossible_in(array: pa.Array | pa.ChunkedArray) -> tuple[str, pa.Array]:
    """Return what some values of a column are that no value may be, empty for nothing, and which they are, as booleans."""
    beyond = beyond_python(array)
    if beyond is not None:
        return "times are from year 1 to 9999, as in Python and Spark", beyond
    array = _in_one(array)
    if not _has_key_twice(array):
        return "", pa.array([], pa.bool_())
    which = pa.array([_has_key_twice(array.slice(at, 1)) for at in range(len(array))], pa.bool_())
    return "a map has a key twice, so its value is not known; leave one of them out where it is written", which


def _in_one(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(array, pa.ChunkedArray):
        return array
    return pa.chunked_array([chunk for chunk in array.chunks if len(chunk)], array.type).combine_chunks()


def beyond_python(array: pa.Array | pa.ChunkedArray) -> pa.Array | None:
    """Return which values hold a time that Python has none for, as booleans; None if none does."""
    array = _in_one(array)
    if not _has_beyond(array):
        return None
    if pa.types.is_nested(array.type):
        return pa.array([_has_beyond(array.slice(at, 1)) for at in range(len(array))], pa.bool_())
    numbers, first, last = _numbers(array)
    return pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater(numbers, last)), False)


def _has_key_twice(array: Any) -> bool:
    if not pa.types.is_nested(array.type):
        return False
    if not pa.types.is_map(array.type):
        return any(map(_has_key_twice, array.flatten() if pa.types.is_struct(array.type) else [array.flatten()]))
    pairs = _pairs_of(array.drop_null() if array.null_count else array)
    rows, (keys, items) = pc.list_parent_indices(pairs), pairs.flatten().flatten()
    names = keys
    if pa.types.is_nested(keys.type):
        names = pa.array(map(repr, keys.to_pylist()))
    elif pa.types.is_floating(keys.type):
        names = pc.add(keys, pa.scalar(0.0, keys.type))  # -0.0 is 0.0
    names = names.dictionary_encode()
    numbers = pc.add(pc.multiply(rows.cast(pa.int64()), len(names.dictionary)), names.indices)
    if pc.count_distinct(numbers).as_py() < len(keys):
        return True
    return _has_key_twice(keys) or _has_key_twice(items)


def _pairs_of(maps: pa.MapArray) -> pa.ListArray:
    return pa.ListArray.from_arrays(maps.offsets, pa.StructArray.from_arrays([maps.keys, maps.items], ["k", "v"]))


def _has_beyond(array: Any) -> bool:
    type_ = array.type
    if pa.types.is_struct(type_):
        return any(map(_has_beyond, array.flatten()))
    if pa.types.is_nested(type_):
        return _has_beyond((_pairs_of(array) if pa.types.is_map(type_) else array).flatten())
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


def _list(value: Any, type_: Any) -> Sequence[Any]:
    is_text = isinstance(value, str | bytes | bytearray | memoryview | Mapping)
    is_array = hasattr(value, "tolist") and getattr(value, "ndim", 1) > 0  # NumPy's, pandas', Arrow's
    if is_text or not (is_array or isinstance(value, Sequence)):
        said = "; it has no order, sort it" if isinstance(value, set | frozenset) else ""
        raise TypeError(f"it is of type {type_name(value)}, not a list{said}")
    if not is_array or getattr(getattr(value, "dtype", None), "kind", "") in "mM":  # `tolist` makes numbers of times
        return list(value)
    listed: list[Any] = value.tolist()
    return listed


def _dict(value: Any, type_: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping | list | tuple):
        raise TypeError
    made = dict(value)
    if len(made) < len(value):
        raise ValueError("it has a key twice")
    return made


def _pairs(value: Any, type_: Any) -> list[tuple[Any, Any]]:
    """Return the same as pairs: Python has no dictionary of lists or dictionaries."""
    if not isinstance(value, Mapping | list | tuple):
        raise TypeError
    return [(key, item) for key, item in (value.items() if isinstance(value, Mapping) else value)]


def _members(value: Any, type_: Any) -> dict[str, Any]:
    wanted = [field.name for field in type_]
    names = getattr(value, "__fields__", None) or getattr(value, "_fields", None) or getattr(value, "fields", wanted)
    if not isinstance(value, Mapping | Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
        raise TypeError
    if not isinstance(value, Mapping) and len(value) != len(names):
        raise ValueError(f"it has {len(value)} values for the members {wanted}")
    made = dict(value if isinstance(value, Mapping) else zip(names, value, strict=True))
    missing, unknown = [name for name in wanted if name not in made], [name for name in made if name not in wanted]
    if missing:
        raise ValueError(f"the members {missing} are missing; give None for what is not there")
    if unknown:
        raise ValueError(f"the members {unknown} are not declared; declare them, or leave them out")
    return made


def _rows(values: Sequence[Any], type_: Any, usual: set[type], form: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the rows in a usual class, and those of them that are not None: the same object if all are there."""
    classes = set(map(type, values))
    rows = values if {*usual, _NONE}.issuperset(classes) else _each_as(values, form, type_)
    return rows, [row for row in rows if row is not None] if _NONE in classes else rows


def _lists(values: Sequence[Any], type_: Any) -> pa.Array:
    rows, there = _rows(values, type_, {list, tuple}, _list)
    leaf = _LEAVES.get(type_.value_type.id)
    if leaf and not leaf.is_right and leaf.classes.issuperset(map(type, chain.from_iterable(there))):
        with suppress(*UNFIT):
            return pa.array(rows, type=type_)
    ends, offsets = _places(rows, there)
    inner = _inner(list(chain.from_iterable(there)), type_.value_type, ends, lambda _, at: f"[{at}]")
    return pa.ListArray.from_arrays(offsets, inner)


def _maps(values: Sequence[Any], type_: Any) -> pa.Array:
    as_pairs = pa.types.is_nested(type_.key_type)
    rows, there = _rows(values, type_, set() if as_pairs else {dict}, _pairs if as_pairs else _dict)
    ends, offsets = _places(rows, there)
    names, items = (
        list(chain.from_iterable(there)),
        list(chain.from_iterable(() if as_pairs else map(dict.values, there))),
    )
    if as_pairs:
        names, items = [key for key, _ in names], [item for _, item in names]
    keys = _inner(names, type_.key_type, ends, ".keys()")
    if keys.null_count:  # for which Arrow ends the process
        row = bisect_right(ends, keys.is_null().index(True).as_py()) - 1
        raise Misfit(row, values[row], "a map has no key None")
    inner = _inner(items, type_.item_type, ends, lambda at, _: f"[{shown(names[at])}]")
    made = pa.MapArray.from_arrays(offsets, keys, inner)
    if not (pa.types.is_string(keys.type) or pa.types.is_integer(keys.type)) and _has_key_twice(made):
        row = next(at for at in range(len(made)) if _has_key_twice(made.slice(at, 1)))
        raise Misfit(row, values[row], "two of its keys are the same key as values of their type")
    return made


def _structs(values: Sequence[Any], type_: Any) -> pa.Array:
    rows, there = _rows(values, type_, {dict}, _members)
    names, mask = [field.name for field in type_], None
    if there is not rows:
        mask, nothing = pa.array([row is None for row in rows], pa.bool_()), dict.fromkeys(names)
        rows = [nothing if row is None else row for row in rows]
    try:
        if not {len(names)}.issuperset(map(len, rows)):
            raise KeyError
        columns = [list(map(itemgetter(name), rows)) for name in names]
    except KeyError:
        _each_as(values, _members, type_)  # says which one, and of which members
        raise
    each_row = range(len(rows) + 1)
    inner = [
        _inner(column, field.type, each_row, f".{field.name}") for column, field in zip(columns, type_, strict=True)
    ]
    return pa.StructArray.from_arrays(inner, fields=list(type_), mask=mask)


def _places(rows: Sequence[Any], there: Sequence[Any]) -> tuple[Any, pa.Array]:
    """Return where the values of each row begin, and where the last ones end; as an array, null for a row that is null."""
    sizes = map(len, rows) if there is rows else (0 if row is None else len(row) for row in rows)
    ends = np.concatenate([[0], np.cumsum(np.fromiter(sizes, np.int64, len(rows)))])
    mask = None if there is rows else np.array([*(row is None for row in rows), False])
    return ends, pa.array(ends, pa.int32(), mask=mask)


def _inner(values: list[Any], type_: pa.DataType, ends: Any, path: str | Callable[[int, int], str]) -> pa.Array:
    """Return the values within others as one array; `ends`: where those of each row begin, and where the last ones end."""
    try:
        array = strict_array(values, type_)
    except Misfit as misfit:
        row = bisect_right(ends, misfit.at) - 1
        place = path if isinstance(path, str) else path(misfit.at, misfit.at - ends[row])
        raise Misfit(row, misfit.value, misfit.reason, place + misfit.path) from None
    if isinstance(array, pa.ChunkedArray):
        raise pa.ArrowCapacityError(f"array cannot contain more than {2**31 - 2} bytes, have more")
    return array


class _Leaf(NamedTuple):
    """A type without others inside."""

    classes: set[type]  # those that Arrow converts rightly, or refuses
    of: Callable[[Any, Any], Any]
    is_right: Callable[[pa.Array, Sequence[Any]], bool] | None = None  # what is to be checked besides


_USUAL: dict[type, set[type]] = {
    int: {int, np.int8, np.int16, np.int32, np.int64},
    float: {float, int, np.float32, np.float64},
    Decimal: {Decimal, int},
    bytes: {bytes, bytearray},
}
_OF: dict[type, Callable[[Any, Any], Any]] = {float: _double, Decimal: _decimal, dt.datetime: _moment}
_LEAVES: dict[int, _Leaf] = {
    row.arrow.id: _Leaf({*_USUAL.get(row.python, {row.python}), _NONE}, _OF.get(row.python) or partial(_key_form, row))
    for row in TYPES.values()
}
_LEAVES |= {pa.large_string().id: _LEAVES[pa.string().id], pa.large_binary().id: _LEAVES[pa.binary().id]}  # of a store
_LEAVES[pa.float32().id] = _LEAVES[pa.float32().id]._replace(of=_float, is_right=is_kept_by_float)
_LEAVES[pa.timestamp("us").id] = _LEAVES[pa.timestamp("us").id]._replace(is_right=_is_moment)
_NESTED: dict[int, Callable[[Sequence[Any], Any], pa.Array]] = {
    pa.list_(pa.null()).id: _lists,
    pa.map_(pa.string(), pa.null()).id: _maps,
    pa.struct([]).id: _structs,
}
