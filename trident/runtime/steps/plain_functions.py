"""Plain functions in `each`, called in a loop that does little else.

The results of all rows are checked together. Only if a result is wrong, the row that gave it is searched for. The outcome
is the same as with a check after each row.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, islice
from typing import Any

import numpy as np
import pyarrow as pa

from trident.graph import EachNode
from trident.operations.adapters import PlainFunction
from trident.runtime.steps.failures import StepFailed, TupleErrors, calls_user_code, with_row
from trident.runtime.steps.rows import as_values, column_of, columns_of, wrong_arity
from trident.tuples import TridentTuple


def each_plain(step: str, node: EachNode, table: pa.Table, on_error: TupleErrors) -> tuple[pa.Array, list[pa.Array]]:
    """Call the function for every row; return the row that each value list came from, and the new columns."""
    calls = EmittedRows(step, node, table)
    calls.run(on_error)
    return calls.parents(), calls.columns()


class EmittedRows:
    """What a function emitted for the rows of a table."""

    def __init__(self, step: str, node: EachNode, table: pa.Table) -> None:
        self._step, self._node, self._table = step, node, table
        columns = [table.column(name).to_pylist() for name in node.inputs.names]
        self._rows: list[tuple[Any, ...]] = list(zip(*columns, strict=True)) if columns else [()] * table.num_rows
        self._emitted: list[Any] = []
        self._counts: list[int] = []  # by row
        self._checked = 0

    @calls_user_code(lambda local: local["self"].position())
    def run(self, on_error: TupleErrors) -> None:
        """Call the function for each row."""
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
                    bounds.refuse_step(most_of_all + 1, rows)
            except Exception as error:  # noqa: BLE001  user code may raise anything; it becomes data
                self._check()  # what was emitted before comes first
                self._checked = before
                del emitted[before:]  # a tuple that is left out leaves no rows behind
                on_error(self._step, self._tuple(self._rows[len(counts)]), error, self._table, len(counts))
            counts.append(len(emitted) - before)

    def position(self) -> tuple[str, TridentTuple | None]:
        """Return the step and the row whose call has not returned; None for the row if it has by now (another thread asks)."""
        done = len(self._counts)
        return self._step, self._tuple(self._rows[done]) if done < len(self._rows) else None

    def parents(self) -> pa.Array:
        """Return the number of the row that each value list came from."""
        return pa.array(np.repeat(np.arange(len(self._counts)), self._counts))

    def columns(self) -> list[pa.Array]:
        """Return what was emitted, a column per field."""
        self._check()
        fields = self._node.outputs
        if len(fields) == 1 and not _has_lists(self._emitted):
            return [column_of(self._step, fields, self._emitted)]
        return columns_of(self._step, fields, list(map(as_values, self._emitted)))

    def _check(self) -> None:
        """Raise `StepFailed`, which names the row, if an emit since the last check lacks a value per field."""
        first, width = self._checked, len(self._node.outputs)
        new = self._emitted[first:]
        if width == 1 and not _has_lists(new):
            return
        lengths = [len(as_values(each)) for each in new]
        if set(lengths) <= {width}:
            return
        at = next(at for at, length in enumerate(lengths) if length != width)
        row = bisect_right(list(accumulate(self._counts)), first + at)
        failure = wrong_arity(self._step, as_values(new[at]), self._node.outputs)
        raise StepFailed(with_row(failure, self._tuple(self._rows[row])))

    def _tuple(self, row: tuple[Any, ...]) -> TridentTuple:
        return TridentTuple(self._node.inputs, row)


def _has_lists(emitted: list[Any]) -> bool:
    """Whether any emitted object is a list of values: a tuple is one; anything else is a single value."""
    return any(issubclass(type_, (tuple, TridentTuple)) for type_ in set(map(type, emitted)))
