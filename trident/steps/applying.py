"""How each kind of step is applied to an Arrow table: built-ins have kernels; anything else runs row by row."""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident import graph
from trident.arrow import Misfit, one_array, python_of, rows_without_columns
from trident.operations import FilterNull, Split
from trident.operations.adapters import PlainFlatMap, PlainFunction, PlainMap
from trident.operations.expressions import Expression
from trident.operations.interfaces import ArrowFilter, ArrowFunction
from trident.plan import Plan, Step
from trident.steps.aggregates import is_native
from trident.steps.failures import (
    AtStep,
    Failure,
    StepFailed,
    TupleErrors,
    WrongResult,
    calls_user_code,
    failing_at,
    failure_of,
)
from trident.steps.in_batch import has_aggregate_kernel
from trident.steps.rows import Emitted, as_values, check_row, columns_of, iterate, tuples_of, typed_columns, wrong_arity
from trident.steps.vector_steps import each_vectorised, filter_vectorised, map_vectorised, select
from trident.tuples import TridentTuple

_FEW_TEXTS = 16


def has_step_kernel(node: graph.Node) -> bool:
    """Whether a function or a filter runs as an Arrow kernel: only of exactly these classes, a subclass may do otherwise."""
    if isinstance(node, graph.EachNode):
        return type(node.function) is Split
    return isinstance(node, graph.FilterNode) and type(node.filter) is FilterNull


def apply_step(step: Step, table: pa.Table, on_error: TupleErrors, states: Callable[[str], Any]) -> pa.Table:
    """Apply one step; the result has the columns `step.keep`. `states` gives the state of a static query by name."""
    node = step.node
    if isinstance(node, graph.EachNode):
        return _each(step, node, table, on_error)
    if isinstance(node, graph.FilterNode):
        return _filter(step, node, table, on_error)
    if isinstance(node, graph.MapNode):
        return _map(step, node, table, on_error)
    if isinstance(node, graph.SelectNode):
        return select(step, node, table, on_error)
    if isinstance(node, graph.PeekNode):
        return _peek(step, node, table, on_error)
    if isinstance(node, graph.QueryNode):
        return apply_query(step.id, node, table, states(node.state), on_error, step.keep)
    assert isinstance(node, graph.ProjectNode), node
    return table.select(list(step.keep))


