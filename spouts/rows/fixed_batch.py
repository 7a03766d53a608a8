"""FixedBatchSpout: rows given in the program, in batches of a fixed size. For tests, examples and benchmarks.

A definition is `{"start": i, "end": j}`, the numbers of its rows. So a restart continues after the last defined row;
Storm's spout begins again at row 0 with higher txids.

Here also how rows that are in the driver are checked and typed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from trident.alignment import align, fields_of_schema
from trident.arrow import (
    UNFIT,
    Misfit,
    TableEmitter,
    TablePart,
    cut_table,
    ipc_of,
    schema_of,
    table_of,
    table_of_ipc,
)
from trident.errors import BadDataError, ReplayMismatchError, TopologyError
from trident.fields import Fields, FieldsLike, type_of_hint
from trident.setting_types import Limit, check_arguments
from trident.spout.interfaces import BatchCoordinator, Definition, Lag, SpoutType, TransactionAttempt


class DriverRows:
    """A spout whose rows are in the driver. Transactional."""

    spout_type = SpoutType.TRANSACTIONAL
    _fields: Fields

    def get_output_fields(self) -> Fields:
        return self._fields

    def get_emitter(self, conf: Mapping[str, Any]) -> TableEmitter:
        return TableEmitter()


class FixedBatchSpout(DriverRows):
    """Emits the given rows in batches of `max_batch_size`, once, or again and again with `cycle`.

    Parameters
    ----------
    fields
        The names of the values. A type that is not declared is taken from the rows; they must agree on it.
    max_batch_size
        The greatest number of rows of one batch. A batch never holds both the last and the first row of a cycle.
    rows_or_batches
        Each a row (a list or tuple), a list of rows that are tuples, or a `pyarrow.Table`.
    cycle
        Begin again after the last row.
    """

    @check_arguments
    def __init__(self, fields: FieldsLike, max_batch_size: Limit, *rows_or_batches: Any, cycle: bool = False) -> None:
        named, tables = Fields(fields), [one for one in rows_or_batches if isinstance(one, pa.Table)]
        if tables:
            if len(tables) < len(rows_or_batches):
                raise TopologyError("rows and tables cannot be mixed in one FixedBatchSpout; give either")
            if None in named.types:
                if tables[0].num_columns != len(named):  # which this says
                    fit_table(tables[0], Fields(*(f"{name}: string" for name in named.names)))
                own = fields_of_schema(tables[0].schema).types
                named = Fields.of(named.names, [mine or its for mine, its in zip(named.types, own, strict=True)])
            table = pa.concat_tables([fit_table(one, named) for one in tables])
        else:
            rows = list[Any]()
            for one in rows_or_batches:
                is_batch = isinstance(one, list) and one and all(isinstance(row, tuple) for row in one)
                rows.extend(one if is_batch else [one])
            _check_arity(named, rows)
            types = [
                type_ or _infer_type(name, (row[at] for row in rows)) for at, (name, type_) in enumerate(named.pairs)
            ]
            named = Fields.of(named.names, types)
            table = table_of_rows(named, rows)
        self._set(named, [table], max_batch_size, cycle)

    @classmethod
    def of_tables(cls, tables: Iterable[pa.Table], cycle: bool = False) -> FixedBatchSpout:
        """Make each table one batch. Nothing is copied; a table without rows makes no batch."""
        given = list(tables) if isinstance(tables, Iterable) else []
        if not given or not all(isinstance(one, pa.Table) for one in given):
            raise TopologyError("FixedBatchSpout.of_tables takes Arrow tables, at least one, which has the fields")
        fields = fields_of_schema(given[0].schema)
        for number, table in enumerate(given):
            if not table.schema.equals(given[0].schema):
                raise TopologyError(
                    f"table {number} has the schema ({_said(table.schema)}), table 0 has ({_said(given[0].schema)}); "
                    "the batches of a spout have one schema"
                )
        spout = cls(fields, 1, given[0].slice(0, 0), cycle=cycle)
        spout._set(fields, [fit_table(table, fields) for table in given if table.num_rows], None, cycle)
        return spout

    def _set(self, fields: Fields, tables: list[pa.Table], max_batch_size: int | None, cycle: bool) -> None:
        self._fields, self._tables, self._size, self._cycle = fields, tables, max_batch_size, cycle
        self._starts = [0, *accumulate(table.num_rows for table in tables)]

    def set_cycle(self, cycle: bool) -> None:
        """Begin again after the last row, or stop there. Has an effect on topologies started after it."""
        self._cycle = cycle

    def get_coordinator(self, conf: Mapping[str, Any]) -> _FixedBatchCoordinator:
        """Open the driver's side."""
        return _FixedBatchCoordinator(self._tables, self._starts, self._size, self._cycle)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": [ipc_of(table) for table in self._tables]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _tables=[table_of_ipc(data) for data in state["_tables"]])


