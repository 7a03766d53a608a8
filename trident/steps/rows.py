"""The rows of Arrow tables that user code sees, and the columns that its rows become."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import length_hint
from typing import Any

import numpy as np
import pyarrow as pa

from trident.arrow import UNFIT, Misfit, impossible_in, python_of, schema_of, strict_column
from trident.fields import Fields
from trident.naming import counted, shown
from trident.spout.interfaces import TransactionAttempt
from trident.steps.failures import (
    AtStep,
    Failure,
    StepFailed,
    TupleErrors,
    WrongResult,
    calls_user_code,
    failure_of,
    printable_row,
)
from trident.tuples import TridentTuple


@dataclass(frozen=True)
class StepRun:
    """What the steps of a batch need in addition to its tuples.

    `timers`: gathers before which time no window by batch time ends, and no timer is due, in milliseconds since 1970.
    """

    attempt: TransactionAttempt  # the attempt at the batch; aggregators get it
    on_error: TupleErrors  # what to do with a tuple whose operation raises
    states: Callable[[str], Any]  # gives a static state by name
    timers: list[int] = field(default_factory=list)


class Emitted:
    """The collector of one step, whose errors are of the tuple `at` if `by_tuple`, and which got `given` rows."""

    def __init__(
        self, step: str, fields: Fields, on_error: TupleErrors, given: int = 0, by_tuple: bool = False
    ) -> None:
        self.step, self.fields, self._is_strict = step, fields, on_error.capture
        bounds = on_error.bounds
        self.rows: list[Sequence[Any]] = []
        self.parents: list[int] = []
        self.at = 0
        self._width = len(fields)
        self._bounds, self._given, self._by_tuple = bounds, given, by_tuple
        self._look = min(bounds.per_tuple, bounds.step_of(given)) if by_tuple else bounds.step_of(given)

    def emit(self, values: Sequence[Any]) -> None:
        if not isinstance(values, (list, tuple, TridentTuple)) or len(values) != self._width:
            raise wrong_arity(values, self.fields)
        if self._is_strict:
            check_row(self.fields, values)
        if len(self.rows) >= self._look:
            self._check()
        self.rows.append(values)
        self.parents.append(self.at)

    def check_result(self, value: Any) -> Any:
        """Return a value that is to be the row in the end; if tuples are left out, raise if it does not fit."""
        if self._is_strict:
            check_row(self.fields, (value,))
        return value

    def _check(self) -> None:
        count, most = len(self.rows), self._bounds.per_tuple
        if self._by_tuple and count >= most and self.parents[count - most] == self.at:
            self._bounds.refuse_tuple()
        self._bounds.check_step(count + 1, self._given)

    def take_back(self, count: int) -> None:
        """Forget what was emitted beyond `count` rows, because the tuple that emitted it is left out."""
        del self.rows[count:], self.parents[count:]

    def columns(self, table: pa.Table, inputs: Fields) -> list[pa.Array]:
        """Return the emitted values, a column per field; `table` and `inputs`: the tuples, for an error."""
        return columns_of(
            self.step,
            self.fields,
            self.rows,
            lambda at: next(tuples_of(table.slice(self.parents[at], 1), inputs)) if self._by_tuple else None,
        )


def columns_of(
    step: str, fields: Fields, rows: Sequence[Sequence[Any]], of: Callable[[int], object] = lambda at: None
) -> list[pa.Array]:
    """Build typed columns; `StepFailed`, which names field, value and tuple (`of`): a value does not fit its type."""
    return typed_columns(step, fields, list(zip(*rows, strict=True)) if rows else [()] * len(fields), of)


def typed_columns(
    step: str, fields: Fields, columns: Sequence[Sequence[Any]], of: Callable[[int], object]
) -> list[pa.Array]:
    schema, made = schema_of(fields), []
    for name, declared, type_, values in zip(schema.names, fields.types, schema.types, columns, strict=True):
        try:
            made.append(strict_column(name, declared, type_, values))
        except Misfit as misfit:
            raise StepFailed(failure_of(step, misfit, of(misfit.at))) from misfit
        except UNFIT as error:  # texts or bytes beyond 2 GiB, all together
            cause = f"field {name!r} is declared {declared}, but got {counted(len(values), 'value')} ({error})"
            raise StepFailed(Failure(step, None, cause, retry=False)) from error
    return made


def check_row(fields: Fields, values: Sequence[Any]) -> None:
    if len(values) != len(fields):
        raise wrong_arity(values, fields)
    for name, declared, type_, value in zip(fields.names, fields.types, schema_of(fields).types, values, strict=True):
        strict_column(name, declared, type_, (value,))


def wrong_arity(values: object, fields: Fields) -> WrongResult:
    count = len(values) if isinstance(values, (list, tuple, TridentTuple)) else 1
    return WrongResult(
        f"emitted {counted(count, 'value')} {shown(values)} for the "
        f"{counted(len(fields), 'output field')} {list(fields.names)}; emit one value per field, as a tuple or list"
    )


def without_impossible(step: str, fields: Fields, table: pa.Table, on_error: TupleErrors) -> pa.Table:
    """Return a table without the rows that hold what no value may be; each is as one for which user code raised."""
    wrong: dict[int, tuple[str, str]] = {}
    for name in doubted_fields(fields):
        why, which = impossible_in(table.column(name))
        for at in np.flatnonzero(which.to_numpy(zero_copy_only=False)).tolist():
            wrong.setdefault(at, (name, why))
    for at, (name, why) in sorted(wrong.items()):
        row = printable_row(table.slice(at, 1))
        said = f"field {name!r} is declared {fields.type_of(name)}, but got {shown(row[name])}"
        on_error(step, TridentTuple(fields, tuple(row.values())), WrongResult(f"{said} ({why})"), table, at)
    return table.take(np.setdiff1d(np.arange(table.num_rows), list(wrong))) if wrong else table


@lru_cache(maxsize=1024)
def doubted_fields(fields: Fields) -> tuple[str, ...]:
    """Return the fields whose values are, or hold, dates, times or maps."""
    typed = zip(fields.names, fields.types, strict=True)
    return tuple(name for name, type_ in typed if any(one in str(type_) for one in ("date", "timestamp", "map<")))


def tuples_of(table: pa.Table, fields: Fields) -> Iterator[TridentTuple]:
    """Iterate over a table's rows as user code sees them; fields are picked by name, in the order of `fields`."""
    if not len(fields):
        empty = TridentTuple(fields, ())
        yield from (empty for _ in range(table.num_rows))
        return
    for values in zip(*[python_of(table.column(name)) for name in fields.names], strict=True):
        yield TridentTuple(fields, values)