def _each(step: Step, node: graph.EachNode, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    if has_step_kernel(node):
        keeps_old = not set(node.outputs.names).issuperset(step.keep)
        parents, words = _split(node.function, table.column(node.inputs.names[0]), keeps_old or not step.keep)
        if not keeps_old and step.keep:
            return pa.table([words], names=step.keep)
        return _append(step, node.outputs.names, table, parents, [words])
    if isinstance(node.function, ArrowFunction):
        return _append(step, node.outputs.names, table, *each_vectorised(step.id, node, table, on_error))
    if isinstance(node.function, PlainFunction):
        calls = EmittedRows(step.id, node, table)
        with AtStep(step.id, calls.row):
            calls.run(on_error)
        return _append(step, node.outputs.names, table, calls.parents(), calls.columns())
    out = Emitted(step.id, node.outputs, on_error, table.num_rows, by_tuple=True)
    iterate(step.id, table, node.inputs, on_error, lambda _, row: node.function.execute(row, out), out=out)
    return _append(step, node.outputs.names, table, pa.array(out.parents, pa.int64()), out.columns(table, node.inputs))


def _append(
    step: Step, new: tuple[str, ...], table: pa.Table, parents: pa.Array | None, columns: list[pa.Array]
) -> pa.Table:
    """Return the columns that stay, each row repeated as often as it emitted (once without `parents`), and the new columns."""
    emitted = dict(zip(new, columns, strict=True))
    old = table.select([name for name in step.keep if name not in emitted])
    if parents is not None and old.num_columns:
        old = old.take(parents)
    kept = {name: emitted[name] if name in emitted else old.column(name) for name in step.keep}
    return pa.table(kept) if kept else rows_without_columns(table.num_rows if parents is None else len(parents))


def _split(function: Split, column: pa.ChunkedArray, with_parents: bool) -> tuple[pa.Array | None, pa.Array]:
    """Return the words of all texts and, `with_parents`, the number of the text that each comes from."""
    array = one_array(column)
    if len(array) <= _FEW_TEXTS and not with_parents:  # faster than the start of a kernel
        texts = [text for text in array.to_pylist() if text is not None]
        return None, pa.array([word for text in texts for word in text.split(function.separator) if word], pa.string())
    lists = pc.split_pattern(array, function.separator)
    words = lists.flatten() if lists.null_count else lists.values
    parents = pc.list_parent_indices(lists) if with_parents else None
    filled = pc.binary_length(words).to_numpy() > 0
    if not filled.all():
        mask = pa.array(filled)
        words, parents = words.filter(mask), None if parents is None else parents.filter(mask)
    return parents, words if words.type == pa.string() else words.cast(pa.string())


def _filter(step: Step, node: graph.FilterNode, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    if isinstance(node.filter, (ArrowFilter, Expression)):
        return filter_vectorised(step.id, node, table, on_error).select(list(step.keep))
    if has_step_kernel(node):
        mask = pa.array([True] * table.num_rows, pa.bool_()) if not len(node.inputs) else None
        for name in node.inputs.names:
            valid = pc.is_valid(table.column(name))
            mask = valid if mask is None else pc.and_(mask, valid)
        return table.filter(mask).select(list(step.keep))
    kept: list[bool] = [False] * table.num_rows

    def visit(at: int, row: Any) -> None:
        kept[at] = bool(node.filter.is_keep(row))

    iterate(step.id, table, node.inputs, on_error, visit)
    return table.filter(pa.array(kept, pa.bool_())).select(list(step.keep))


def _peek(step: Step, node: graph.PeekNode, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    seen: list[int] = []

    def visit(at: int, row: Any) -> None:
        node.consumer.accept(row)
        seen.append(at)

    iterate(step.id, table, node.inputs, on_error, visit)
    if len(seen) < table.num_rows:  # some tuples are left out
        table = table.take(pa.array(seen, pa.int64()))
    return table.select(list(step.keep))


def _map(step: Step, node: graph.MapNode, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    if isinstance(node.function, ArrowFunction):
        return map_vectorised(step.id, node, table, on_error).select(list(step.keep))
    out = Emitted(step.id, node.fields, on_error, table.num_rows, by_tuple=True)
    function, flat = node.function, node.flat
    plain = isinstance(function, (PlainMap, PlainFlatMap))
    call = function if plain else function.execute
    # A list is a list of values, except for a single field of arrays: there it is the value.
    array = len(node.fields) == 1 and (node.fields.types[0] or "").startswith("array<")

    def visit(at: int, row: Any) -> None:
        for values in call(row) if flat else (call(row),):
            out.emit(values if isinstance(values, list) and not array else as_values(values))

    iterate(step.id, table, node.inputs, on_error, visit, out=out)
    return _append(step, node.fields.names, table, pa.array(out.parents, pa.int64()), out.columns(table, node.inputs))


def apply_query(
    step: str,
    node: graph.QueryNode,
    table: pa.Table,
    state: Any,
    on_error: TupleErrors,
    keep: tuple[str, ...] | None = None,
) -> pa.Table:
    """Look all rows up in bulk, then call the query function row by row and append what it emits."""
    columns = tuple(node.fields.names) if keep is None else keep
    rows = list(tuples_of(table, node.inputs))
    out = Emitted(step, node.outputs, on_error, table.num_rows, by_tuple=True)
    if rows:
        results = _retrieve(step, node, rows, state)
        execute = node.function.execute
        iterate(step, table, node.inputs, on_error, lambda at, row: execute(row, results[at], out), out=out)
    parents = pa.array(out.parents, pa.int64())
    return _append(Step(step, (), node, columns), node.outputs.names, table, parents, out.columns(table, node.inputs))


@calls_user_code
def _retrieve(step: str, node: graph.QueryNode, rows: list[Any], state: Any) -> list[Any]:
    with failing_at(step):
        found = node.function.batch_retrieve(state, rows)
        results = list(found) if isinstance(found, Iterable) else None
    if results is None or len(results) != len(rows):
        returned = repr(found) if results is None else f"{len(results)} results"
        cause = (
            f"batch_retrieve of {type(node.function).__name__} returned {returned} for {len(rows)} tuples; "
            "it must return one per tuple, in order"
        )
        raise StepFailed(Failure(step, None, cause, retry=False))
    return results


class EmittedRows:
    """What a function emitted for the rows of a table."""

    def __init__(self, step: str, node: graph.EachNode, table: pa.Table) -> None:
        self._step, self._node, self._table = step, node, table
        columns = [python_of(table.column(name)) for name in node.inputs.names]
        self._rows: list[tuple[Any, ...]] = list(zip(*columns, strict=True)) if columns else [()] * table.num_rows
        self._emitted: list[Any] = []
        self._counts: list[int] = []  # by row

    @calls_user_code
    def run(self, on_error: TupleErrors) -> None:
        function: PlainFunction = self._node.function
        emitted, counts, call = self._emitted, self._counts, function.function
        bounds, rows = on_error.bounds, len(self._rows)
        most, most_of_all = bounds.per_tuple, bounds.step_of(rows)
        arguments = self._rows if function.spread else ((self._tuple(row),) for row in self._rows)
        for given in arguments:
            before = len(emitted)
            try:
                if function.yields:
                    emitted.extend(islice(call(*given), min(most, most_of_all - before) + 1))
                else:
                    emitted.append(call(*given))
                if len(emitted) - before > most:
                    bounds.refuse_tuple()
                if len(emitted) > most_of_all:
                    bounds.check_step(most_of_all + 1, rows)
                if on_error.capture and (wrong := self._wrong(before)):  # else all together, see `columns`
                    raise wrong
            except Exception as error:  # noqa: BLE001  user code may raise anything; it becomes data
                # What was emitted before comes first.
                if not on_error.capture:
                    self._check_lengths(emitted)
                first = (on_error.capture and self._wrong(before)) or error
                del emitted[before:]  # a tuple that is left out leaves no rows behind
                on_error(self._step, self._tuple(self._rows[len(counts)]), first, self._table, len(counts))
            counts.append(len(emitted) - before)

    def row(self) -> TridentTuple | None:
        """Return the row whose call has not returned; None if all have by now (another thread asks)."""
        done = len(self._counts)
        return self._tuple(self._rows[done]) if done < len(self._rows) else None

    def parents(self) -> pa.Array:
        return pa.array(np.repeat(np.arange(len(self._counts)), self._counts))

    def columns(self) -> list[pa.Array]:
        """Return what was emitted, a column per field; raise `StepFailed`, which names the row, if something does not fit."""
        fields = self._node.outputs
        if len(fields) == 1 and not any(
            issubclass(type_, (tuple, TridentTuple)) for type_ in set(map(type, self._emitted))
        ):  # no list of values: a tuple is one; anything else is a single value
            return typed_columns(self._step, fields, [self._emitted], self._origin)
        rows = list(map(as_values, self._emitted))
        self._check_lengths(rows)
        return columns_of(self._step, fields, rows, self._origin)

    def _check_lengths(self, emitted: list[Any]) -> None:
        fields = self._node.outputs
        lengths = [len(as_values(each)) for each in emitted]
        if not {len(fields)}.issuperset(lengths):
            at = next(at for at, length in enumerate(lengths) if length != len(fields))
            raise StepFailed(failure_of(self._step, wrong_arity(as_values(emitted[at]), fields), self._origin(at)))

    def _wrong(self, first: int) -> Exception | None:
        try:
            for each in self._emitted[first:]:
                check_row(self._node.outputs, as_values(each))
        except (WrongResult, Misfit) as wrong:
            return wrong
        return None

    def _origin(self, at: int) -> TridentTuple:
        return self._tuple(self._rows[bisect_right(list(accumulate(self._counts)), at)])

    def _tuple(self, row: tuple[Any, ...]) -> TridentTuple:
        return TridentTuple(self._node.inputs, row)


_KERNEL, _ROWS = "Arrow kernel", "row by row"


def step_runs(node: graph.Node) -> str:
    """Return how a step runs. A kernel may also run row by row where a sum could overflow."""
    if any(isinstance(operation, (ArrowFilter, ArrowFunction)) for operation in node.operations):
        return "vectorised"
    if any(isinstance(operation, Expression) for operation in node.operations):
        return _KERNEL
    if isinstance(node, (graph.EachNode, graph.FilterNode)):
        return _KERNEL if has_step_kernel(node) else _ROWS
    if isinstance(node, graph.AggregateNode):
        return _KERNEL if has_aggregate_kernel(node) else _ROWS
    if isinstance(node, (graph.MapNode, graph.PeekNode, graph.MultiReduceNode)):
        return _ROWS
    if isinstance(node, graph.QueryNode):
        return "read in bulk, answered row by row"
    if isinstance(node, graph.RepartitionNode) and node.routing.kind == "custom":
        return _ROWS
    return _KERNEL


def sink_runs(aggregation: graph.Aggregation | None, window: graph.WindowNode | None) -> str:
    """Return how the tuples of a task are aggregated before they go to a state, or to a window."""
    if window is not None:
        aggregation = None if window.config.counts or len(window.late) else window.member
    if aggregation is None or not aggregation.combines:
        return f"every tuple goes to the {'state' if window is None else window.config.what}"
    return f"aggregated in each task first, {_KERNEL if is_native(aggregation.aggregator) else _ROWS}"


def only_kernels(plan: Plan) -> bool:
    """Whether no user code runs before the states, so that the time of a batch depends on its size only."""
    fragments = plan.fragments.values()
    steps = [step.node for fragment in fragments for step in fragment.steps]
    steps += [exchange.node for exchange in plan.exchanges.values()]
    sinks = [sink for fragment in fragments for sink in fragment.sinks]
    aggregators = [sink.aggregation.aggregator for sink in sinks if sink.aggregation is not None]
    return all(step_runs(node) == _KERNEL for node in steps) and all(map(is_native, aggregators))
