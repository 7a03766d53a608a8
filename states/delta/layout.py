"""The columns of a Delta state: how keys and values become the rows of its change table, and rows become them again.

An index that holds a million keys must be cheap, so keys and values have a *raw* form here, which is what the columns
hold: a raw key is a tuple of plain values (typed columns) or the encoded key (no key types known), a raw value is a
tuple with one entry per value column. Reading and compacting use the raw form only; a value is unpacked when it is asked
for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from trident.arrow import arrow_type
from trident.errors import CorruptValueError
from trident.fields import normal_type
from trident.state.encoding.codec import decode, encode
from trident.state.interfaces import Key, StateConf, StateType
from trident.state.txid import Sentinel
from trident.state.values import OpaqueValue, TransactionalValue

__all__ = ["SENTINEL_COLUMN", "SEQ_COLUMN", "Layout", "RawKey", "RawValue", "Rows"]

SEQ_COLUMN = "_seq"
SENTINEL_COLUMN = "_sentinel"

RawKey = Any
RawValue = tuple[Any, ...]

_VALUE_COLUMNS: dict[StateType, tuple[str, ...]] = {
    StateType.OPAQUE: ("txid", "attempt", "prev", "curr"),
    StateType.TRANSACTIONAL: ("txid", "value"),
    StateType.NON_TRANSACTIONAL: ("value",),
}
_RESERVED = frozenset({"txid", "attempt", "prev", "curr", "value", SEQ_COLUMN, SENTINEL_COLUMN})
_COMMIT = [("incarnation", pa.string()), ("txid", pa.int64()), ("attempt", pa.int64())]
_SENTINEL = pa.struct([*_COMMIT, ("place", pa.string()), ("sealed", pa.bool_())])
# Types whose Python values are the same before they are stored and after they are read back. The others (a naive
# datetime that comes back with a zone, an int as a float, 1.5 as 1.50, a tuple as a list, NaN) go through Arrow once
# when they are put, so that an index from puts and one from the table give equal answers.
_FAITHFUL = frozenset({"string", "boolean", "tinyint", "smallint", "int", "bigint", "binary", "date"})
_NAN = float("nan")


class Rows(NamedTuple):
    """The result of a scan: the latest raw value of each key, the sentinel, the number of rows, and the highest `_seq`."""

    values: dict[RawKey, RawValue]
    sentinel: Sentinel | None
    total: int
    seq: int


class Layout:
    """The columns of one state, derived from its kind and its `StateConf`."""

    def __init__(self, kind: StateType, conf: StateConf) -> None:
        self.kind = kind
        self.typed_keys = bool(conf.key_fields)
        self._key_ddl = tuple(normal_type(ddl) for _, ddl in conf.key_fields)
        self._value_ddl = None if conf.value_type is None else normal_type(conf.value_type)
        self.key_columns = _free_names([name for name, _ in conf.key_fields]) if self.typed_keys else ("key",)
        self.key_types = tuple(arrow_type(ddl) for ddl in self._key_ddl) if self.typed_keys else (pa.binary(),)
        self.value_columns = _VALUE_COLUMNS[kind]
        value = pa.binary() if self._value_ddl is None else arrow_type(self._value_ddl)
        self.value_types = tuple(pa.int64() if name in ("txid", "attempt") else value for name in self.value_columns)
        self.schema = pa.schema(
            [
                *map(pa.field, self.key_columns, self.key_types),
                *map(pa.field, self.value_columns, self.value_types),
                pa.field(SEQ_COLUMN, pa.int64()),
                pa.field(SENTINEL_COLUMN, _SENTINEL),
            ]
        )
        older = self.schema.set(len(self.schema) - 1, pa.field(SENTINEL_COLUMN, pa.struct(_COMMIT)))
        self.schemas = (self.schema, older)
        """The columns of a new table, and those of tables of earlier versions, whose sentinels name no place."""
        self._plain_keys = _FAITHFUL.issuperset(self._key_ddl)
        self._plain_values = self._value_ddl is None or self._value_ddl in _FAITHFUL
        self._nested_values = self._value_ddl is not None and "<" in self._value_ddl
        self.deleted: RawValue = (None,) * len(self.value_columns)
        """The raw value that marks a deleted key; compared by identity before it is stored, by its None after."""

    @property
    def description(self) -> str:
        """One line that is stored with the table; it distinguishes layouts whose columns look alike."""
        keys = "typed" if self.typed_keys else "encoded"
        values = "encoded" if self._value_ddl is None else "typed"
        return f"trident {self.kind.value} state; keys {keys}, values {values}"

    # ---- keys -----------------------------------------------------------------------------------------------------

    def pack_keys(self, keys: Sequence[Key]) -> list[RawKey]:
        """Return the raw form of each key."""
        if not self.typed_keys:
            return [encode(tuple(key)) for key in keys]
        wanted = len(self.key_columns)
        for key in keys:
            if len(key) != wanted:
                columns = list(self.key_columns)
                raise CorruptValueError(f"key {key!r} has {len(key)} parts, the table has key columns {columns}")
        if self._plain_keys or not keys:
            return [tuple(key) for key in keys]
        parts = zip(*keys, strict=True)
        arrays = [self._array(*c) for c in zip(self.key_columns, self.key_types, parts, strict=True)]
        return self._raw_keys(arrays)

    def unpack_key(self, raw: RawKey) -> Key:
        """Return the key of a raw key."""
        key: Key = raw if self.typed_keys else decode(raw)
        return key

    def key_filter(self, raw: Sequence[RawKey]) -> pc.Expression:
        """Return a filter of data rows that keeps at least the rows of these keys."""
        kept = pc.field(SENTINEL_COLUMN).is_null()
        columns = zip(*raw, strict=True) if self.typed_keys else [tuple(raw)]
        for name, type_, column in zip(self.key_columns, self.key_types, columns, strict=True):
            if not pa.types.is_nested(type_) and not any(part != part for part in column):
                there = pa.array({part for part in column if part is not None}, type=type_)
                test = pc.field(name).isin(there)
                kept = kept & (test | pc.field(name).is_null() if None in column else test)
        return kept

    def _raw_keys(self, arrays: Sequence[Any]) -> list[RawKey]:
        columns = [_python(a) for a in arrays]
        if not self.typed_keys:
            return columns[0]
        if not self._plain_keys:
            columns = [[_hashable(part) for part in column] for column in columns]
        return list(zip(*columns, strict=True))

    # ---- values ---------------------------------------------------------------------------------------------------

    def pack_values(self, values: Sequence[Any]) -> list[RawValue]:
        """Return the raw form of each value; later changes of a value's object do not change it."""
        if self.kind is StateType.NON_TRANSACTIONAL:
            rows: list[RawValue] = [(value,) for value in values]
        else:
            rows = [tuple(value) for value in values]
        if self._value_ddl is None:
            if self.kind is StateType.OPAQUE:
                return [(txid, attempt, _encoded(prev), _encoded(curr)) for txid, attempt, prev, curr in rows]
            return [(*head, _encoded(value)) for *head, value in rows]
        if self._plain_values or not rows:
            return rows
        columns = zip(*rows, strict=True)
        return list(
            zip(
                *(_python(self._array(*c)) for c in zip(self.value_columns, self.value_types, columns, strict=True)),
                strict=True,
            )
        )

    def unpack_values(self, raws: Iterable[RawValue | None]) -> list[Any]:
        """Return the value of each raw value, None for None and for deleted keys."""
        unpack, deleted = self._unpacker(), self.deleted
        return [None if raw is None or raw is deleted else unpack(raw) for raw in raws]

    def _bare(self) -> Callable[[Any], Any]:
        if self._value_ddl is None:
            return _decoded
        return copy.deepcopy if self._nested_values else _same

    def _unpacker(self) -> Callable[[RawValue], Any]:
        bare = self._bare()
        if self.kind is StateType.OPAQUE:
            if bare is _same:
                return OpaqueValue._make
            return lambda raw: OpaqueValue(raw[0], raw[1], bare(raw[2]), bare(raw[3]))
        if self.kind is StateType.TRANSACTIONAL:
            return lambda raw: TransactionalValue(raw[0], bare(raw[1]))
        return lambda raw: bare(raw[0])

    # ---- tables ---------------------------------------------------------------------------------------------------

    def table(
        self, keys: Sequence[RawKey], values: Sequence[RawValue], seq: int, sentinel: Sentinel | None
    ) -> pa.Table:
        """Build the rows of one commit; the sentinel, if any, is a row of its own, without key and value."""
        width = len(self.value_columns)
        key_parts = zip(*keys, strict=True) if self.typed_keys else [keys]
        parts: list[Sequence[Any]] = [*key_parts, *zip(*values, strict=True)] if keys else []
        if not parts:
            parts = [()] * (len(self.key_columns) + width)
        extra = [] if sentinel is None else [None]
        names, types = (*self.key_columns, *self.value_columns), (*self.key_types, *self.value_types)
        columns = [self._array(n, t, [*p, *extra]) for n, t, p in zip(names, types, parts, strict=True)]
        rows = len(keys) + len(extra)
        columns.append(pa.array([seq] * rows, pa.int64()))
        marks = [None] * len(keys) + ([] if sentinel is None else [sentinel._asdict()])
        columns.append(pa.array(marks, _SENTINEL))
        return pa.table(columns, schema=self.schema)

    def rows(self, table: pa.Table) -> Rows:
        """Reduce a scan to the latest row of each key and the latest sentinel."""
        total = table.num_rows
        table = _in_order(table)
        is_mark = pc.is_valid(table[SENTINEL_COLUMN])
        marks = table[SENTINEL_COLUMN].filter(is_mark)
        sentinel = Sentinel(**marks[-1].as_py()) if len(marks) else None
        data = table.filter(pc.invert(is_mark)) if len(marks) else table
        keys = self._raw_keys([data[name] for name in self.key_columns])
        values = zip(*(_column(data[name], name) for name in self.value_columns), strict=True)
        seq = table[SEQ_COLUMN][-1].as_py() if total else 0
        latest = dict(zip(keys, values, strict=True))
        if data[self.value_columns[0]].null_count:
            latest = {key: value for key, value in latest.items() if value[0] is not None}
        return Rows(latest, sentinel, total, seq)

    def reduced(self, table: pa.Table, drop_deleted: bool) -> pa.Table:
        """Return the latest row of each key and the latest sentinel, in the order of `_seq`, without leaving Arrow.

        With `drop_deleted` the marks of deleted keys are dropped too, which is right if `table` holds all rows of these keys.
        """
        table = _in_order(table)
        numbers = pa.array(range(table.num_rows), pa.int64())
        is_mark = pc.is_valid(table[SENTINEL_COLUMN]).combine_chunks()
        marks = numbers.filter(is_mark)
        rows = self._last_of_each_key(table.append_column("_row", numbers).filter(pc.invert(is_mark)))
        kept = pa.concat_arrays([rows, marks.slice(max(len(marks) - 1, 0))])
        table = table.take(kept.sort())
        if not drop_deleted:
            return table
        there = pc.or_(pc.is_valid(table[self.value_columns[0]]), pc.is_valid(table[SENTINEL_COLUMN]))
        return table.filter(there)

    def _last_of_each_key(self, data: pa.Table) -> pa.Array:
        if any(pa.types.is_nested(type_) for type_ in self.key_types):  # Arrow groups by no lists, maps and structs
            keys = self._raw_keys([data[name] for name in self.key_columns])
            last = dict(zip(keys, data["_row"].to_pylist(), strict=True))
            return pa.array(last.values(), pa.int64())
        last = data.group_by(list(self.key_columns)).aggregate([("_row", "max")])["_row_max"]
        return last.combine_chunks()

    def _array(self, name: str, type_: pa.DataType, values: Sequence[Any]) -> Any:
        try:
            return pa.array(values, type=type_)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            bad = next((v for v in values if not _fits(v, type_)), None)
            raise CorruptValueError(
                f"cannot write {bad!r} ({type(bad).__name__}) into column {name!r} of type {type_}: {error}. "
                "Declare the type that the values have, or return values of the declared type"
            ) from error