@calls_user_code
def iterate(
    step: str,
    table: pa.Table,
    fields: Fields,
    on_error: TupleErrors,
    visit: Callable[[int, TridentTuple], None],
    port: int = 0,
    out: Emitted | None = None,
) -> None:
    """Call user code for every row of the input `port`; an error names the step and the row, which leaves nothing in `out`."""
    numbers, last, rows = iter(range(table.num_rows)), table.num_rows - 1, [] if out is None else out.rows
    with AtStep(step, lambda: next(tuples_of(table.slice(max(last - length_hint(numbers), 0), 1), fields), None)):
        for at, row in zip(numbers, tuples_of(table, fields), strict=True):
            before = len(rows)
            try:
                if out is not None:
                    out.at = at
                visit(at, row)
            except Exception as error:
                if out is not None:
                    out.take_back(before)
                if isinstance(error, StepFailed):
                    named = shown(row) if error.failure.row is None else error.failure.row
                    raise StepFailed(replace(error.failure, row=named)) from error
                on_error(step, row, error, table, at, port)


def as_values(emitted: Any) -> Sequence[Any]:
    """Return a plain function's result as a list of values: a tuple is one; anything else is the only value."""
    return emitted if isinstance(emitted, (tuple, TridentTuple)) else (emitted,)
