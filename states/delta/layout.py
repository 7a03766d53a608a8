"""The columns of a Delta state's change table: how keys and values become its rows, and rows become them again.

In between is their raw form: what the columns hold, as Python objects. A raw key is a tuple of plain values (typed columns)
or the encoded key, a raw value is a tuple with one entry per value column; it is unpacked when it is asked for, so an index
that holds a million keys is cheap. Opaque numbers go between rows and an `OpaqueTable` without an object per value.
"""

import copy
import datetime as dt
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import array_of, arrow_type, one_array, python_of
from trident.errors import ConfigError, CorruptValueError
from trident.fields import normal_type
from trident.state.encoding.codec import decode, encode, encode_tuples
from trident.state.encoding.equal_keys import canonical, canonical_keys
from trident.state.interfaces import Key, StateConf, StateType
from trident.state.number_columns import NumberColumn, NumberForm
from trident.state.number_table import NumberTable
from trident.state.table import OpaqueTable, as_list
from trident.state.txid import Sentinel
from trident.state.values import OpaqueValue, TransactionalValue
from trident.types import class_of

SEQ_COLUMN = "_seq"
SENTINEL_COLUMN = "_sentinel"

RawKey = Any
RawValue = tuple[Any, ...]
Puts = dict[RawKey, RawValue] | OpaqueTable
"""What a commit writes: a raw value for each raw key, or numbers that were combined with what was found."""

VALUE_COLUMNS: dict[StateType, tuple[str, ...]] = {
    StateType.OPAQUE: ("txid", "attempt", "prev", "curr"),
    StateType.TRANSACTIONAL: ("txid", "value"),
    StateType.NON_TRANSACTIONAL: ("value",),
}
HASH_COLUMN, ATTEMPT_COLUMN = "_trident_hash", "_trident_attempt"
"""What the files of a base have beside the columns of their table."""
_RESERVED = frozenset({"txid", "attempt", "prev", "curr", "value", SEQ_COLUMN, SENTINEL_COLUMN, HASH_COLUMN})
_COMMIT = [("incarnation", pa.string()), ("txid", pa.int64()), ("attempt", pa.int64())]
_SENTINEL = pa.struct([*_COMMIT, ("place", pa.string()), ("sealed", pa.bool_())])
# Classes of types whose Python values are the same before they are stored and after they are read back. The others (a naive
# datetime that comes back with a zone, an int as a float, 1.5 as 1.50, a tuple as a list, NaN) go through Arrow once
# when they are put, so that an index from puts and one from the table give equal answers.
_FAITHFUL = {str, bool, int, bytes, dt.date}


def _check_types(state: str, schema: pa.Schema) -> None:
    for column in schema:
        if wrong := _misfit(column.type):
            raise ConfigError(f"Delta cannot keep state {state!r}: the type of its column {column.name} has {wrong}")


