"""The values of a map in memory: a dict, or arrays while all of them are opaque numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trident.state.columns.number_columns import NumberColumns, NumberForm
from trident.state.columns.number_table import NumberTable
from trident.state.interfaces import Key
from trident.state.table import KeyColumns

_FEW_KEYS = 16
"""Up to this many keys a dict is faster than arrays, so a map stays a dict until a larger commit comes."""


class KeptValues:
    """A value per key. The first commit of many keys by columns turns the dict into arrays, if all values fit.

    `entries`: the values, unless they are in `columns`.
    `columns`: all values as arrays; None while they are a dict.
    `may_be_columns`: False once a value did not fit; it is not tried again.
    `form`: of the values; None: they are numbers of one type.
    """

    def __init__(self, may_be_columns: bool = True, form: NumberForm | None = None) -> None:
        self._form = form
        self.entries: dict[Key, Any] = {}
        self.columns: NumberTable | None = None
        self.may_be_columns = may_be_columns

    def __len__(self) -> int:
        return len(self.entries if self.columns is None else self.columns)

    def keys(self) -> list[Key]:
        """Return all keys."""
        return list(self.entries) if self.columns is None else self.columns.keys()

    def get(self, keys: Sequence[Key]) -> list[Any]:
        """Return a value per key, None for an absent one."""
        return list(map(self.entries.get, keys)) if self.columns is None else self.columns.get(keys)

    def put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write a value per key, or what was combined with the result of `find`."""
        if self.columns is not None:
            if isinstance(values, NumberColumns):
                self.columns.put_found(values)
                return
            if self.columns.put(keys, values):
                return
            self.entries.update(self.columns.entries())
            self.columns, self.may_be_columns = None, False
        self.entries.update(zip(keys, values, strict=True))

    def delete(self, keys: Sequence[Key]) -> None:
        """Delete keys; absent ones are ignored."""
        if self.columns is not None:
            self.columns.delete(keys)
            return
        for key in keys:
            self.entries.pop(key, None)

    def clear(self) -> None:
        """Delete all keys."""
        self.entries.clear()
        self.columns = None

    def find(self, keys: Sequence[Key]) -> NumberColumns | None:
        """Return the values of keys; None while this is a dict, or if the keys do not fit."""
        if self.columns is None and type(keys) is KeyColumns and len(keys.parts[0]) > _FEW_KEYS:
            columns = NumberTable(len(keys.parts), self._form) if self.may_be_columns else None
            if columns is not None:
                self.may_be_columns = columns.put(list(self.entries), list(self.entries.values()))
            if self.may_be_columns:
                self.columns, self.entries = columns, {}
        return None if self.columns is None else self.columns.find(keys)
