"""Opaque numbers of many keys in arrays, with the row of each key; and values that may be such, or a dict."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from trident.state.columns.number_columns import NumberColumn, NumberForm
from trident.state.columns.text_index import Rows, TextIndex
from trident.state.interfaces import Key
from trident.state.table import ABSENT, KeyColumns, OpaqueTable, Span, as_list
from trident.state.values import UNKNOWN_ATTEMPT, OpaqueValue

_SPACE = 1024
_NO_KEY = object()
_FEW_KEYS = 16
"""Up to this many keys a dict is faster than arrays, so a map stays a dict until a larger commit comes."""


class NumberTable:
    """Keys of `width` fields, and values of one form, or None.

    A key has one row of an array: to take a few of very many rows costs less than to take of four arrays.
    """

    def __init__(self, width: int, form: NumberForm) -> None:
        self.width, self.form = width, form
        # By the only field of a key, which is found faster than a tuple; otherwise by the key.
        self._rows: dict[Any, int] = {}
        self._free: list[int] = []
        self._numbers = np.empty((0, 2 + 2 * form.width), np.int64)
        self._had, self._has = np.empty(0, form.flag_type), np.empty(0, form.flag_type)  # flags before and now
        self._reserve(0)
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
        return dict(zip(self.keys(), self._take(rows), strict=True))

    def get(self, keys: Sequence[Key]) -> list[OpaqueValue | None]:
        names = self._names(keys)
        return list(self._take(self._rows_of(names)))

    def put(self, keys: Sequence[Key], values: Sequence[Any]) -> bool:
        """Write a value per key, of a key that comes twice the last; False, and nothing is changed, if one does not fit."""
        if not keys:
            return True
        table = self._fitting(values) if {self.width} == set(map(len, keys)) else None
        if table is None:
            return False
        names = self._names(keys)
        self._write(names, self._rows_of(names), table)
        return True

    def fill(self, names: Sequence[Any], table: OpaqueTable) -> None:
        """Write the values of distinct names into an empty table."""
        assert not self._rows, "the table is empty"
        self._write(names, np.full(len(names), -1, np.int64), table)

    def delete(self, keys: Sequence[Key]) -> None:
        for name in self._names(keys):
            row = self._rows.pop(name, None)
            if row is not None:
                self._free.append(row)
                self._texts.remove(row)

    def find(self, keys: Sequence[Key]) -> OpaqueTable | None:
        """Return the values of keys; None if keys that are given field by field have another number of fields."""
        rows = None
        if not isinstance(keys, KeyColumns):
            names: Any = self._names(keys)
        elif len(keys.parts) != self.width:
            return None
        else:
            names = keys.names
            rows = self._texts.rows_of(names)
        if rows is None:
            names = as_list(names)
            rows = self._rows_of(names)
        found = self._take(rows)
        found.span, found.place = self._span, (names, rows)
        return found

    def put_found(self, new: OpaqueTable) -> None:
        """Write values that were combined with the result of `find`; nothing was put since."""
        names, rows = new.place
        self._write(names, rows, new)

    def _take(self, rows: Rows) -> OpaqueTable:
        # The row of an absent key is -1, and so the last one, which no key has: "wrap" is faster than a check of each row.
        numbers, form, middle = self._numbers.take(rows, axis=0, mode="wrap"), self.form, 2 + self.form.width
        prevs = NumberColumn(form, numbers[:, 2:middle], self._had.take(rows, mode="wrap"))
        currs = NumberColumn(form, numbers[:, middle:], self._has.take(rows, mode="wrap"))
        return OpaqueTable((numbers[:, 0], numbers[:, 1], prevs, currs))

    def _put(self, rows: Rows, table: OpaqueTable) -> None:
        prevs, currs, middle = table.prevs, table.currs, 2 + self.form.width
        numbers = np.empty((len(rows), 2 * middle - 2), np.int64)
        numbers[:, 0], numbers[:, 1], numbers[:, 2:middle] = table.txids, table.attempts, prevs.numbers
        numbers[:, middle:] = currs.numbers
        self._numbers[rows], self._had[rows], self._has[rows] = numbers, prevs.flags, currs.flags
        self._note(table.span)

    def _note(self, put: Span | None) -> None:
        """Widen the span by a put; there is none for two attempts."""
        if put is None or (self._span is not None and self._span.attempt != put.attempt):
            self._span, self._is_of_one_attempt = None, False
        elif self._is_of_one_attempt:
            _, lowest, highest = self._span or put
            self._span = Span(put.attempt, min(lowest, put.lowest), max(highest, put.highest))

    def _fitting(self, values: Sequence[Any]) -> OpaqueTable | None:
        """Return opaque values as numbers of the form; None if one does not fit."""
        if not isinstance(values, OpaqueTable):
            if set(map(type, values)) != {OpaqueValue}:
                return None
            values = OpaqueTable.of(values)
        txids, attempts, prevs, currs = values.columns
        span = Span(attempts[0], min(txids), max(txids)) if len(set(attempts)) == 1 else None
        try:
            heads = np.array(txids, np.int64), np.array(attempts, np.int64)
            return OpaqueTable((*heads, *(NumberColumn.of(self.form, side) for side in (prevs, currs))), span)
        except (OverflowError, TypeError, ValueError):  # beyond 64 bits, or of another type
            return None

    def _names(self, keys: Sequence[Key]) -> Sequence[Any]:
        if self.width != 1:
            return keys
        return [key[0] if len(key) == 1 else _NO_KEY for key in keys]

    def _rows_of(self, names: Sequence[Any]) -> Rows:
        return np.fromiter(map(self._rows.get, names, repeat(-1)), np.int64, len(names))

    def _write(self, names: Sequence[Any] | pa.Array, rows: Rows, table: OpaqueTable) -> None:
        if len(rows) and rows.min() < 0:
            new, names = np.flatnonzero(rows < 0), as_list(names)
            self._reserve(len(new))
            added = names if len(new) == len(names) else [names[at] for at in new.tolist()]
            rows, their = rows.copy(), self._add_rows(added)
            rows[new] = their
            self._texts.add(added, their)
        self._put(rows, table)

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
        space, wanted = len(self._numbers), len(self._rows) + more
        if wanted >= space:
            grown = max(2 * space, wanted + 1, _SPACE) - space
            self._numbers = np.concatenate([self._numbers, np.empty((grown, self._numbers.shape[1]), np.int64)])
            self._had, self._has = (np.concatenate([one, np.zeros(grown, one.dtype)]) for one in (self._had, self._has))
            self._numbers[-1, :2], self._numbers[-1, 2:] = (ABSENT, UNKNOWN_ATTEMPT), 0


class KeptValues:
    """A value per key. The first commit of many keys by columns turns the dict into arrays, if all values fit.

    `entries`: the values, unless they are in `columns`.
    `columns`: all values as arrays; None while they are a dict.
    `form`: of the values; None: they fit no arrays, or one did not, and it is not tried again.
    """

    def __init__(self, form: NumberForm | None = None) -> None:
        self.form = form
        self.entries: dict[Key, Any] = {}
        self.columns: NumberTable | None = None

    def __len__(self) -> int:
        return len(self.entries if self.columns is None else self.columns)

    def keys(self) -> list[Key]:
        return list(self.entries) if self.columns is None else self.columns.keys()

    def get(self, keys: Sequence[Key]) -> list[Any]:
        return list(map(self.entries.get, keys)) if self.columns is None else self.columns.get(keys)

    def put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write a value per key, or what was combined with the result of `find`."""
        if self.columns is not None:
            if type(values) is OpaqueTable and values.place is not None:
                self.columns.put_found(values)
                return
            if self.columns.put(keys, values):
                return
            self.entries.update(self.columns.entries())
            self.columns = self.form = None
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

    def find(self, keys: Sequence[Key]) -> OpaqueTable | None:
        """Return the values of keys; None while this is a dict, or if the keys do not fit."""
        form = self.form if self.columns is None else None
        if form is not None and isinstance(keys, KeyColumns) and len(keys.parts[0]) > _FEW_KEYS:
            columns = NumberTable(len(keys.parts), form)
            if columns.put(list(self.entries), list(self.entries.values())):
                self.columns, self.entries = columns, {}
            else:
                self.form = None
        return None if self.columns is None else self.columns.find(keys)
