"""Records of keys: what sessions, count windows of each key, joins over time and processes with timers hold between batches.

::

    ("key", *key)    -> version, what is noted of the key, then columns of its rows; of a join those of each side
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.errors import CorruptValueError
from trident.fields import Fields
from trident.runtime.windows.worker_input import bigint
from trident.state.encoding.codec import decode_found, encode_many
from trident.state.interfaces import Key

ID = "$id"
"""The column with the number of a row's key."""

_VERSION = 1


class KeyRecords:
    """The records of the keys that a batch concerns, in one partition of a state, within a commit.

    `of`: whose records they are, for errors: "the sessions of a window".
    `unknown`: what is noted of a key that has no record.
    `fields`: of the rows, a table or more; there may be none.
    """

    def __init__(self, state: Any, of: str, unknown: Sequence[Any], *fields: Fields) -> None:
        self._state, self._of, self._unknown = state, of, unknown
        self.schemas = [schema_of(bigint(ID).concat(of_table)) for of_table in fields]
        self._found: list[bool] = []

    def read(self, names: Sequence[Key]) -> tuple[Sequence[Sequence[Any]], list[pa.Table]]:
        """Return what is noted of some keys, a column a fact, and their rows; `ID` is the place of the key in `names`."""
        columns = [name for schema in self.schemas for name in schema.names[1:]]
        if not names:
            self._found = []
            return [()] * len(self._unknown), [schema.empty_table() for schema in self.schemas]
        data = self._state.multi_get(names)
        self._found = [one is not None for one in data]
        empty = [_VERSION, *self._unknown, *([] for _ in columns)]
        records: list[list[Any]] = decode_found(data, empty)
        for version, width in {(record[0], len(record)) for record in records}:
            if version != _VERSION or width != len(empty):
                raise self._unreadable(version, width - len(empty), columns)
        facts = list(zip(*records, strict=True))[1:]
        tables, start = [], len(self._unknown)
        for schema in self.schemas:
            tables.append(_rows(schema, facts[start : start + len(schema) - 1]))
            start += len(schema) - 1
        return facts[: len(self._unknown)], tables

    def write(
        self,
        names: Sequence[Key],
        noted: Sequence[Sequence[Any]],
        empty: Sequence[bool] | None = None,
        *tables: pa.Table,
    ) -> None:
        """Store what is noted of the keys that were read, and their rows, in place of theirs; those that are empty go."""
        columns = [column for table in tables for column in _by_key(table, len(names))]
        records = zip(repeat(_VERSION), *noted, *columns, strict=False)
        if empty is None:
            puts, gone = dict(zip(names, records, strict=True)), []
        else:
            puts = {name: record for name, record, is_empty in zip(names, records, empty, strict=True) if not is_empty}
            gone = [name for name, found in zip(names, self._found, strict=True) if found and name not in puts]
        if puts:
            self._state.multi_put(list(puts), encode_many(list(map(list, puts.values()))))
        if gone:
            self._state.multi_remove(gone)

    def _unreadable(self, version: object, more: int, columns: Sequence[str]) -> CorruptValueError:
        users = [name for name in columns if not name.startswith("$")]
        has, keeps = (f" with {len(users) + more} columns", f" with {users}") if columns else ("", "")
        return CorruptValueError(
            f"read {self._of}: one is of version {version!r}{has}, this topology keeps version {_VERSION}{keeps}; another "
            f"version of the topology wrote it. Give the {self._of.rpartition(' ')[2]} another state_name"
        )


def _rows(schema: pa.Schema, columns: Sequence[Sequence[list[Any]]]) -> pa.Table:
    ids = np.repeat(np.arange(len(columns[0])), list(map(len, columns[0])))
    types = schema.types[1:]
    arrays = [pa.array(list(chain.from_iterable(of)), type_) for of, type_ in zip(columns, types, strict=True)]
    return pa.table([pa.array(ids, pa.int64()), *arrays], schema=schema)


def _by_key(table: pa.Table, count: int) -> list[list[list[Any]]]:
    """Return for each column but `ID` the values of each key."""
    ids = table.column(ID).to_numpy()
    if np.any(ids[1:] < ids[:-1]):
        order = np.argsort(ids, kind="stable")
        table, ids = table.take(pa.array(order)), ids[order]
    bounds = np.searchsorted(ids, np.arange(count + 1)).tolist()
    values = [column.to_pylist() for column in table.drop_columns([ID]).columns]
    return [[column[start:stop] for start, stop in pairwise(bounds)] for column in values]
