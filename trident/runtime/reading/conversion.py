"""Conversion: makes values of a state's declared type of what was stored under a former one, and checks each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from trident.arrow import array_of, arrow_type, python_of
from trident.errors import StateError, describe
from trident.graph import StateNode


class Conversion:
    """What `migrate=` of a state does to values, many at a time.

    `node`: the state as it is declared, with `migrate`.
    """

    def __init__(self, node: StateNode) -> None:
        self._name, self._migrate, self._field = node.name, node.migrate, node.value.names[0]
        self._type = arrow_type(str(node.value.types[0]))

    def __call__(self, values: list[Any], former: str) -> Sequence[Any]:
        """Return a value of the declared type for each one; None stays None.

        Raises `StateError`: the function raised.
        Raises `CorruptValueError`: what it returned is no value of the declared type.
        """
        made = [None if value is None else self._made(value, former) for value in values]
        return python_of(array_of(self._field, self._type, made))

    def _made(self, value: Any, former: str) -> Any:
        if not callable(self._migrate):
            return _with_members(value, self._type)
        try:
            return self._migrate(value, former)
        except Exception as error:  # a user's function may raise anything
            raise StateError(
                f"migrate {value!r} of state {self._name!r} from {former}: {describe(error)}. Nothing was written"
            ) from error


def _with_members(value: Any, type_: Any) -> Any:
    """Return a value with None for the members that its type has got."""
    if isinstance(value, dict) and pa.types.is_struct(type_):
        return {field.name: _with_members(value.get(field.name), field.type) for field in type_}
    if isinstance(value, list) and pa.types.is_list(type_):
        return [_with_members(each, type_.value_type) for each in value]
    return value
