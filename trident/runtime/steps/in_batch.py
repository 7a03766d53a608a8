"""Aggregates within a batch, partition by partition: Arrow kernels for the built-ins, else the members row by row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import Misfit, schema_of
from trident.fields import Fields
from trident.graph import AggregateNode, Aggregation, Member
from trident.operations.assemblies import FirstRows
from trident.operations.builtin import MaxBy, MinBy
from trident.operations.interfaces import Aggregator
from trident.roles import has
from trident.runtime.steps.aggregates import has_kernel, is_native, strict_partial
from trident.runtime.steps.failures import failing_at
from trident.runtime.steps.key_columns import extreme, group_ids, has_nan, one_form
from trident.runtime.steps.rows import Emitted, StepRun, columns_of, iterate, tuples_of
from trident.tuples import TridentTuple


def aggregate(step: str, node: AggregateNode, table: pa.Table, run: StepRun) -> pa.Table:
    """Aggregate one partition: a row per key, or as many as the members emit; ungrouped also without any rows."""
    if table.num_rows == 0 and (node.grouped or node.partial):
        return schema_of(node.fields).empty_table()
    table, kernel = one_form(table, node.group.names), _table_kernel(node)
    if kernel is not None:
        (member,) = node.members
        return kernel(member.aggregator, table.select(list(member.inputs.names))).rename_columns(
            list(node.fields.names)
        )
    parts = [_aggregation(node, member) for member in node.members if member.combines]
    if table.num_rows and len(parts) == len(node.members) and all(has_kernel(part, table) for part in parts):
        made = _by_kernels(step, node, parts, table, run)
        if made is not None:
            return made
    return _row_by_row(step, node, table, run)


def _by_kernels(
    step: str, node: AggregateNode, parts: list[Aggregation], table: pa.Table, run: StepRun
) -> pa.Table | None:
    """Return the aggregates; None if a tuple is to be left out, which is then left out of all members."""
    try:
        tables = [strict_partial(step, part, table, run.on_error) for part in parts]
    except Misfit:
        if run.on_error.capture:
            return None
        raise
    values = [data.column(data.num_columns - 1) for data in tables]
    keys = [tables[0].column(name) for name in node.group.names]
    return pa.table([*keys, *values], schema=schema_of(node.fields))


def has_aggregate_kernel(node: AggregateNode) -> bool:
    """Whether an aggregate runs as Arrow kernels. It does if all of its members can; otherwise it runs row by row."""
    return _table_kernel(node) is not None or all(is_native(member.aggregator) for member in node.members)


def _table_kernel(node: AggregateNode) -> Callable[[Any, pa.Table], pa.Table] | None:
    return None if node.grouped or len(node.members) > 1 else _TABLE_KERNELS.get(type(node.members[0].aggregator))


def _aggregation(node: AggregateNode, member: Member) -> Aggregation:
    return Aggregation(node.group, node.grouped, member.inputs, member.aggregator, member.outputs, combines=True)


# ---- built-ins that keep whole rows ------------------------------------------------------------------------------------


def _extreme(aggregator: MinBy, table: pa.Table) -> pa.Table:
    column = table.column(aggregator.field)
    value = extreme(column, "max" if isinstance(aggregator, MaxBy) else "min")
    if not value.is_valid:
        return table.slice(0, 0)
    at = pc.indices_nonzero(pc.equal(column, value) if value.as_py() == value.as_py() else pc.is_nan(column))
    return table.slice(at[len(at) - 1].as_py(), 1)


def _first(aggregator: FirstRows, table: pa.Table) -> pa.Table:
    if aggregator.sort_field is None:
        return table.slice(0, aggregator.n)
    order = "descending" if aggregator.reverse else "ascending"
    at = pc.sort_indices(table, [(aggregator.sort_field, order)])  # stable; NaN, then null, come last in both orders
    column = table.column(aggregator.sort_field)
    if aggregator.reverse and has_nan(column):
        are_nan = pc.fill_null(pc.is_nan(column.take(at)), False).combine_chunks()
        at = pa.concat_arrays([at.filter(are_nan), at.filter(pc.invert(are_nan))])
    return table.take(at.slice(0, aggregator.n))


_TABLE_KERNELS: dict[type[Any], Callable[[Any, pa.Table], pa.Table]] = {
    MinBy: _extreme,
    MaxBy: _extreme,
    FirstRows: _first,
}


# ---- row by row --------------------------------------------------------------------------------------------------------


class _Combining:
    """A combiner as an aggregator."""

    def __init__(self, combiner: Any) -> None:
        self._combiner = combiner

    def init(self, batch_id: Any, collector: Any) -> Any:
        return self._combiner.zero()

    def aggregate(self, val: Any, tuple: TridentTuple, collector: Any) -> Any:
        value = self._combiner.init(tuple)
        return collector.checked(value if val is None else self._combiner.combine(val, value))

    def complete(self, val: Any, collector: Any) -> None:
        collector.emit((val,))


class _Reducing:
    """A reducer as an aggregator."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def init(self, batch_id: Any, collector: Any) -> Any:
        return self._reducer.init()

    def aggregate(self, val: Any, tuple: TridentTuple, collector: Any) -> Any:
        return collector.checked(self._reducer.reduce(val, tuple))

    def complete(self, val: Any, collector: Any) -> None:
        collector.emit((val,))


