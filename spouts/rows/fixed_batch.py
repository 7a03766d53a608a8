"""FixedBatchSpout: rows given in the program, in batches of a fixed size. For tests, examples and benchmarks.

A definition is `{"start": i, "end": j}`, the numbers of its rows. So a restart continues after the last defined row;
Storm's spout begins again at row 0 with higher txids.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from spouts.rows.driver_rows import check_arity, fitted, table_of_rows, typed_fields
from trident.alignment import fields_of_schema
from trident.arrow import TableEmitter, TablePart, cut_table, ipc_of, table_of_ipc
from trident.errors import ReplayMismatchError, TopologyError
from trident.fields import Fields, FieldsLike
from trident.spout.interfaces import BatchCoordinator, Definition, Lag, SpoutType, TransactionAttempt


class FixedBatchSpout:
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

    spout_type = SpoutType.TRANSACTIONAL

    def __init__(self, fields: FieldsLike, max_batch_size: int, *rows_or_batches: Any, cycle: bool = False) -> None:
        if max_batch_size < 1:
            raise ValueError(f"max_batch_size is {max_batch_size}; a batch has at least 1 row")
        named, tables = Fields(fields), [one for one in rows_or_batches if isinstance(one, pa.Table)]
        if tables:
            if len(tables) < len(rows_or_batches):
                raise TopologyError("rows and tables cannot be mixed in one FixedBatchSpout; give either")
            if None in named.types:
                named = _with_types(named, tables[0])
            table = pa.concat_tables([fitted(one, named) for one in tables])
        else:
            rows = _flat(rows_or_batches)
            check_arity(named, rows)
            named = typed_fields(named, rows)
            table = table_of_rows(named, rows)
        self._set(named, [table], max_batch_size, cycle)

    @classmethod
    def of_tables(cls, tables: Iterable[pa.Table], cycle: bool = False) -> FixedBatchSpout:
        """Make each table one batch. Nothing is copied; a table without rows makes no batch."""
        given = list(tables)
        if not given:
            raise TopologyError("FixedBatchSpout.of_tables was given no table; the fields are unknown without one")
        fields = fields_of_schema(given[0].schema)
        for number, table in enumerate(given):
            if not table.schema.equals(given[0].schema):
                raise TopologyError(
                    f"table {number} has the schema ({_said(table.schema)}), table 0 has ({_said(given[0].schema)}); "
                    "the batches of a spout have one schema"
                )
        spout = cls(fields, 1, given[0].slice(0, 0), cycle=cycle)
        spout._set(fields, [fitted(table, fields) for table in given if table.num_rows], None, cycle)
        return spout

    def _set(self, fields: Fields, tables: list[pa.Table], max_batch_size: int | None, cycle: bool) -> None:
        self._fields, self._tables, self._size, self._cycle = fields, tables, max_batch_size, cycle
        self._starts = [0, *accumulate(table.num_rows for table in tables)]

    def set_cycle(self, cycle: bool) -> None:
        """Begin again after the last row, or stop there. Has an effect on topologies started after it."""
        self._cycle = cycle

    def get_output_fields(self) -> Fields:
        return self._fields

    def get_coordinator(self, conf: Mapping[str, Any]) -> _FixedBatchCoordinator:
        """Open the driver's side."""
        return _FixedBatchCoordinator(self._tables, self._starts, self._size, self._cycle)

    def get_emitter(self, conf: Mapping[str, Any]) -> TableEmitter:
        """Return the worker's side, which carries no rows: the parts do."""
        return TableEmitter()

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


def _flat(given: Sequence[Any]) -> list[Any]:
    rows: list[Any] = []
    for one in given:
        if isinstance(one, list) and one and all(isinstance(row, tuple) for row in one):
            rows.extend(one)
        else:
            rows.append(one)
    return rows


def _with_types(fields: Fields, table: pa.Table) -> Fields:
    if table.num_columns != len(fields):
        fitted(
            table, Fields(*(f"{name}: string" for name in fields.names))
        )  # raises, because the number of columns differs
    own = fields_of_schema(table.schema).types
    return Fields.of(fields.names, [mine or its for mine, its in zip(fields.types, own, strict=True)])


def _said(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in schema)
