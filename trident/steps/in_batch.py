"""What is made of many tuples within a batch, partition by partition: aggregates, joins of streams, multi-reducers."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import Misfit, schema_of
from trident.fields import Fields
from trident.graph import AggregateNode, Aggregation, JoinNode, MultiReduceNode
from trident.operations.assemblies import FirstRows
from trident.operations.builtin import MaxBy, MinBy
from trident.roles import has
from trident.steps.aggregates import has_kernel, is_native, strict_partial
from trident.steps.failures import DEFAULT_BOUNDS, Bounds, failing_at
from trident.steps.key_columns import Ints, extreme, group_ids, has_nan, nulls_apart, one_form
from trident.steps.rows import Emitted, StepRun, columns_of, iterate, tuples_of
from trident.tuples import TridentTuple


def aggregate(step: str, node: AggregateNode, table: pa.Table, run: StepRun) -> pa.Table:
    """Aggregate one partition: a row per key, or as many as the members emit; ungrouped also without any rows."""
    if table.num_rows == 0 and (len(node.group) or node.partial):
        return schema_of(node.fields).empty_table()
    table, kernel = one_form(table, node.group.names), _table_kernel(node)
    if kernel is not None:
        (member,) = node.members
        return kernel(member.aggregator, table.select(list(member.inputs.names))).rename_columns(
            list(node.fields.names)
        )
    if table.num_rows and all(member.combines and has_kernel(member, table) for member in node.members):
        made = _by_kernels(step, node, table, run)
        if made is not None:
            return made
    return _row_by_row(step, node, table, run)


def _by_kernels(step: str, node: AggregateNode, table: pa.Table, run: StepRun) -> pa.Table | None:
    """Return the aggregates; None if a tuple is to be left out, which is then left out of all members."""
    try:
        tables = [strict_partial(step, member, table, run.on_error) for member in node.members]
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
    return None if len(node.group) or len(node.members) > 1 else _TABLE_KERNELS.get(type(node.members[0].aggregator))


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


class _Folding:
    """A combiner or a reducer as an aggregator: how a value begins, and what it is with one tuple more."""

    def __init__(self, begin: Callable[[], Any], step: Callable[[Any, TridentTuple], Any]) -> None:
        self._begin, self._step = begin, step

    def init(self, batch_id: Any, collector: Any) -> Any:
        return self._begin()

    def aggregate(self, val: Any, tuple: TridentTuple, collector: Any) -> Any:
        return collector.check_result(self._step(val, tuple))

    def complete(self, val: Any, collector: Any) -> None:
        collector.emit((val,))


def _as_aggregator(operation: Any) -> Any:
    if has(operation, "combine"):

        def combine_row(val: Any, row: TridentTuple) -> Any:
            value = operation.init(row)
            return value if val is None else operation.combine(val, value)

        return _Folding(operation.zero, combine_row)
    return _Folding(operation.init, operation.reduce) if has(operation, "reduce") else operation


class _Fold:
    """The members of a chain, over the tuples of one key."""

    def __init__(
        self, step: str, members: Sequence[Aggregation], aggregators: Sequence[Any], run: StepRun, given: int
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
    if not len(node.group):
        return [()], [0] * table.num_rows
    ids, firsts = group_ids([table.column(name) for name in node.group.names], table.num_rows)
    keys = table.select(list(node.group.names)).take(pa.array(firsts))
    return [row.values for row in tuples_of(keys, node.group)], ids.tolist()


def join(node: JoinNode, sides: list[pa.Table], bounds: Bounds = DEFAULT_BOUNDS) -> pa.Table:
    """Join the rows of one partition; raise `TooManyRows` before a result beyond the bounds is made."""
    # Keys come in the order in which they first appear, side by side; those that match nothing come last. Within a key, the
    # rows of the last side vary fastest. The distinct keys of all sides, and for each side the number of each row's key.
    whole, numbers, firsts = _number_keys(node.groups, sides)
    if not node.null_keys_match:
        numbers, firsts, _ = nulls_apart(whole, numbers, firsts)
    keys, ids = whole.take(pa.array(firsts)), _of_tables(numbers, sides)
    groups = keys.num_rows
    rows = [_SideRows(side_ids, groups) for side_ids in ids]
    counts = [np.maximum(side.counts, int(outer)) for side, outer in zip(rows, node.outer, strict=True)]
    bounds.check_step(int(np.prod(counts, axis=0, dtype=float).sum()), sum(side.num_rows for side in sides))
    totals = np.prod(counts, axis=0, dtype=np.int64)
    group = np.repeat(np.arange(groups), totals)
    at = np.arange(len(group)) - np.repeat(np.cumsum(totals) - totals, totals)
    picks: list[pa.Array] = []
    for side, count in zip(reversed(rows), reversed(counts), strict=True):
        picks.insert(0, side.pick(group, at % count[group]))
        at //= count[group]
    columns = [] if node.preserve else keys.take(pa.array(group)).columns
    for table, fields, key, pick in zip(sides, node.inputs, node.groups, picks, strict=True):
        names = fields.names if node.preserve else [name for name in fields.names if name not in key.names]
        columns.extend(table.column(name).take(pick) for name in names)
    return pa.table(columns, schema=schema_of(node.fields))


class _SideRows:
    """The rows of one side by key, in their order."""

    def __init__(self, ids: Ints, groups: int) -> None:
        self.order = np.argsort(ids, kind="stable")
        self.counts = np.bincount(ids, minlength=groups)
        self.starts = np.cumsum(self.counts) - self.counts

    def pick(self, group: Ints, at: Ints) -> pa.Array:
        """Return the `at`-th row of each key, null where the side has none. `group` and `at` are int64 arrays of one length."""
        missing = self.counts[group] == 0
        if not len(self.order):
            return pa.nulls(len(group), pa.int64())
        where = np.where(missing, 0, self.starts[group] + at)
        return pa.array(self.order[where], mask=missing)


def _number_keys(groups: Sequence[Fields], tables: Sequence[pa.Table]) -> tuple[pa.Table, Ints, Ints]:
    """Return the keys of all rows, named as in the first table, and their `group_ids`."""
    names = groups[0].names
    parts = [
        table.select(list(key.names)).rename_columns(list(names)) for table, key in zip(tables, groups, strict=True)
    ]
    whole = one_form(pa.concat_tables(parts), names)
    return whole, *group_ids(whole.columns, whole.num_rows)


def _of_tables(ids: Ints, tables: Sequence[pa.Table]) -> list[Ints]:
    return np.split(ids, np.cumsum([table.num_rows for table in tables])[:-1])


def multi_reduce(node: MultiReduceNode, streams: list[pa.Table], run: StepRun) -> pa.Table:
    """Run the reducer over one partition: once, or once for each key that occurs, in order of appearance."""
    out, reducer = Emitted(node.id, node.fields, run.on_error, sum(table.num_rows for table in streams)), node.reducer
    keys: list[tuple[TridentTuple, ...]] = [()]  # what a grouped reducer gets besides
    numbers = [[0] * table.num_rows for table in streams]
    with failing_at(node.id):
        if len(node.groups[0]):
            whole, ids, firsts = _number_keys(node.groups, streams)
            keys = [(key,) for key in tuples_of(whole.take(pa.array(firsts)), node.groups[0])]
            numbers = [of_table.tolist() for of_table in _of_tables(ids, streams)]
        states = [reducer.init(out, *key) for key in keys]
    for index, (table, of_rows) in enumerate(zip(streams, numbers, strict=True)):

        def visit(at: int, row: TridentTuple, index: int = index, of_rows: list[int] = of_rows) -> None:
            number = of_rows[at]
            after = reducer.execute(states[number], index, *keys[number], row, out)
            states[number] = states[number] if after is None else after

        iterate(node.id, table, node.inputs[index], run.on_error, visit, index, out)
    with failing_at(node.id):
        for state, key in zip(states, keys, strict=True):
            reducer.complete(state, *key, out)
    return pa.table(columns_of(node.id, node.fields, out.rows), schema=schema_of(node.fields))
