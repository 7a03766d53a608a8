"""Multi-reducers: user code that sees several streams of a batch together."""

from __future__ import annotations

import pyarrow as pa

from trident.arrow import schema_of
from trident.graph import MultiReduceNode
from trident.runtime.steps.failures import failing_at
from trident.runtime.steps.groups import group_ids
from trident.runtime.steps.key_columns import one_form
from trident.runtime.steps.rows import Emitted, StepRun, iterate, tuples_of
from trident.tuples import TridentTuple

__all__ = ["multi_reduce"]


def multi_reduce(node: MultiReduceNode, streams: list[pa.Table], run: StepRun) -> pa.Table:
    """Run the reducer over one partition: once, or once for each key that occurs, in order of appearance."""
    out = Emitted(node.id, node.fields, run.on_error.bounds, sum(table.num_rows for table in streams))
    with failing_at(node.id):
        folds: _Grouped | _Whole = _Grouped(node, streams, out) if node.grouped else _Whole(node, out)
    for index, table in enumerate(streams):

        def visit(at: int, row: TridentTuple, index: int = index) -> None:
            before = len(out.rows)
            try:
                folds.execute(index, at, row)
            except Exception:
                out.take_back(before)
                raise

        iterate(node.id, table, node.inputs[index], run.on_error, visit, port=index)
    with failing_at(node.id):
        folds.complete()
    return pa.table(out.columns(), schema=schema_of(node.fields))


class _Whole:
    """One state for the whole partition."""

    def __init__(self, node: MultiReduceNode, out: Emitted) -> None:
        self._reducer, self._out = node.reducer, out
        self._state = node.reducer.init(out)

    def execute(self, index: int, at: int, row: TridentTuple) -> None:
        after = self._reducer.execute(self._state, index, row, self._out)
        self._state = self._state if after is None else after

    def complete(self) -> None:
        self._reducer.complete(self._state, self._out)


class _Grouped:
    """A state for each key."""

    def __init__(self, node: MultiReduceNode, streams: list[pa.Table], out: Emitted) -> None:
        self._reducer, self._out = node.reducer, out
        names = node.groups[0].names
        keys = pa.concat_tables(
            [
                table.select(list(group.names)).rename_columns(names)
                for table, group in zip(streams, node.groups, strict=True)
            ]
        )
        keys = one_form(keys, names)
        ids, firsts = group_ids(keys.columns, keys.num_rows)
        self._groups = list(tuples_of(keys.take(pa.array(firsts)), node.groups[0]))
        self._ids, self._starts, rows = ids.tolist(), [], 0
        for table in streams:
            self._starts.append(rows)
            rows += table.num_rows
        self._states = [node.reducer.init(out, group) for group in self._groups]

    def execute(self, index: int, at: int, row: TridentTuple) -> None:
        number = self._ids[self._starts[index] + at]
        after = self._reducer.execute(self._states[number], index, self._groups[number], row, self._out)
        self._states[number] = self._states[number] if after is None else after

    def complete(self) -> None:
        for state, group in zip(self._states, self._groups, strict=True):
            self._reducer.complete(state, group, self._out)
