"""Rows that are in the driver, how they are checked and typed: those given in the program, and those that a test feeds by hand.

A definition of FixedBatchSpout is `{"start": i, "end": j}`, the numbers of its rows. So a restart continues after the last
defined row; Storm's spout begins again at row 0 with higher txids.
"""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa

from trident.alignment import align, fields_of_schema
from trident.arrow import UNFIT, Misfit, TableEmitter, TablePart, cut_table, ipc_of, schema_of, table_of, table_of_ipc
from trident.errors import BadDataError, ReplayMismatchError, SpoutError, TopologyError
from trident.fields import Fields, FieldsLike, type_of_hint
from trident.setting_types import Limit, check_arguments
from trident.spout.interfaces import BatchCoordinator, Definition, Lag, OnNewLog, SpoutType, TransactionAttempt

# A feeder is pickled for the workers, and maybe inside the driver. All its copies find their one object here.
_all_feeds: WeakValueDictionary[str, _Feeds] = WeakValueDictionary()


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
                named = _with_types(named, tables[0])
            table = pa.concat_tables([fit_table(one, named) for one in tables])
        else:
            rows = [row for one in rows_or_batches for row in (one if _is_batch(one) else [one])]
            _check_arity(named, rows)
            pairs = enumerate(named.pairs)
            types = [type_ or _infer_type(name, (row[at] for row in rows)) for at, (name, type_) in pairs]
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
        start = 0 if previous is None else int(previous["end"])
        if start >= self._rows and self._cycle:
            start = 0
        if start >= self._rows:
            return None
        end = self._starts[bisect_right(self._starts, start)]
        return {"start": start, "end": end if self._size is None else min(end, start + self._size)}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[TablePart]:
        start, end = int(definition["start"]), int(definition["end"])
        at = bisect_right(self._starts, start) - 1
        if at >= len(self._tables) or end > self._starts[at + 1]:
            raise ReplayMismatchError(
                f"batch {attempt.txid} was defined as the rows {start} to {end} (without the last), but the spout has "
                f"{self._rows} rows now; give it the rows it had when the batch was defined"
            )
        return cut_table(self._tables[at].slice(start - self._starts[at], end - start), parallelism)

    def size(self, definition: Definition) -> int:
        start, end = int(definition["start"]), int(definition["end"])
        at = min(bisect_right(self._starts, start), len(self._tables)) - 1
        return self._bytes[at] * (end - start) // max(1, int(self._tables[at].num_rows))

    def lag(self, definition: Definition) -> Lag | None:
        return None if self._cycle else Lag(max(0, self._rows - int(definition["end"])), "records")