class DeltaLayout:
    """The columns of one state, derived from its kind and its `StateConf`; `data_schema` has those of keys and values alone."""

    def __init__(self, kind: StateType, conf: StateConf) -> None:
        self.kind = kind
        self.typed_keys = bool(conf.key_fields)
        key_ddl = tuple(normal_type(ddl) for _, ddl in conf.key_fields)
        self._value_ddl = None if conf.value_type is None else normal_type(conf.value_type)
        self.key_columns = free_names([name for name, _ in conf.key_fields], _RESERVED) if self.typed_keys else ("key",)
        self.key_types = tuple(map(arrow_type, key_ddl)) or (pa.binary(),)
        self.value_columns = VALUE_COLUMNS[kind]
        value = pa.binary() if self._value_ddl is None else arrow_type(self._value_ddl)
        self.value_types = tuple(pa.int64() if name in ("txid", "attempt") else value for name in self.value_columns)
        data = map(pa.field, [*self.key_columns, *self.value_columns], [*self.key_types, *self.value_types])
        self.data_schema = pa.schema(list(data))
        _check_types(conf.state, self.data_schema)
        own = pa.field(SEQ_COLUMN, pa.int64()), pa.field(SENTINEL_COLUMN, _SENTINEL)
        self.schema = pa.schema([*self.data_schema, *own])
        self._plain_keys = _FAITHFUL.issuperset(map(class_of, key_ddl))
        self._plain_values = self._value_ddl is None or class_of(self._value_ddl) in _FAITHFUL
        self._nested_values = "<" in str(self._value_ddl)
        self.form = NumberForm.of(self._value_ddl) if kind is StateType.OPAQUE else None
        self.takes_columns = self._plain_keys and self.typed_keys and self.form is not None
        self.deleted: RawValue = (None,) * len(self.value_columns)
        """The raw value that marks a deleted key; compared by identity before it is stored, by its None after."""

    @property
    def description(self) -> str:
        """One line that is stored with the table; it distinguishes layouts whose columns look alike."""
        keys = "typed" if self.typed_keys else "encoded"
        values = "encoded" if self._value_ddl is None else "typed"
        return f"trident {self.kind.value} state; keys {keys}, values {values}"

    def pack_keys(self, keys: Sequence[Key]) -> list[RawKey]:
        if not self.typed_keys:
            return list(encode_tuples(canonical_keys(keys)))
        wanted = len(self.key_columns)
        for key in keys:
            if len(key) != wanted:
                columns = list(self.key_columns)
                raise CorruptValueError(f"key {key!r} has {len(key)} parts, the table has key columns {columns}")
        if self._plain_keys or not keys:
            return [tuple(key) for key in keys]
        return self.raw_keys(self.key_table(self.key_parts(keys)).columns)

    def unpack_key(self, raw: RawKey) -> Key:
        key: Key = raw if self.typed_keys else decode(raw)
        return key

    def raw_keys(self, arrays: Sequence[Any]) -> list[RawKey]:
        """Return the raw key of each row, given the key columns."""
        columns = [python_of(a) for a in arrays]
        if not self.typed_keys:
            return columns[0]
        if not self._plain_keys:
            columns = [[hashable(part) for part in column] for column in columns]
        return list(zip(*columns, strict=True))

    def key_parts(self, raw: Sequence[RawKey]) -> list[Sequence[Any]]:
        if not raw:
            return [()] * len(self.key_columns)
        return list(zip(*raw, strict=True)) if self.typed_keys else [raw]

    def key_table(self, parts: Sequence[Sequence[Any] | pa.Array]) -> pa.Table:
        """Return the key columns, each given as a sequence or an Arrow array."""
        columns = [
            part.cast(type_) if isinstance(part, pa.Array) else array_of(name, type_, part)
            for name, type_, part in zip(self.key_columns, self.key_types, parts, strict=True)
        ]
        return pa.table(columns, names=list(self.key_columns))

    def key_filter(self, raw: Sequence[RawKey]) -> pc.Expression:
        """Return a filter of data rows that keeps at least the rows of these keys."""
        kept = pc.field(SENTINEL_COLUMN).is_null()
        for name, type_, column in zip(self.key_columns, self.key_types, self.key_parts(raw), strict=True):
            if not pa.types.is_nested(type_) and not any(part != part for part in column):
                there = array_of(name, type_, list({part for part in column if part is not None}))
                test = pc.field(name).isin(there)
                kept = kept & (test | pc.field(name).is_null() if None in column else test)
        return kept

    def pack_values(self, values: Sequence[Any]) -> list[RawValue]:
        """Return the raw form of each value; later changes of a value's object do not change it."""
        if self.takes_columns and self._plain_values:
            return list(values)  # as they are, because the columns of an index take nothing else
        is_bare = self.kind is StateType.NON_TRANSACTIONAL
        rows: list[RawValue] = [(value,) for value in values] if is_bare else list(map(tuple, values))
        if self._value_ddl is None:
            ints, packed = self.value_types.count(pa.int64()), _unless_none(encode)
            return [(*row[:ints], *map(packed, row[ints:])) for row in rows]
        if self._plain_values or not rows:
            return rows
        raw = zip(*map(python_of, self._value_arrays(rows)), strict=True)
        return list(map(OpaqueValue._make, raw)) if self.takes_columns else list(raw)

    def unpack_values(self, raws: Iterable[RawValue | None]) -> list[Any]:
        """Return the value of each raw value, None for None and for deleted keys."""
        unpack, deleted = self._unpacker(), self.deleted
        return [None if raw is None or raw is deleted else unpack(raw) for raw in raws]

    def _unpacker(self) -> Callable[[RawValue], Any]:
        bare: Callable[[Any], Any] = copy.deepcopy if self._nested_values else _same
        bare = _unless_none(decode) if self._value_ddl is None else bare
        if self.kind is StateType.OPAQUE:
            if bare is _same:
                return OpaqueValue._make
            return lambda raw: OpaqueValue(raw[0], raw[1], bare(raw[2]), bare(raw[3]))
        if self.kind is StateType.TRANSACTIONAL:
            return lambda raw: TransactionalValue(raw[0], bare(raw[1]))
        return lambda raw: bare(raw[0])

    def _value_arrays(self, rows: Sequence[RawValue]) -> list[pa.Array]:
        parts: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(self.value_columns)
        return [array_of(*column) for column in zip(self.value_columns, self.value_types, parts, strict=True)]

    def table(self, puts: Puts, seq: int, sentinel: Sentinel | None) -> pa.Table:
        """Build the rows of one commit; the sentinel, if any, is a row of its own, without key and value."""
        if isinstance(puts, OpaqueTable):
            names = puts.place[0]  # as of `KeyColumns.names`
            parts = [names] if len(self.key_columns) == 1 else list(zip(*names, strict=True))
            values = [*map(pa.array, puts.columns)]
        else:
            parts, values = self.key_parts(list(puts)), self._value_arrays(list(puts.values()))
        keys, count = self.key_table(parts), len(values[0])
        own = [pa.array(np.full(count, seq, np.int64)), pa.nulls(count, _SENTINEL)]
        rows = pa.table([*keys.columns, *values, *own], schema=self.schema)
        if sentinel is None:
            return rows
        mark = {SEQ_COLUMN: seq, SENTINEL_COLUMN: sentinel._asdict()}
        return pa.concat_tables([rows, pa.Table.from_pylist([mark], self.schema)])

    def raw_rows(self, new: OpaqueTable) -> dict[RawKey, Any]:
        names = as_list(new.place[0])
        return dict(zip(zip(names, strict=True) if len(self.key_columns) == 1 else names, new, strict=True))

    def end(self, table: pa.Table) -> tuple[Sentinel | None, int]:
        """Return the latest sentinel of a scan in order, and the highest `_seq`."""
        marks = table[SENTINEL_COLUMN].drop_null()
        sentinel = Sentinel(**marks[-1].as_py()) if len(marks) else None
        return sentinel, table[SEQ_COLUMN][-1].as_py() if table.num_rows else 0

    def latest(self, table: pa.Table, with_deleted: bool = False) -> dict[RawKey, RawValue]:
        """Reduce a scan in order to the latest raw value of each key, with or without deleted keys."""
        data = table.filter(pc.is_null(table[SENTINEL_COLUMN]))
        keys = self.raw_keys([data[name] for name in self.key_columns])
        values = zip(*(_column(data[name], name) for name in self.value_columns), strict=True)
        latest = dict(zip(keys, values, strict=True))
        if data[self.value_columns[0]].null_count and not with_deleted:
            latest = {key: value for key, value in latest.items() if value[0] is not None}
        return latest

    def number_table(self, scan: pa.Table) -> NumberTable:
        """Reduce a scan in order to the latest numbers of each key."""
        rows = self.latest_rows(scan, drop_deleted=True)
        rows = rows.filter(pc.is_null(rows[SENTINEL_COLUMN]))
        parts = [python_of(rows[name]) for name in self.key_columns]
        assert self.form is not None, self
        table = NumberTable(len(parts), self.form)
        table.fill(parts[0] if len(parts) == 1 else list(zip(*parts, strict=True)), self.numbers_of(rows))
        return table

    def numbers_of(self, rows: pa.Table) -> OpaqueTable:
        """Return the numbers of rows, or their structs, one for each."""
        assert self.form is not None, self
        heads, sides = (
            map(one_array, rows.select(some).columns) for some in (self.value_columns[:2], self.value_columns[2:])
        )
        values = (NumberColumn.of(self.form, side) for side in sides)
        return OpaqueTable((*(head.to_numpy() for head in heads), *values))

    def latest_rows(self, table: pa.Table, drop_deleted: bool) -> pa.Table:
        """Return the latest row of each key and the latest sentinel, in the order of `_seq`, without leaving Arrow.

        `drop_deleted`: without the marks of deleted keys, which is right if `table` holds all rows of these keys.
        """
        table = in_order(table)
        numbers = pa.array(range(table.num_rows), pa.int64())
        is_mark = pc.is_valid(table[SENTINEL_COLUMN]).combine_chunks()
        marks = numbers.filter(is_mark)
        rows = self._last_of_each_key(table.filter(pc.invert(is_mark)), numbers.filter(pc.invert(is_mark)))
        kept = pa.concat_arrays([rows, marks.slice(max(len(marks) - 1, 0))])
        table = table.take(kept.sort())
        if not drop_deleted:
            return table
        there = pc.or_(pc.is_valid(table[self.value_columns[0]]), pc.is_valid(table[SENTINEL_COLUMN]))
        return table.filter(there)

    def _last_of_each_key(self, data: pa.Table, numbers: pa.Array) -> pa.Array:
        if any(pa.types.is_nested(type_) for type_ in self.key_types):  # Arrow groups by no lists, maps and structs
            keys = self.raw_keys([data[name] for name in self.key_columns])
            last = dict(zip(keys, numbers.to_pylist(), strict=True))
            return pa.array(last.values(), pa.int64())
        keys = [str(at) for at in range(len(self.key_columns))]  # a field of the user's may have any other name
        numbered = pa.table([*map(data.column, self.key_columns), numbers], [*keys, "row"])
        return numbered.group_by(keys).aggregate([("row", "max")])["row_max"].combine_chunks()


