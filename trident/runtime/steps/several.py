"""Kernels for several aggregates in one value: one `group_by` of Arrow for all of them, then the columns of their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import one_array, schema_of, strict_cast
from trident.graph import Aggregation
from trident.operations import Avg, Count, Max, Min, Sum
from trident.operations.several import Part, Several
from trident.runtime.steps.key_columns import grouped
from trident.state.columns.number_columns import sums_have_turned

Asked = list[tuple[str, str]]
"""The columns to aggregate, each with a function of Arrow; rows as such have no name."""

_FUNCTIONS: dict[type[Any], Sequence[str]] = {
    Count: ("count",),
    Sum: ("sum",),
    Min: ("min",),
    Max: ("max",),
    Avg: ("sum", "count"),
}
_MERGING = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}


def is_several_native(aggregator: Any) -> bool:
    """Whether the kernels here do what an aggregator does."""
    return isinstance(aggregator, Several) and all(map(_is_native, aggregator.parts))


def _is_native(part: Part) -> bool:
    return type(part.aggregator) in _FUNCTIONS and not (part.is_wide and part.outputs.types[0] != "double")


def added(aggregation: Aggregation, table: pa.Table, are_partials: bool) -> Iterator[Any]:
    """Iterate over the columns that are summed, of tuples or of partials."""
    for part in aggregation.aggregator.parts:
        if type(part.aggregator) in (Sum, Avg):
            whole = table.column(aggregation.output.names[0]) if are_partials else None
            yield table.column(part.inputs.names[0]) if whole is None else pc.struct_field(whole, [_kept(part)[0]])


def have_turned(aggregation: Aggregation, partials: pa.Table) -> bool:
    """Whether a sum of partials, of which a mean is made, is remembered less than it is: see `Avg`."""
    whole = partials.column(aggregation.output.names[0])
    for part in aggregation.aggregator.parts:
        fields = [one_array(pc.struct_field(whole, [name])) for name in part.outputs.names]
        if type(part.aggregator) is Avg and sums_have_turned(fields):
            return True
    return False


def merging_functions(several: Several) -> tuple[str, ...]:
    """Return the functions that merge the fields of values, as a store of columns knows them."""
    merging: list[str] = []
    for part in several.parts:
        merging += ["mean"] * part.is_wide + [_MERGING[one] for one in _FUNCTIONS[type(part.aggregator)]]
    return tuple(merging)


def _kept(part: Part) -> Sequence[str]:
    """Return the fields of a partial that are added, or compared, when partials are merged."""
    return part.outputs.names[1:] if part.is_wide else part.outputs.names


def several_of(aggregation: Aggregation, table: pa.Table) -> pa.Table:
    """Aggregate tuples: one row per key; ungrouped, one row."""

    def asked(part: Part) -> Asked:
        read = part.inputs.names[0] if len(part.inputs) else ""
        return [(read, function) for function in _FUNCTIONS[type(part.aggregator)]]

    return _aggregated(aggregation, table, asked)


def several_of_partials(aggregation: Aggregation, table: pa.Table) -> pa.Table:
    """Merge partials: one row per key; ungrouped, one row."""
    value = one_array(table.column(aggregation.output.names[0]))
    keys = table.select(list(aggregation.group.names))
    prefixed = [f"{_FIELD}{field.name}" for field in value.type]
    columns = pa.table([*keys.columns, *value.flatten()], names=[*keys.column_names, *prefixed])

    def asked(part: Part) -> Asked:
        functions = _FUNCTIONS[type(part.aggregator)]
        return [(_FIELD + name, _MERGING[one]) for name, one in zip(_kept(part), functions, strict=True)]

    return _aggregated(aggregation, columns, asked)


_FIELD = "$field "
"""Before the names of a value's fields, which may be those of the key."""


def _aggregated(aggregation: Aggregation, table: pa.Table, asked: Callable[[Part], Asked]) -> pa.Table:
    several: Several = aggregation.aggregator
    wanted = [asked(part) for part in several.parts]
    distinct = list(dict.fromkeys(one for some in wanted for one in some))
    rows = pa.repeat(pa.scalar(0, pa.int8()), table.num_rows)
    columns = [(table.column(name) if name else rows, function) for name, function in distinct]
    done = grouped(list(map(table.column, aggregation.group.names)), columns)
    keys = len(aggregation.group)
    by_asked = dict(zip(distinct, map(one_array, done[keys:]), strict=True))
    schema = schema_of(aggregation.partial)
    made: list[pa.Array] = []
    for part, some in zip(several.parts, wanted, strict=True):
        made += _fields(part, [by_asked[one] for one in some])
    fields = list(schema.types[-1])
    typed = [strict_cast(one, field.type, field.name) for one, field in zip(made, fields, strict=True)]
    value = pa.StructArray.from_arrays(typed, fields=fields)
    return pa.table([*done[:keys], value], schema=schema)


def _fields(part: Part, found: Sequence[Any]) -> list[Any]:
    if type(part.aggregator) is Sum:
        return [pc.fill_null(found[0], 0)]
    if type(part.aggregator) is not Avg:
        return list(found)
    total, count = pc.fill_null(found[0], 0), found[1]
    mean = pc.divide(
        total.cast(pa.float64(), safe=False), pc.if_else(pc.equal(count, 0), None, count).cast(pa.float64())
    )
    return [mean, total, count]