def _is_batch(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(isinstance(row, tuple) for row in given)


def _with_types(fields: Fields, table: pa.Table) -> Fields:
    if table.num_columns != len(fields):  # which this says
        fit_table(table, Fields(*(f"{name}: string" for name in fields.names)))
    own = fields_of_schema(table.schema).types
    return Fields.of(fields.names, [mine or its for mine, its in zip(fields.types, own, strict=True)])


def _said(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in schema)


class FeederBatchSpout(DriverRows):
    """Each `feed` is one batch. Transactional while the process runs; its rows are lost with it.

    Copies of the spout within the process (by pickle or copy) are the same feeder. In another process it can be held,
    but neither fed nor started.

    Parameters
    ----------
    fields
        The names of the values with their types, as in `"word: string, n: bigint"`.
    """

    on_new_log: OnNewLog = "behind"

    def __init__(self, *fields: FieldsLike) -> None:
        self._fields = Fields(*fields)
        schema_of(self._fields)  # raises for a field without a type
        self._id = uuid.uuid4().hex
        self._feeds: _Feeds | None = _Feeds(self._id)
        _all_feeds[self._id] = self._feeds

    def feed(self, rows: Sequence[Sequence[Any]] | pa.Table, timeout_s: float = 30) -> None:
        """Queue the rows of the next batch and wait until it is committed.

        Raises
        ------
        SpoutError
            Not committed within `timeout_s` seconds, or the topology stopped before. The rows stay queued: if the
            topology runs on, or a topology is started with this spout, they are still committed once.
        """
        feeds = self._own()
        number = self.feed_nowait(rows)
        feeds.wait(number, timeout_s)

    def feed_nowait(self, rows: Sequence[Sequence[Any]] | pa.Table) -> int:
        """Queue the rows of a batch and return at once, with the number of the feed (0, 1, 2 …)."""
        table = fit_table(rows, self._fields) if isinstance(rows, pa.Table) else table_of_rows(self._fields, rows)
        return self._own().put(table)

    def get_coordinator(self, conf: Mapping[str, Any]) -> _Feeds:
        """Open the driver's side."""
        return self._own()

    def _own(self) -> _Feeds:
        if self._feeds is None:
            raise SpoutError(
                f"the feeder {self._id} was made in another process; a FeederBatchSpout is fed and started in the "
                "process that made it"
            )
        return self._feeds

    def __getstate__(self) -> dict[str, Any]:
        return {"_fields": self._fields, "_id": self._id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _feeds=_all_feeds.get(state["_id"]))


class _Feeds(BatchCoordinator):
    """What was fed, numbered and committed in order: what feeders of one id share, and the driver's side of all of them.

    Definitions are `{"feeder": id, "feed": number}`.
    """

    def __init__(self, id_: str) -> None:
        self.id = id_
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._tables: dict[int, pa.Table] = {}
        self._fed = 0
        self._committed = -1
        self._closings = 0
        self._batches: dict[int, int] = {}

    def put(self, table: pa.Table) -> int:
        with self._lock:
            number, self._fed = self._fed, self._fed + 1
            self._tables[number] = table
            return number

    def wait(self, number: int, timeout_s: float) -> None:
        with self._lock:
            closings, deadline = self._closings, monotonic() + timeout_s
            while self._committed < number:
                txid = self._batches.get(number)
                where = "no batch has it yet" if txid is None else f"it is batch {txid}"
                if self._closings != closings:
                    raise SpoutError(
                        f"feed {number} was not committed: the topology stopped before ({where}). "
                        "The rows stay queued for the next start of the topology"
                    )
                left = deadline - monotonic()
                if left <= 0:
                    raise SpoutError(
                        f"feed {number} was not committed within {timeout_s:g} s ({where}). "
                        "Is the topology started, and has it failed? The rows stay queued"
                    )
                self._changed.wait(min(left, threading.TIMEOUT_MAX))  # which `math.inf` is beyond

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        """Give the next feed, None if there is none yet. A log of an earlier process is continued with new feeds."""
        before = None if previous is None else self._number(previous)
        with self._lock:
            number = (self._committed if before is None else before) + 1
            if number >= self._fed:
                return None
            self._batches[number] = txid
        return {"feeder": self.id, "feed": number}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[TablePart]:
        table = self._table(definition)
        if table is None:
            raise ReplayMismatchError(
                f"batch {attempt.txid} is feed {definition['feed']} of the feeder {definition['feeder']}, which this process "
                f"does not have (its feeder is {self.id}); what was fed is lost with its process. "
                "Start with a new log_dir"
            )
        return cut_table(table, parallelism)

    def size(self, definition: Definition) -> int | None:
        table = self._table(definition)
        return None if table is None else int(table.nbytes)

    def lag(self, definition: Definition) -> Lag | None:
        number = self._number(definition)
        with self._lock:
            return None if number is None else Lag(self._fed - number - 1, "batches")

    def success(self, txid: int, definition: Definition) -> None:
        number = self._number(definition)
        if number is not None:
            with self._lock:
                for done in range(self._committed + 1, number + 1):
                    self._tables.pop(done, None)
                    self._batches.pop(done, None)
                self._committed = max(self._committed, number)
                self._changed.notify_all()

    def close(self) -> None:
        with self._lock:
            self._closings += 1
            self._changed.notify_all()

    def _number(self, definition: Definition) -> int | None:
        return int(definition["feed"]) if definition["feeder"] == self.id else None

    def _table(self, definition: Definition) -> pa.Table | None:
        number = self._number(definition)
        with self._lock:
            return None if number is None else self._tables.get(number)


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