def in_order(table: pa.Table) -> pa.Table:
    """Return the rows of a scan in the order of `_seq`."""
    seq = table[SEQ_COLUMN].combine_chunks()
    if len(seq) < 2 or pc.all(pc.less_equal(seq.slice(0, len(seq) - 1), seq.slice(1))).as_py():
        return table
    return table.take(pc.sort_indices(seq))


def _column(array: Any, name: str) -> list[Any]:
    if name not in ("txid", "attempt"):
        return python_of(array)
    # Many rows have few different numbers: one Python object per number saves 60 bytes a key.
    coded = array.combine_chunks().dictionary_encode()
    numbers = [*coded.dictionary.to_pylist(), None]
    return [numbers[at] for at in coded.indices.fill_null(len(numbers) - 1).to_pylist()]


def _misfit(type_: pa.DataType, in_map: bool = False) -> str | None:
    """Say what delta-rs refuses in a type, in each batch and without a name; None: nothing."""
    if in_map and pa.types.is_timestamp(type_) and type_.tz is None:
        return "a timestamp_ntz inside of a map; declare it as a timestamp"
    inner = [type_.field(at) for at in range(type_.num_fields)] if pa.types.is_nested(type_) else []
    names = [one.name for one in inner]
    if len({name.lower() for name in names}) < len(names):
        return f"fields that differ in case only, of {', '.join(names)}; give them other names"
    return next(filter(None, (_misfit(one.type, in_map or pa.types.is_map(type_)) for one in inner)), None)


def free_names(names: Sequence[str], reserved: Collection[str]) -> tuple[str, ...]:
    """Return names for columns, none of them reserved; a name that is becomes another one."""
    taken = {name.lower() for name in names}
    free: dict[str, str] = {}  # by what Delta compares: columns are one if they differ in case only
    for name in names:
        new = name
        while new.lower() in reserved or new.lower() in free or (new != name and new.lower() in taken):
            new = f"key_{new}"
        free[new.lower()] = new
    return tuple(free.values())


def _same(value: Any) -> Any:
    return value


def _unless_none(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else function(value)


def hashable(part: Any) -> Any:
    """Return a part of a key: floats in their one form, as a NaN would not be found otherwise; lists and dicts as tuples."""
    if isinstance(part, list):
        return tuple(hashable(item) for item in part)
    if isinstance(part, dict):
        return tuple((hashable(name), hashable(item)) for name, item in part.items())
    return canonical(part) if type(part) is float else part
