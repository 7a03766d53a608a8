"""Aggregation of a batch for a state: partials where the tuples are, and their merge where the state is.

A partial is a table of the grouping columns and one column `output`; the same `combine` merges partials.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float
from functools import cache
from math import inf, isfinite
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import Misfit, one_array, python_of, schema_of, strict_cast
from trident.fields import struct_fields
from trident.graph import Aggregation
from trident.operations import Avg, Count, First, Last, Max, Min, Sum
from trident.operations.builtin import sums
from trident.operations.several import MultiAggregate
from trident.state.encoding.equal_keys import CanonicalKeys
from trident.state.interfaces import Key
from trident.state.number_columns import sums_have_turned
from trident.state.values import Combine, CombinerUpdates, ReducerValueUpdater
from trident.steps.failures import TupleErrors
from trident.steps.key_columns import group_and_aggregate, keys_of, one_form
from trident.steps.rows import check_row, columns_of, iterate
from trident.tuples import TridentTuple
from trident.types import class_of, simple_type

_FUNCTIONS: dict[type[Any], Sequence[str]] = {
    Count: ("count_all",),
    Sum: ("sum",),
    Min: ("min",),
    Max: ("max",),
    Avg: ("sum", "count"),
}
"""The functions of Arrow that aggregate tuples."""

_MERGING = {"count_all": "sum", "count": "sum", "sum": "sum", "min": "min", "max": "max"}
"""The functions that merge what these give."""

_MANY_ROWS = 30_000  # up to this many rows, counting values is faster than `group_by`, which takes 0.15 ms to start

_FEW_ROWS = 64  # up to this many rows, a Python object per row costs less than the start of a kernel


def is_native(aggregator: Any) -> bool:
    """Whether an Arrow kernel does what the aggregator does. A sum that may overflow still runs row by row."""
    return is_pick(aggregator) or _has_functions(aggregator)


def _has_functions(aggregator: Any) -> bool:
    if not isinstance(aggregator, MultiAggregate):
        return len(_FUNCTIONS.get(type(aggregator), ())) == 1
    return all(
        type(part.aggregator) in _FUNCTIONS and not (part.is_wide and part.outputs.types[0] != "double")
        for part in aggregator.parts
    )


def combining(aggregator: Any) -> Callable[[Any, Any], list[Any]] | None:
    if type(aggregator) in (Count, Sum):
        return sums
    return aggregator.combine_all if isinstance(aggregator, MultiAggregate) else None


def updates_of(aggregation: Aggregation, given: Sequence[Any], native: bool, check: Any) -> Sequence[Any]:
    """Return updaters whose totals are floats if they are declared so: a store without types, as memory, would keep doubles."""
    aggregator, combine_all = aggregation.aggregator, combining(aggregation.aggregator)
    has_sums = any(type(part.aggregator) is Sum for part in _parts(aggregation))
    is_kept = native and "float" in aggregation.inputs.types and not has_sums  # as by Max of floats
    form = None if is_kept else _form_of(aggregation.outputs.types[0])
    if not aggregation.combines:
        new: Any = ReducerValueUpdater if form is None else lambda *rows: _FormedReducer(form, *rows)
        return [new(aggregator.init, aggregator.reduce, rows) for rows in given]
    if form is None:
        return CombinerUpdates(aggregator.combine, given, combine_all, native, check)
    form_all = _as_floats if form is _as_float else lambda values: list(map(form, values))
    return CombinerUpdates(
        lambda old, new: form(aggregator.combine(old, new)),
        form_all(given),
        combine_all and (lambda olds, news: form_all(combine_all(olds, news))),
        native,
        check,
    )


class _FormedReducer(ReducerValueUpdater[Any]):
    __slots__ = ("form",)

    def __init__(self, form: Callable[[Any], Any], *given: Any) -> None:
        super().__init__(*given)
        self.form = form

    def update(self, stored: Any) -> Any:
        return self.form(super().update(stored))


@cache
def _form_of(ddl: str | None) -> Callable[[Any], Any] | None:
    """Return what makes floats of a value where the type has them; None: nowhere."""
    if ddl == "float":
        return _as_float
    if ddl is not None and ddl.startswith("array<"):
        of = _form_of(ddl[len("array<") : -1])
        return of and (lambda values: list(map(of, values)) if type(values) is list else values)
    forms = {name: form for name, type_ in struct_fields(ddl) if (form := _form_of(type_)) is not None}
    if not forms:
        return None
    return lambda value: (
        {**value, **{name: form(value[name]) for name, form in forms.items() if name in value}}
        if type(value) is dict
        else value
    )


def _as_float(value: Any) -> Any:
    if type(value) is not float:
        return value
    nearest = c_float(value).value
    return value if nearest in (0.0, inf, -inf) else nearest  # what is lost is refused by the check of types


def _as_floats(values: Sequence[Any]) -> list[Any]:
    if set(map(type, values)) == {float}:
        floats = array("f", values).tolist()
        if 0.0 not in floats and isfinite(sum(floats)):  # else some may be lost
            return floats
    return list(map(_as_float, values))


def has_kernel(aggregation: Aggregation, table: pa.Table) -> bool:
    return is_native(aggregation.aggregator) and not _may_overflow(aggregation, table)


def check_totals(aggregation: Aggregation, check: Callable[[Sequence[Any]], None], values: Sequence[Any]) -> None:
    """Check values of a native aggregator, unless it is certain that they fit: only what adds may lead beyond a type."""
    for part in _parts(aggregation):
        if type(part.aggregator) not in (Sum, Count) or (limit := _limit_of(part.outputs.types[0])) is None:
            continue
        name = part.outputs.names[0]  # None: not written, as where a replay into a store lets what it has stand
        found = values if part is aggregation else [value and value[name] for value in values]
        totals = [one for one in found if one is not None]
        if not -limit < min(totals, default=0) <= max(totals, default=0) < limit:
            check(values)
            return


@cache
def _limit_of(ddl: str | None) -> int | None:
    """Return what totals of a type are below, and above if it is negated; None if they may be any."""
    type_ = simple_type(ddl)
    if type_ is None or type_.name == "double":
        return None
    return type_.limit if type_.wire else 10 ** type_.digits[0]


def is_plain_key(type_: str | None) -> bool:
    """Whether Arrow and Python agree, without any care, on which values of a field's type are equal."""
    return class_of(type_) in (str, int)


