"""Opaque numbers of many keys in arrays, with the row of each key; and values that may be such, or a dict."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from trident.state.columns.number_columns import NumberColumns, NumberForm, Span
from trident.state.columns.text_index import Rows, TextIndex
from trident.state.interfaces import Key
from trident.state.table import KeyColumns, as_list
from trident.state.values import OpaqueValue

_SPACE = 1024
_NO_KEY = object()
_FEW_KEYS = 16
"""Up to this many keys a dict is faster than arrays, so a map stays a dict until a larger commit comes."""


class NumberTable:
    """Keys of `width` fields, and values that are all whole numbers or all floats, or None; or structs of one form."""

    def __init__(self, width: int, form: NumberForm | None = None) -> None:
        self.width, self.form = width, form  # without a form they are numbers, and the first one decides their type
        # By the only field of a key, which is found faster than a tuple; otherwise by the key.
        self._rows: dict[Any, int] = {}
        self._free: list[int] = []
        space = NumberColumns.absent(form, _SPACE)
        self._numbers, self._flags = space.numbers, space.flags
        self._texts = TextIndex(self._rows)
        self._span: Span | None = None  # the writer of everything, while there is only one attempt
        self._is_of_one_attempt = True

    def __len__(self) -> int:
        return len(self._rows)

    def keys(self) -> list[Key]:
        """Return all keys, in the order of their first put."""
        return list(zip(self._rows, strict=True)) if self.width == 1 else list(self._rows)

    def entries(self) -> dict[Key, OpaqueValue | None]:
        rows = np.fromiter(self._rows.values(), np.int64, len(self._rows))
        return dict(zip(self.keys(), self._columns(rows), strict=True))

    def get(self, keys: Sequence[Key]) -> list[OpaqueValue | None]:
        names = self._names(keys)
        return self._found_columns(names, self._rows_of(names)).values()

    def put(self, keys: Sequence[Key], values: Sequence[Any]) -> bool:
        """Write a value per key, of a key that comes twice the last; False, and nothing is changed, if one does not fit."""
        if not keys:
            return True
        columns = NumberColumns.of(values, self.form) if {self.width} == set(map(len, keys)) else None
        if columns is None or not self._takes(columns):
            return False
        names = self._names(keys)
        self._write(names, self._rows_of(names), columns)
        return True

    def fill(self, names: Sequence[Any], columns: NumberColumns) -> None:
        """Write the values of distinct names into an empty table."""
        assert not self._rows, "the table is empty"
        self.form = columns.form
        self._reserve(len(names))
        self._rows.update(zip(names, range(len(names)), strict=True))
        self._numbers[: len(names)], self._flags[: len(names)] = columns.numbers, columns.flags
        self._note(columns.span)

    def delete(self, keys: Sequence[Key]) -> None:
        for name in self._names(keys):
            row = self._rows.pop(name, None)
            if row is not None:
                self._free.append(row)
                self._texts.remove(row)

    def find(self, keys: Sequence[Key]) -> NumberColumns | None:
        """Return the values of keys; None if keys that are given field by field have another number of fields."""
        if not isinstance(keys, KeyColumns):
            names = self._names(keys)
            return self._found_columns(names, self._rows_of(names))
        if len(keys.parts) != self.width:
            return None
        names = keys.names
        rows = self._texts.rows_of(names)
        if rows is None:
            names = as_list(names)
            rows = self._rows_of(names)
        return self._found_columns(names, rows)

    def put_found(self, new: NumberColumns) -> None:
        """Write values that were combined with the result of `find`; nothing was put since."""
        assert self._takes(new), "a combine gives no other type"
        names, rows, are_new = new.place
        if are_new:
            self._write(as_list(names), rows, new)
            return
        self._numbers[rows], self._flags[rows] = new.numbers, new.flags
        self._note(new.span)

    def _found_columns(self, names: Sequence[Any] | pa.Array, rows: Rows) -> NumberColumns:
        found, are_new = self._columns(rows), bool(len(rows)) and rows.min() < 0
        if are_new:
            there = rows >= 0
            found.numbers *= there[:, np.newaxis]
            found.flags *= there
        found.span, found.place = self._span, (names, rows, are_new)
        return found

    def _columns(self, rows: Rows) -> NumberColumns:
        # An absent key reads the last row's numbers: "wrap" is faster than a check of each row.
        numbers, flags = self._numbers.take(rows, axis=0, mode="wrap"), self._flags.take(rows, mode="wrap")
        return NumberColumns(numbers, flags, self.form)

    def _note(self, put: Span | None) -> None:
        """Widen the span by a put; there is none for two attempts."""
        if put is None or (self._span is not None and self._span.attempt != put.attempt):
            self._span, self._is_of_one_attempt = None, False
        elif self._is_of_one_attempt:
            _, lowest, highest = self._span or put
            self._span = Span(put.attempt, min(lowest, put.lowest), max(highest, put.highest))

    def _takes(self, columns: NumberColumns) -> bool:
        """Whether values of this form fit; the first ones decide it."""
        self.form = self.form or columns.form
        return columns.form in (None, self.form)

    def _names(self, keys: Sequence[Key]) -> Sequence[Any]:
        if self.width != 1:
            return keys
        return [key[0] if len(key) == 1 else _NO_KEY for key in keys]

    def _rows_of(self, names: Sequence[Any]) -> Rows:
        return np.fromiter(map(self._rows.get, names, repeat(-1)), np.int64, len(names))

    def _write(self, names: Sequence[Any], rows: Rows, columns: NumberColumns) -> None:
        new = np.flatnonzero(rows < 0)
        if len(new):
            self._reserve(len(new))
            added = names if len(new) == len(names) else [names[at] for at in new.tolist()]
            rows, their = rows.copy(), self._add_rows(added)
            rows[new] = their
            self._texts.add(added, their)
        self._numbers[rows], self._flags[rows] = columns.numbers, columns.flags
        self._note(columns.span)

    def _add_rows(self, names: Sequence[Any]) -> Rows:
        """Give names that are not there their rows; return the row of each."""
        before, reused = len(self._rows), [self._free.pop() for _ in range(min(len(self._free), len(names)))]
        first = before + len(reused)  # where it matters, no row before it is free
        rows = [*reused, *range(first, before + len(names))]
        self._rows.update(zip(names, rows, strict=True))
        found = np.array(rows, np.int64)
        if len(self._rows) < before + len(names):  # a name occurs twice
            found = self._rows_of(names)
            self._free += set(rows).difference(found.tolist())
        return found

    def _reserve(self, more: int) -> None:
        space, wanted = len(self._flags), len(self._rows) + more
        if wanted > space:
            grown = max(2 * space, wanted) - space
            self._numbers = np.concatenate([self._numbers, np.empty((grown, self._numbers.shape[1]), np.int64)])
            self._flags = np.concatenate([self._flags, np.zeros(grown, self._flags.dtype)])


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
        return list(self.entries) if self.columns is None else self.columns.keys()

    def get(self, keys: Sequence[Key]) -> list[Any]:
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
        if self.columns is not None:
            self.columns.delete(keys)
            return
        for key in keys:
            self.entries.pop(key, None)

    def clear(self) -> None:
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
