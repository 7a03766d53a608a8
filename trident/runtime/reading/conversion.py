"""Conversion: makes values of a state's declared type of what was stored under a former one, and checks each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trident.arrow import array_of, arrow_type, python_of
from trident.errors import StateError, describe
from trident.fields import struct_fields
from trident.graph import StateNode
from trident.state.interfaces import FormerTypes


class Conversion(FormerTypes):
    """Values of the former types of a state as values of its declared one, many at a time.

    `node`: the state as it is declared, with `migrate` or `evolution`.
    """

    def __init__(self, node: StateNode) -> None:
        self._name, self._migrate, self._field = node.name, node.migrate, node.value.names[0]
        declared, evolution = str(node.value.types[0]), node.evolution
        self.types = () if evolution is None else evolution.types
        self._type = arrow_type(declared)
        self._read = self._type if evolution is None else arrow_type(evolution.type or declared)
        self.fields = tuple(name for name, _ in struct_fields(declared))
        self._stored = tuple(name for name, _ in struct_fields(None if evolution is None else evolution.stored))

    def converted(self, values: list[Any], former: str, names: Mapping[str, str | None] | None) -> Sequence[Any]:
        """Return a value for each one of a former type, with the fields that the last declaration had besides; None stays None.

        Raises `StateError`: the function raised.
        Raises `CorruptValueError`: what it returned is no value of the declared type.
        """
        if names is None:
            made = [None if value is None else self._migrated(value, former) for value in values]
            return python_of(array_of(self._field, self._type, made))
        return python_of(array_of(self._field, self._read, [_renamed(value, names) for value in values]))

    def declared(self, values: list[Any]) -> list[Any]:
        if not self.fields:
            return values
        return [_only(value, self.fields) for value in values]

    def stored(self, values: Sequence[Any], attempt: int) -> Sequence[Any]:
        if not self.types or not self._stored:
            return values
        fields: Mapping[str, str | None] = dict(zip(self._stored, self._stored, strict=True))
        era = next((names for until, _, names in self.types if attempt < until), None)
        if era is not None:  # a batch of before is written again
            fields = {**dict.fromkeys(self._stored), **{old: name for name, old in era.items() if old is not None}}
        return [value if value is None else {old: value.get(name) for old, name in fields.items()} for value in values]

    def _migrated(self, value: Any, former: str) -> Any:
        if self._migrate is None:
            raise StateError(
                f"state {self._name!r} has values of a former type, {former}: declare it with its migrate=, or have `trident "
                "state migrate` rewrite them"
            )
        try:
            return self._migrate(value, former)
        except Exception as error:  # a user's function may raise anything
            raise StateError(
                f"migrate {value!r} of state {self._name!r} from {former}: {describe(error)}. Nothing was written"
            ) from error


def _renamed(value: Any, names: Mapping[str, str | None]) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: None if old is None else value.get(old) for name, old in names.items()}


def _only(value: Any, names: Sequence[str]) -> Any:
    """Return a struct with these fields alone; null where it has one of them not."""
    if not isinstance(value, dict) or (len(value) == len(names) and all(map(value.__contains__, names))):
        return value
    return {name: value.get(name) for name in names}