def partial(step: str, aggregation: Aggregation, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    """Aggregate one table of a batch: one row per key; ungrouped, one row, or none if the table is empty."""
    try:
        return strict_partial(step, aggregation, table, on_error)
    except Misfit:  # row by row, which says which tuple it is, or which key
        return _python_partial(step, aggregation, one_form(table, aggregation.group.names), on_error)


def strict_partial(step: str, aggregation: Aggregation, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    """As `partial`, but raise `Misfit` if a kernel gives what its declared type does not have, also if tuples are left out."""
    schema = schema_of(aggregation.partial)
    if table.num_rows == 0:
        return schema.empty_table()
    group, counts = aggregation.group, type(aggregation.aggregator) is Count
    if counts and not group.names:
        return pa.table([pa.array([table.num_rows])], schema=schema)
    if counts and table.num_rows <= _MANY_ROWS and len(group.names) == 1 and is_plain_key(group.types[0]):
        return _typed_table(aggregation, _value_counts(table.column(group.names[0])))
    table = one_form(table, group.names)
    if is_pick(aggregation.aggregator):
        return pick_rows(aggregation, table)
    if _has_functions(aggregation.aggregator):
        table = _as_declared(table, aggregation, schema.types[-1])
        if not _may_overflow(aggregation, table):
            return _of_tuples(aggregation, table)
    return _python_partial(step, aggregation, table, on_error)


def _of_tuples(aggregation: Aggregation, table: pa.Table) -> pa.Table:
    rows = pa.nulls(table.num_rows)
    asked = [
        [
            ("" if function == "count_all" else part.inputs.names[0], function)
            for function in _FUNCTIONS[type(part.aggregator)]
        ]
        for part in _parts(aggregation)
    ]
    return _aggregate(aggregation, table, lambda name: table.column(name) if name else rows, asked)


def _value_counts(column: pa.ChunkedArray) -> list[pa.Array]:
    """The distinct values in the order in which they appear, and how often each does."""
    if len(column) > _FEW_ROWS:
        counts = pc.value_counts(column)
        return [counts.field(0), counts.field(1)]
    counted: dict[Any, int] = {}  # no `Counter`, which takes longer to make than these to count
    for value in column.to_pylist():
        counted[value] = counted.get(value, 0) + 1
    return [pa.array(list(counted), column.type), pa.array(list(counted.values()), pa.int64())]


def _as_declared(table: pa.Table, aggregation: Aggregation, type_: pa.DataType) -> pa.Table:
    """Convert whole numbers to doubles if the aggregate is declared as one, because then their sum cannot overflow 64 bits."""
    for name in aggregation.inputs.names if pa.types.is_floating(type_) else ():
        column = table.column(name)
        if pa.types.is_integer(column.type):
            table = table.set_column(table.schema.get_field_index(name), name, column.cast(type_, safe=False))
    return table


def _may_overflow(aggregation: Aggregation, table: pa.Table, partials: Mapping[str, Any] | None = None) -> bool:
    """Whether a sum, of tuples or of `partials` by name, may exceed 64 bits or 38 digits, where Arrow would wrap around."""
    for part in _parts(aggregation):
        if type(part.aggregator) in (Sum, Avg):
            column = table.column(part.inputs.names[0]) if partials is None else partials[_part_names(part)[0]]
            if _sum_may_overflow(column, table.num_rows):
                return True
        of_mean = part.outputs.names if type(part.aggregator) is Avg else ()
        if partials is not None and of_mean and sums_have_turned([partials[name] for name in of_mean]):
            return True
    return False


def _sum_may_overflow(column: Any, rows: int) -> bool:
    if pa.types.is_integer(column.type):
        limit = 1 << 63
    elif pa.types.is_decimal(column.type):
        limit = 10 ** (38 - column.type.scale)
    else:
        return False
    bounds = pc.min_max(column).as_py()
    return bool(max(abs(int(bounds["min"] or 0)), abs(int(bounds["max"] or 0))) + 1 >= limit // max(1, rows))


def _typed_table(aggregation: Aggregation, columns: list[Any]) -> pa.Table:
    schema = schema_of(aggregation.partial)
    field = schema.field(len(schema) - 1)
    value = strict_cast(columns[-1], field.type, field.name, aggregation.outputs.types[0])
    return pa.table([*columns[:-1], value], schema=schema)


def _python_partial(step: str, aggregation: Aggregation, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    aggregator = aggregation.aggregator
    found: dict[Key, Any] = {}
    keys = keys_of(table, aggregation.group.names)

    def visit(at: int, row: Any) -> None:
        key = keys[at]
        before = found[key] if key in found else aggregator.zero()
        value = aggregator.init(row)
        value = value if before is None else aggregator.combine(before, value)
        if on_error.capture:
            check_row(aggregation.outputs, (value,))
        found[key] = value

    iterate(step, table, aggregation.inputs, on_error, visit)
    fields = aggregation.partial
    rows = [(*key, value) for key, value in found.items()]
    of = (lambda at: TridentTuple(aggregation.group, rows[at][:-1])) if aggregation.group.names else (lambda at: None)
    return pa.table(columns_of(step, fields, rows, of), schema=schema_of(fields))


Merging = Combine | Sequence[Combine]
"""What merges partials, as a store of columns knows it: a function, or one for each field of the value."""


def merging_function(aggregator: Any) -> Merging | None:
    """Return what merges partials in a store of columns; None if nothing does."""
    if not _has_functions(aggregator):
        return None
    if not isinstance(aggregator, MultiAggregate):
        return cast("Combine", _MERGING[_FUNCTIONS[type(aggregator)][0]])
    merging: list[str] = []
    for part in aggregator.parts:
        merging += ["mean"] * part.is_wide + [_MERGING[one] for one in _FUNCTIONS[type(part.aggregator)]]
    return cast("Sequence[Combine]", tuple(merging))


def merge_all(aggregation: Aggregation, parts: list[pa.Table]) -> pa.Table | None:
    """Merge partials with a kernel: one row per key, no row for no input. None if no kernel can do it."""
    parts = [part for part in parts if part.num_rows]
    if len(parts) < 2:
        return parts[0] if parts else schema_of(aggregation.partial).empty_table()
    return merged_table(aggregation, pa.concat_tables(parts))


def merged_table(aggregation: Aggregation, table: pa.Table) -> pa.Table | None:
    """Merge the rows of a table of partials, which has some, with a kernel: one row per key. None if no kernel can do it."""
    if is_pick(aggregation.aggregator):
        by, values = aggregation.aggregator.by, table.column(aggregation.outputs.names[0])
        order = None if by is None else pc.struct_field(values, [by])
        keys, rows = _rows(aggregation, table, order, values.is_valid())
        return _typed_table(aggregation, [*keys, values.take(rows)])
    if not _has_functions(aggregation.aggregator):
        return None
    partials = _columns_of_partials(aggregation, table)
    if _may_overflow(aggregation, table, partials):
        return None
    asked = [
        [(name, _MERGING[one]) for name, one in zip(_part_names(part), _FUNCTIONS[type(part.aggregator)], strict=True)]
        for part in _parts(aggregation)
    ]
    return _aggregate(aggregation, table, partials.__getitem__, asked)


def merge_partials(aggregation: Aggregation, parts: list[pa.Table]) -> tuple[list[Key], list[Any]]:
    """Merge partials of all tasks: distinct keys and their values, in the same order (ungrouped: at most one)."""
    table = merge_all(aggregation, parts)
    if table is not None:
        return rows_of(table, aggregation)
    found: dict[Key, Any] = {}
    combine = aggregation.aggregator.combine
    for key, value in zip(*rows_of(pa.concat_tables(parts), aggregation), strict=True):
        before = found.get(key)
        found[key] = value if before is None else combine(before, value)
    return CanonicalKeys(found), list(found.values())


def rows_of(table: pa.Table, aggregation: Aggregation) -> tuple[list[Key], list[Any]]:
    return keys_of(table, aggregation.group.names), python_of(table.column(aggregation.outputs.names[0]))


def is_pick(aggregator: Any) -> bool:
    return type(aggregator) in (First, Last)


def pick_rows(aggregation: Aggregation, table: pa.Table) -> pa.Table:
    by, inputs = aggregation.aggregator.by, aggregation.inputs.names
    values = table.select(list(inputs))
    whole = by is not None or len(inputs) > 1
    order = None if by is None else table.column(by)
    keys, rows = _rows(aggregation, table, order, None if whole else values.column(0).is_valid())
    if not whole:
        return _typed_table(aggregation, [*keys, values.column(0).take(rows)])
    columns = [one_array(column) for column in values.take(rows).columns]
    return _typed_table(
        aggregation, [*keys, pa.StructArray.from_arrays(columns, fields=list(values.schema), mask=rows.is_null())]
    )


def _rows(
    aggregation: Aggregation, table: pa.Table, order: pa.ChunkedArray | None, there: pa.ChunkedArray | None
) -> tuple[list[pa.ChunkedArray], pa.Array]:
    """Return the columns of the keys, and the row that each keeps: null where all of its rows are skipped."""
    ranks, sorted_rows = _ranks(table.num_rows, order, there)
    function = "min" if type(aggregation.aggregator) is First else "max"
    *keys, bests = group_and_aggregate(list(map(table.column, aggregation.group.names)), [(ranks, function)])
    best = one_array(bests)
    return keys, best if sorted_rows is None else sorted_rows.take(best)


def _ranks(count: int, order: Any, there: Any) -> tuple[pa.Array, pa.Array | None]:
    """Return the place of each row in the order, null where it is skipped; and the rows by place, None if they are in order."""
    places, sorted_rows = np.arange(count), None
    if order is not None:
        valid = order.is_valid()
        if pa.types.is_floating(order.type):
            valid = pc.fill_null(pc.invert(pc.is_nan(order)), False)
        there = valid if there is None else pc.and_(valid, there)
        sorted_rows = pc.array_sort_indices(one_array(order)).cast(pa.int64())  # stable: equal ones stay in order
        ranks = np.empty(count, np.int64)
        ranks[sorted_rows.to_numpy()] = places
        places = ranks
    mask = None if there is None else ~there.to_numpy().astype(bool)
    return pa.array(places, pa.int64(), mask=mask), sorted_rows


Asked = Sequence[list[tuple[str, str]]]
"""For each part the columns to aggregate, each with a function of Arrow; rows as such have no name."""


def _parts(aggregation: Aggregation) -> Sequence[Aggregation]:
    aggregator = aggregation.aggregator
    return aggregator.parts if isinstance(aggregator, MultiAggregate) else (aggregation,)


def _part_names(part: Aggregation) -> Sequence[str]:
    """Return the fields of a partial that are added, or compared, when partials are merged."""
    return part.outputs.names[1:] if type(part.aggregator) is Avg else part.outputs.names


def _columns_of_partials(aggregation: Aggregation, table: pa.Table) -> dict[str, Any]:
    (name,) = aggregation.outputs.names
    if not isinstance(aggregation.aggregator, MultiAggregate):
        return {name: table.column(name)}
    value = one_array(table.column(name))
    return dict(zip((field.name for field in value.type), value.flatten(), strict=True))


def _aggregate(aggregation: Aggregation, table: pa.Table, column: Callable[[str], Any], asked: Asked) -> pa.Table:
    distinct = list(dict.fromkeys(one for some in asked for one in some))
    columns = [(column(name), function) for name, function in distinct]
    done = group_and_aggregate(list(map(table.column, aggregation.group.names)), columns)
    keys = len(aggregation.group.names)
    by_asked = dict(zip(distinct, done[keys:], strict=True))
    made: list[Any] = []
    for part, some in zip(_parts(aggregation), asked, strict=True):
        made += _fields(part, [by_asked[one] for one in some])
    if not isinstance(aggregation.aggregator, MultiAggregate):
        return _typed_table(aggregation, [*done[:keys], *made])
    schema = schema_of(aggregation.partial)
    fields = list(schema.types[-1])
    typed = [strict_cast(one_array(one), field.type, field.name) for one, field in zip(made, fields, strict=True)]
    return pa.table([*done[:keys], pa.StructArray.from_arrays(typed, fields=fields)], schema=schema)


def _fields(part: Aggregation, found: Sequence[Any]) -> list[Any]:
    if type(part.aggregator) not in (Sum, Avg):
        return list(found)
    total = pc.fill_null(found[0], 0) if found[0].null_count else found[0]  # a sum over nothing but nulls is 0
    if type(part.aggregator) is Sum:
        return [total]
    count = found[1]
    mean = pc.divide(
        total.cast(pa.float64(), safe=False), pc.if_else(pc.equal(count, 0), None, count).cast(pa.float64())
    )
    return [mean, total, count]
