"""The columns of a state that its owner can read: the fields, those that the framework adds, and rows as what is stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from typing import Any, Generic, NamedTuple, Self, TypeVar

from trident.errors import CorruptValueError
from trident.state.encoding.equal_keys import canonical
from trident.state.interfaces import Key, StateType
from trident.state.values import OpaqueValue, TransactionalValue
from trident.storekit.plain_shapes import PlainShape
from trident.types import class_of

OWN = "trident_"
"""What the names of the framework's own columns and tables begin with."""
TXID, ATTEMPT, BEFORE = f"{OWN}txid", f"{OWN}attempt", f"{OWN}before"
NULL, BEFORE_NULL = f"{OWN}null", f"{BEFORE}_null"
"""Whether a value of several columns is null, and the value before; where only its fields are, it is false."""
_NUMBERS = {
    StateType.OPAQUE: (TXID, ATTEMPT),
    StateType.TRANSACTIONAL: (TXID,),
    StateType.NON_TRANSACTIONAL: (),
}
_STORED: dict[StateType, type[tuple[Any, ...]]] = {
    StateType.OPAQUE: OpaqueValue,
    StateType.TRANSACTIONAL: TransactionalValue,
}

F = TypeVar("F")


class PlainColumn(NamedTuple, Generic[F]):
    """One column of the table.

    `name`, `form`: its name, and how the store keeps its values.
    `declared`: the type that the topology declares.
    `is_key`: whether it is a field of the key.
    """

    name: str
    form: F
    declared: str
    is_key: bool = False

    @classmethod
    def of(cls, name: str, declared: str, is_key: bool = False) -> Self:
        """Return the column of a field whose type has a plain form."""
        form = cls.form_of(declared, is_key)
        assert form is not None, (name, declared)
        return cls(name, form, declared, is_key)

    @classmethod
    def form_of(cls, declared: str, is_key: bool) -> F | None:
        """Return how the store keeps values of a type; None if it has no plain form there."""
        raise NotImplementedError

    def loaded(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values that the driver has read in their one form."""
        raise NotImplementedError


C = TypeVar("C", bound=PlainColumn[Any])


@dataclass(frozen=True)
class PlainColumns(ABC, Generic[C]):
    """The columns of one state.

    `kind`: what the state stores for each key.
    `keys`, `values`: the fields of the key and that of the value, or those of a value that is a struct.
    `shape`: the fields. Each field of a value that is a struct is a column, and so is each of the value before.
    """

    kind: StateType
    keys: tuple[C, ...]
    values: tuple[C, ...]
    shape: PlainShape

    @cached_property
    def own(self) -> tuple[C, ...]:
        """The framework's columns, in the order of the fields of what is stored."""
        numbers = tuple(self._made(name, "bigint") for name in _NUMBERS[self.kind])
        return (*numbers, *self.befores) if self.kind is StateType.OPAQUE else numbers

    @cached_property
    def befores(self) -> tuple[C, ...]:
        """The columns of the value before, as those of the value."""
        if not self.shape.is_struct:
            return (self.values[0]._replace(name=BEFORE),)
        fields = (column._replace(name=f"{BEFORE}_{column.name}") for column in self.values)
        return (*fields, self._made(BEFORE_NULL, "boolean"))

    @property
    def ours(self) -> set[str]:
        """The names of the columns that no owner of the table knows of."""
        return {column.name for column in self.all if column.name.startswith(OWN)}

    @cached_property
    def _value(self) -> tuple[C, ...]:
        """The columns of a value."""
        return (*self.values, *((self._made(NULL, "boolean"),) if self.shape.is_struct else ()))

    @cached_property
    def all(self) -> tuple[C, ...]:
        """All columns, in the order of the table."""
        return (*self.keys, *self._value, *self.own)

    @cached_property
    def read(self) -> tuple[C, ...]:
        """The columns of a read or a write: the key, then the fields of what is stored, in their order."""
        return (*self.keys, *self.own, *self._value)

    def names(self, keys: Sequence[Key]) -> list[Key]:
        """Return keys in their one form.

        Raises `CorruptValueError`: a key has too many parts or too few.
        """
        wanted = len(self.keys)
        if {wanted}.issuperset(map(len, keys)):
            return [tuple(map(canonical, key)) for key in keys] if self._has_forms else list(map(tuple, keys))
        key = next(key for key in keys if len(key) != wanted)
        names = [column.name for column in self.keys]
        raise CorruptValueError(f"key {key!r} has {len(key)} parts, the table has key columns {names}")

    @cached_property
    def _has_forms(self) -> bool:
        return not {str, int, bool}.issuperset(class_of(column.declared) for column in self.keys)

    def stored(self, rows: Sequence[Sequence[Any]]) -> dict[Key, Any]:
        """Return what is stored, by key, of the rows of a read.

        Raises `CorruptValueError`: another program wrote a row: it does not say which batch did.
        """
        if not rows:
            return {}
        loaded = [column.loaded(part) for column, part in zip(self.read, zip(*rows, strict=True), strict=True)]
        width = len(self.keys)
        keys, fields = zip(*loaded[:width], strict=True), loaded[width:]
        if self.shape.is_struct:
            fields = self._structs(fields)
        made = _STORED.get(self.kind)
        if made is None:
            return dict(zip(keys, fields[0], strict=True))
        for column, part in zip(self.own[:2], fields, strict=False):
            if None in part:
                key = tuple(rows[part.index(None)][:width])
                raise CorruptValueError(
                    f"read key {key!r}: its row has no {column.name}, so another program wrote it. {self._advice()}"
                )
        return dict(zip(keys, map(tuple.__new__, repeat(made), zip(*fields, strict=True)), strict=True))

    def parts(self, keys: Sequence[Key], values: Sequence[Any]) -> list[Sequence[Any]]:
        """Return keys and what is stored for them as the values of each column of `read`."""
        fields: list[Sequence[Any]] = list(zip(*values, strict=True)) if self.kind in _STORED else [values]
        if self.shape.is_struct:
            numbers = len(_NUMBERS[self.kind])
            columns = ([*self.shape.columns(one), [each is None for each in one]] for one in fields[numbers:])
            fields = [*fields[:numbers], *chain.from_iterable(columns)]
        return [*zip(*keys, strict=True), *fields]

    def _structs(self, fields: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Return the columns of what is stored, structs in place of the columns of their fields."""
        numbers, width = len(_NUMBERS[self.kind]), len(self.values)
        value = self.shape.structs(fields[-width - 1 : -1], fields[-1])
        if self.kind is not StateType.OPAQUE:
            return [*fields[:numbers], value]
        *befores, nulls = fields[numbers : -width - 1]
        return [*fields[:numbers], self.shape.structs(befores, [one is not False for one in nulls]), value]

    def _made(self, name: str, declared: str) -> C:
        return type(self.keys[0]).of(name, declared)

    @abstractmethod
    def _advice(self) -> str:
        """Return what to do about a row of another program."""
