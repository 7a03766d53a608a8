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

from trident.arrow import Misfit
from trident.graph import EachNode
from trident.operations.adapters import PlainFunction
from trident.runtime.steps.failures import AtStep, StepFailed, TupleErrors, WrongResult, calls_user_code, failure_of
from trident.runtime.steps.rows import as_values, check_row, column_of, columns_of, wrong_arity
from trident.tuples import TridentTuple


def each_plain(step: str, node: EachNode, table: pa.Table, on_error: TupleErrors) -> tuple[pa.Array, list[pa.Array]]:
    """Call the function for every row; return the row that each value list came from, and the new columns."""
    calls = EmittedRows(step, node, table)
    with AtStep(step, calls.row):
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

    @calls_user_code
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
        """Return the number of the row that each value list came from."""
        return pa.array(np.repeat(np.arange(len(self._counts)), self._counts))

    def columns(self) -> list[pa.Array]:
        """Return what was emitted, a column per field; raise `StepFailed`, which names the row, if something does not fit."""
        fields = self._node.outputs
        if len(fields) == 1 and not _has_lists(self._emitted):
            return [column_of(self._step, fields, self._emitted, self._origin)]
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
        """Return what is wrong with what was emitted from the first place on; None if nothing is."""
        try:
            for each in self._emitted[first:]:
                check_row(self._node.outputs, as_values(each))
        except (WrongResult, Misfit) as wrong:
            return wrong
        return None

    def _origin(self, at: int) -> TridentTuple:
        """Return the row that gave a value list."""
        return self._tuple(self._rows[bisect_right(list(accumulate(self._counts)), at)])

    def _tuple(self, row: tuple[Any, ...]) -> TridentTuple:
        return TridentTuple(self._node.inputs, row)


def _has_lists(emitted: list[Any]) -> bool:
    """Whether any emitted object is a list of values: a tuple is one; anything else is a single value."""
    return any(issubclass(type_, (tuple, TridentTuple)) for type_ in set(map(type, emitted)))