def _as_aggregator(operation: Any) -> Aggregator[Any]:
    adapted: Any = operation
    if has(operation, "combine"):
        adapted = _Combining(operation)
    elif has(operation, "reduce"):
        adapted = _Reducing(operation)
    aggregator: Aggregator[Any] = adapted
    return aggregator


class _Fold:
    """The members of a chain, over the tuples of one key."""

    def __init__(
        self, step: str, members: Sequence[Member], aggregators: Sequence[Aggregator[Any]], run: StepRun, given: int
    ) -> None:
        self._bounds, self._given, self._members = run.on_error.bounds, given, aggregators
        self._outs = [Emitted(step, member.outputs, run.on_error, given) for member in members]
        self._values = [one.init(run.attempt, out) for one, out in zip(self._members, self._outs, strict=True)]

    def take(self, rows: Sequence[TridentTuple]) -> None:
        """Pass a tuple to each member. If one raises, none of them has seen the tuple."""
        before = [len(out.rows) for out in self._outs]
        try:
            self._values = [
                one.aggregate(value, row, out)
                for one, value, row, out in zip(self._members, self._values, rows, self._outs, strict=True)
            ]
        except Exception:
            for out, count in zip(self._outs, before, strict=True):
                out.take_back(count)
            raise

    def complete(self, key: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return the rows of the key: what the members emitted, in every combination."""
        for one, value, out in zip(self._members, self._values, self._outs, strict=True):
            one.complete(value, out)
        self._bounds.check_step(math.prod(len(out.rows) for out in self._outs), self._given)
        return [(*key, *itertools.chain(*rows)) for rows in itertools.product(*(out.rows for out in self._outs))]


def _row_by_row(step: str, node: AggregateNode, table: pa.Table, run: StepRun) -> pa.Table:
    keys, ids = _keys(node, table)
    inputs = [list(tuples_of(table, member.inputs)) for member in node.members]
    aggregators = [_as_aggregator(member.aggregator) for member in node.members]
    seen = Fields.named(dict.fromkeys(name for member in node.members for name in member.inputs.names))
    with failing_at(step):  # no single tuple causes an error in init or complete
        folds = [_Fold(step, node.members, aggregators, run, table.num_rows) for _ in keys]

        def visit(at: int, row: TridentTuple) -> None:
            folds[ids[at]].take([rows[at] for rows in inputs])

        iterate(step, table, seen, run.on_error, visit)
        rows = [row for key, fold in zip(keys, folds, strict=True) for row in fold.complete(key)]
    width = len(node.group)
    columns = columns_of(
        step, node.fields, rows, lambda at: TridentTuple(node.group, rows[at][:width]) if width else None
    )
    return pa.table(columns, schema=schema_of(node.fields))


def _keys(node: AggregateNode, table: pa.Table) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Return the distinct keys, and the number of each row's key. Ungrouped, there is one key, also without rows."""
    if not node.grouped:
        return [()], [0] * table.num_rows
    ids, firsts = group_ids([table.column(name) for name in node.group.names], table.num_rows)
    keys = table.select(list(node.group.names)).take(pa.array(firsts))
    return [row.values for row in tuples_of(keys, node.group)], ids.tolist()
