"""The raw form of keys and values of a Delta state: what its columns hold, as Python objects.

A raw key is a tuple of plain values (typed columns) or the encoded key (no key types known), a raw value is a tuple with
one entry per value column. Reading and compacting use the raw form only; a value is unpacked when it is asked for. So an
index that holds a million keys is cheap.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from trident.arrow import array_of, arrow_type, python_of
from trident.errors import CorruptValueError
from trident.fields import normal_type
from trident.state.columns.number_columns import NumberForm
from trident.state.encoding.codec import decode, encode, encode_tuples
from trident.state.encoding.equal_keys import canonical, canonical_keys
from trident.state.interfaces import Key, StateConf, StateType
from trident.state.values import OpaqueValue, TransactionalValue
from trident.types import class_of

SEQ_COLUMN = "_seq"
SENTINEL_COLUMN = "_sentinel"

RawKey = Any
RawValue = tuple[Any, ...]

VALUE_COLUMNS: dict[StateType, tuple[str, ...]] = {
    StateType.OPAQUE: ("txid", "attempt", "prev", "curr"),
    StateType.TRANSACTIONAL: ("txid", "value"),
    StateType.NON_TRANSACTIONAL: ("value",),
}
_RESERVED = frozenset({"txid", "attempt", "prev", "curr", "value", SEQ_COLUMN, SENTINEL_COLUMN})
# Classes of types whose Python values are the same before they are stored and after they are read back. The others (a naive
# datetime that comes back with a zone, an int as a float, 1.5 as 1.50, a tuple as a list, NaN) go through Arrow once
# when they are put, so that an index from puts and one from the table give equal answers.
_FAITHFUL = {str, bool, int, bytes, dt.date}


class RawForms:
    """The names and types of the columns of keys and values, and the raw forms that go with them.

    Attributes
    ----------
    form
        Of values that are numbers, or structs of them.
    takes_columns
        Whether the values are opaque numbers, or structs of them, so that commits may come as columns.
    """

    def __init__(self, kind: StateType, conf: StateConf) -> None:
        self.kind = kind
        self.typed_keys = bool(conf.key_fields)
        self._key_ddl = tuple(normal_type(ddl) for _, ddl in conf.key_fields)
        self._value_ddl = None if conf.value_type is None else normal_type(conf.value_type)
        self.key_columns = _free_names([name for name, _ in conf.key_fields]) if self.typed_keys else ("key",)
        self.key_types = tuple(map(arrow_type, self._key_ddl)) or (pa.binary(),)
        self.value_columns = VALUE_COLUMNS[kind]
        value = pa.binary() if self._value_ddl is None else arrow_type(self._value_ddl)
        self.value_types = tuple(pa.int64() if name in ("txid", "attempt") else value for name in self.value_columns)
        self._plain_keys = _FAITHFUL.issuperset(map(class_of, self._key_ddl))
        self._plain_values = self._value_ddl is None or class_of(self._value_ddl) in _FAITHFUL
        self._nested_values = "<" in str(self._value_ddl)
        self.form = NumberForm.of(self._value_ddl) if kind is StateType.OPAQUE else None
        self.takes_columns = self._plain_keys and self.typed_keys and self.form is not None
        self.deleted: RawValue = (None,) * len(self.value_columns)
        """The raw value that marks a deleted key; compared by identity before it is stored, by its None after."""

    # ---- keys -----------------------------------------------------------------------------------------------------

    def pack_keys(self, keys: Sequence[Key]) -> list[RawKey]:
        """Return the raw form of each key."""
        if not self.typed_keys:
            return list(encode_tuples(canonical_keys(keys)))
        wanted = len(self.key_columns)
        for key in keys:
            if len(key) != wanted:
                columns = list(self.key_columns)
                raise CorruptValueError(f"key {key!r} has {len(key)} parts, the table has key columns {columns}")
        if self._plain_keys or not keys:
            return [tuple(key) for key in keys]
        parts = zip(*keys, strict=True)
        arrays = [array_of(*c) for c in zip(self.key_columns, self.key_types, parts, strict=True)]
        return self.raw_keys(arrays)

    def unpack_key(self, raw: RawKey) -> Key:
        """Return the key of a raw key."""
        key: Key = raw if self.typed_keys else decode(raw)
        return key

    def raw_keys(self, arrays: Sequence[Any]) -> list[RawKey]:
        """Return the raw key of each row, given the key columns."""
        columns = [python_of(a) for a in arrays]
        if not self.typed_keys:
            return columns[0]
        if not self._plain_keys:
            columns = [[_hashable(part) for part in column] for column in columns]
        return list(zip(*columns, strict=True))

    # ---- values ---------------------------------------------------------------------------------------------------

    def pack_values(self, values: Sequence[Any]) -> list[RawValue]:
        """Return the raw form of each value; later changes of a value's object do not change it."""
        if self.takes_columns and self._plain_values:
            return list(values)  # as they are, because the columns of an index take nothing else
        is_bare = self.kind is StateType.NON_TRANSACTIONAL
        rows: list[RawValue] = [(value,) for value in values] if is_bare else list(map(tuple, values))
        if self._value_ddl is None:
            if self.kind is StateType.OPAQUE:
                return [(txid, attempt, _encoded(prev), _encoded(curr)) for txid, attempt, prev, curr in rows]
            return [(*head, _encoded(value)) for *head, value in rows]
        if self._plain_values or not rows:
            return rows
        parts = zip(*rows, strict=True)
        columns = [array_of(*c) for c in zip(self.value_columns, self.value_types, parts, strict=True)]
        raw = zip(*map(python_of, columns), strict=True)
        return list(map(OpaqueValue._make, raw)) if self.takes_columns else list(raw)

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


def _hashable(part: Any) -> Any:
    # Floats in their one form, as a NaN key would not be found otherwise; lists and dicts as tuples, which can be hashed.
    if isinstance(part, list):
        return tuple(_hashable(item) for item in part)
    if isinstance(part, dict):
        return tuple((_hashable(name), _hashable(item)) for name, item in part.items())
    return canonical(part) if type(part) is float else part