def _free_names(names: Sequence[str]) -> tuple[str, ...]:
    taken = set(names)
    free = []
    for name in names:
        new = name
        # Column names of Delta are equal if they differ in case only.
        while new.lower() in _RESERVED or (new != name and new in taken):
            new = f"key_{new}"
        taken.add(new)
        free.append(new)
    return tuple(free)


def _same(value: Any) -> Any:
    return value


def _encoded(value: Any) -> bytes | None:
    return None if value is None else encode(value)


def _decoded(value: bytes | None) -> Any:
    return None if value is None else decode(value)


def _python(array: Any) -> list[Any]:
    if pa.types.is_nested(array.type):
        return list(array.to_pylist(maps_as_pydicts="strict"))
    return list(array.to_pylist())


def _column(array: Any, name: str) -> list[Any]:
    if name not in ("txid", "attempt"):
        return _python(array)
    # Many rows have few different numbers: one Python object per number saves 60 bytes a key.
    coded = array.combine_chunks().dictionary_encode()
    numbers = [*coded.dictionary.to_pylist(), None]
    return [numbers[at] for at in coded.indices.fill_null(len(numbers) - 1).to_pylist()]


def _hashable(part: Any) -> Any:
    # One NaN object, because a NaN key would not be found otherwise; lists and dicts as tuples, because keys must be hashable.
    if isinstance(part, list):
        return tuple(_hashable(item) for item in part)
    if isinstance(part, dict):
        return tuple((_hashable(name), _hashable(item)) for name, item in part.items())
    return _NAN if part != part else part


def _fits(value: Any, type_: pa.DataType) -> bool:
    try:
        pa.array([value], type=type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def _in_order(table: pa.Table) -> pa.Table:
    seq = table[SEQ_COLUMN].combine_chunks()
    if len(seq) < 2 or pc.all(pc.less_equal(seq.slice(0, len(seq) - 1), seq.slice(1))).as_py():
        return table
    return table.take(pc.sort_indices(seq))