class _FixedBatchCoordinator(BatchCoordinator):
    """Turns numbers of rows into slices of the tables. A batch is within one table."""

    def __init__(self, tables: list[pa.Table], starts: list[int], size: int | None, cycle: bool) -> None:
        self._tables, self._starts, self._size, self._cycle = tables, starts, size, cycle
        self._rows = starts[-1]
        self._bytes = [int(table.nbytes) for table in tables]

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Return the rows after the batch before; None if there are no more and the rows do not repeat."""
        start = 0 if previous is None else int(previous["end"])
        if start >= self._rows and self._cycle:
            start = 0
        if start >= self._rows:
            return None
        end = self._starts[bisect_right(self._starts, start)]
        return {"start": start, "end": end if self._size is None else min(end, start + self._size)}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[TablePart]:
        """Cut the rows of a definition into views; a few rows make one part, which keeps their order."""
        start, end = int(definition["start"]), int(definition["end"])
        at = bisect_right(self._starts, start) - 1
        if at >= len(self._tables) or end > self._starts[at + 1]:
            raise ReplayMismatchError(
                f"batch {attempt.txid} was defined as the rows {start} to {end} (without the last), but the spout has "
                f"{self._rows} rows now; give it the rows it had when the batch was defined"
            )
        return cut_table(self._tables[at].slice(start - self._starts[at], end - start), parallelism)

    def size(self, definition: Definition) -> int:
        """Say how many bytes the rows of a batch take, as a share of their table."""
        start, end = int(definition["start"]), int(definition["end"])
        at = min(bisect_right(self._starts, start), len(self._tables)) - 1
        return self._bytes[at] * (end - start) // max(1, int(self._tables[at].num_rows))

    def lag(self, definition: Definition) -> Lag | None:
        """Say how many rows come after a batch; None if they begin again after the last."""
        return None if self._cycle else Lag(max(0, self._rows - int(definition["end"])), "records")


def _said(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in schema)


# ---- rows that are in the driver ----------------------------------------------------------------------------------------


def _infer_type(name: str, values: Iterator[Any]) -> str:
    found: dict[str, int] = {}
    for number, value in enumerate(values):
        if value is None or (isinstance(value, (list, tuple, dict)) and not value):
            continue  # says nothing of its type
        type_ = _type_of_value(value)
        if type_ is None:
            raise TopologyError(
                f"the type of field {name!r} cannot be taken from row {number}: {value!r} is a {type(value).__name__}; "
                f"declare it as '{name}: string' or another type"
            )
        found.setdefault(type_, number)
    if not found:
        raise TopologyError(
            f"the type of field {name!r} cannot be taken from the rows: none has a value in it; "
            f"declare it as '{name}: string' or another type"
        )
    if len(found) > 1:
        said = ", ".join(f"{type_} (row {number})" for type_, number in found.items())
        raise TopologyError(
            f"the values of field {name!r} are of several types: {said}; "
            f"make them of one type, or declare it as '{name}: {next(iter(found))}'"
        )
    return next(iter(found))


def _type_of_value(value: Any) -> str | None:
    if isinstance(value, (list, tuple)):
        inner = {_type_of_value(one) for one in value if one is not None}
        only = inner.pop() if len(inner) == 1 else None
        return None if only is None else f"array<{only}>"
    if isinstance(value, dict):
        keys, items = {_type_of_value(k) for k in value}, {_type_of_value(v) for v in value.values() if v is not None}
        key, item = (only.pop() if len(only) == 1 else None for only in (keys, items))
        return None if key is None or item is None else f"map<{key},{item}>"
    return type_of_hint(type(value))


def _check_arity(fields: Fields, rows: Sequence[Any]) -> None:
    """Refuse a row that is not a list or tuple with one value per field."""
    for number, row in enumerate(rows):
        if not isinstance(row, Sequence) or isinstance(row, (str, bytes, bytearray)):
            raise TopologyError(f"row {number} is {row!r}, not a list or tuple of {len(fields)} values ({fields})")
        if len(row) != len(fields.names):
            said = f"row {number} has {len(row)} values"
            raise TopologyError(f"{said}, but there are {len(fields)} fields ({fields}): {row!r}")


def table_of_rows(fields: Fields, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Build a table from rows; a row that does not fit is refused with its number, counted from 0."""
    _check_arity(fields, rows)
    try:
        return table_of(fields, rows)
    except Misfit as misfit:
        said = f"of field {misfit.field!r} is not of type {misfit.declared}: {misfit.reason}"
        raise TopologyError(f"row {misfit.at}: the value {misfit.shown} {said}") from misfit
    except UNFIT as error:
        raise TopologyError(f"the rows do not fit the fields ({fields}): {error}") from error


def fit_table(table: pa.Table, fields: Fields) -> pa.Table:
    """Return a table under the fields' names and types: itself, not copied, where it has them already."""
    if table.num_columns != len(fields):
        said = f"the table has {table.num_columns} columns {table.column_names}"
        raise TopologyError(f"{said}, but there are {len(fields)} fields ({fields})")
    schema = schema_of(fields)
    if table.schema.equals(schema):
        return table
    what = f"a table with columns {table.schema.names}"
    try:
        parts = zip(table.columns, schema, strict=True)
        return pa.Table.from_arrays([align(column, one.type, one.name, what) for column, one in parts], schema=schema)
    except BadDataError as error:
        raise TopologyError(f"{what} cannot be read as ({fields}): {error}") from error
