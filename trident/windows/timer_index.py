"""Records of keys, and keys that must be looked at when a time has come: what all that is kept by key holds between batches.

::

    ("key", *key)    -> version, what is noted of the key, then columns of its rows; of a join those of each side
    ("windows",)     -> the keys that are due, in the directory and the chunks of `window_state`

A key is noted with its time in a *pane*, which begins after the present. The further away the time is, the wider the pane: 1,
8, 64 … milliseconds or microseconds, at most an eighth of how far away it is. So a directory has few panes, however far times
reach. When a pane has begun, its keys are taken out: those whose time has come are due, the others are noted again, in
narrower panes. So each key is read a few times, not with each batch.

The number of a pane is where it begins, in units of its width, and in the last five bits the exponent of the width; where there
are several clocks, as of the two sides of a join, that is multiplied by their number, and the clock added.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.errors import CorruptValueError
from trident.fields import Fields
from trident.state.encoding.codec import decode_found, encode_many
from trident.state.interfaces import Key
from trident.steps.key_columns import Ints, group_ids, one_form
from trident.windows.window_partitions import PartitionPlace
from trident.windows.window_rows import bigint
from trident.windows.window_state import Frontier, WindowStore, mergeable

ID = "$id"
"""The column with the number of a row's key."""

_VERSION = 1
_DUE = "$due"
_BITS, _EXPONENT_BITS = 3, 5

NEVER = -(1 << 62)
"""A time before all others."""


def keys_together(group: Fields, tables: Sequence[pa.Table]) -> tuple[pa.Table, list[Key], Ints]:
    """Return the distinct keys of the tables, their names in the state, and the number of the key of each row."""
    schema = schema_of(group)
    whole = pa.concat_tables([table.select(schema.names).cast(schema) for table in tables])
    ids, firsts = group_ids(whole.columns, whole.num_rows)
    keys = one_form(whole.take(pa.array(firsts, pa.int64())), schema.names)
    return keys, list(zip(repeat("key"), *(column.to_pylist() for column in keys.columns))), ids


class KeyRecords:
    """The records of the keys that a batch concerns, in one partition of a state, within a commit.

    `of`: whose records they are, for errors; `unknown`: what is noted of a key that has no record; `fields`: of the rows.
    """

    def __init__(self, state: Any, of: str, unknown: Sequence[Any], *fields: Fields) -> None:
        self._state, self._of, self._unknown = state, of, unknown
        self.schemas = [schema_of(bigint(ID).concat(of_table)) for of_table in fields]
        self._found: dict[Key, bool] = {}  # of those that were read, whether there is a record

    def read(self, names: Sequence[Key]) -> tuple[Sequence[Sequence[Any]], list[pa.Table]]:
        """Return what is noted of some keys, a column a fact, and their rows; `ID` is the place of the key in `names`."""
        columns = [name for schema in self.schemas for name in schema.names[1:]]
        self._found = {}
        if not names:
            return [()] * len(self._unknown), [schema.empty_table() for schema in self.schemas]
        data = self._state.multi_get(names)
        self._found = {name: one is not None for name, one in zip(names, data, strict=True)}
        empty = [_VERSION, *self._unknown, *([] for _ in columns)]
        records: list[list[Any]] = decode_found(data, empty)
        for version, width in {(record[0], len(record)) for record in records}:
            if version != _VERSION or width != len(empty):
                raise self._unreadable(version, width - len(empty), columns)
        facts = list(zip(*records, strict=True))[1:]
        tables, start = [], len(self._unknown)
        for schema in self.schemas:
            lists = facts[start : start + len(schema) - 1]
            ids, types = np.repeat(np.arange(len(lists[0])), list(map(len, lists[0]))), schema.types[1:]
            arrays = [pa.array(list(chain.from_iterable(of)), type_) for of, type_ in zip(lists, types, strict=True)]
            tables.append(pa.table([pa.array(ids, pa.int64()), *arrays], schema=schema))
            start += len(schema) - 1
        return facts[: len(self._unknown)], tables

    def write(self, noted: Sequence[Sequence[Any]], empty: Iterable[bool], *tables: pa.Table) -> None:
        """Store what is noted of the keys that were read, and their rows, in place of theirs; those that are empty go."""
        columns = [column for table in tables for column in _by_key(table, len(self._found))]
        records = zip(self._found, empty, zip(repeat(_VERSION), *noted, *columns, strict=False), strict=False)
        puts = {name: record for name, is_empty, record in records if not is_empty}
        gone = [name for name, found in self._found.items() if found and name not in puts]
        if puts:
            self._state.multi_put(list(puts), encode_many(list(map(list, puts.values()))))
        if gone:
            self._state.multi_remove(gone)

    def _unreadable(self, version: object, more: int, columns: Sequence[str]) -> CorruptValueError:
        users = [name for name in columns if not name.startswith("$")]
        has, keeps = (f" with {len(users) + more} columns", f" with {users}") if columns else ("", "")
        return CorruptValueError(
            f"read {self._of}: one is of version {version!r}{has}, this topology keeps version {_VERSION}{keeps}; another "
            "version of the topology wrote it. Declare it as it was: another state_name begins with nothing"
        )


class DueRecords(KeyRecords):
    """The records of keys that are due at times, in one partition of a state, within a commit.

    When a key is looked at next is noted first in its record, once for each clock: a join has one for the rows of each side.

    `frontier`: how far time had come when it was last written; None: never.
    `unit`: the width of the narrowest panes, in which keys are found when all of the pane is over.
    """

    def __init__(
        self,
        state: Any,
        key: Fields,
        place: PartitionPlace,
        times: str,
        of: str,
        more: Sequence[Any],
        *fields: Fields,
        unit: int = 1,
    ) -> None:
        self._clocks = max(1, len(fields))
        super().__init__(state, of, [*[NEVER] * self._clocks, *more], *fields)
        self._store = WindowStore(state, key.concat(bigint(_DUE)), unit << _BITS, place, key, times)
        self._unit, self._looks = unit, list[Ints]()
        self.frontier, self.must_write = self._store.directory.frontier, self._store.must_write

    @property
    def earliest(self) -> int | None:
        """Before this time no key is found; None: no key is ever."""
        return min(map(self._opens, self._store.directory.panes), default=None)

    def take(self, now: int, clock: int = 0) -> pa.Table:
        """Take out the keys that are due up to now, some twice, and return them."""
        runs = self._store.directory.panes
        begun = [pane for pane in runs if pane % self._clocks == clock and self._opens(pane) <= now]
        if not begun:
            return self._store.schema.empty_table().drop_columns([_DUE])
        read = self._store.read(run for pane in begun for run in runs[pane])
        table = pa.Table.from_batches([rows for of_run in read.values() for rows in of_run], self._store.schema)
        for pane in begun:
            self._store.remove(pane)
        is_due = table.column(_DUE).to_numpy() <= now
        self._add(table.filter(pa.array(~is_due)), now, clock)
        return table.filter(pa.array(is_due)).drop_columns([_DUE])

    def read(self, names: Sequence[Key]) -> tuple[Sequence[Sequence[Any]], list[pa.Table]]:
        noted, tables = super().read(names)
        self._looks = [np.array(looks, np.int64) for looks in noted[: self._clocks]]
        return noted[self._clocks :], tables

    def keep(
        self,
        keys: pa.Table,
        due: Sequence[tuple[Ints, int]],
        frontier: Frontier,
        noted: Sequence[Sequence[Any]],
        empty: Sequence[bool],
        *tables: pa.Table,
    ) -> None:
        """Write what is noted of the keys that were read, and their rows, in place of theirs; and how far time has come.

        `due`: by clock, when each key is due (`NEVER`: at no time), and the present.
        """
        looks = []
        for clock, ((times, now), before) in enumerate(zip(due, self._looks, strict=True)):
            # One that is to be looked at before that, as was last noted, is not noted again.
            again = (times > now) & ((before <= now) | (times < before))
            self._add(keys.filter(pa.array(again)).append_column(_DUE, pa.array(times[again], pa.int64())), now, clock)
            looks.append(np.where(again, times, before).tolist())
        self.write([*looks, *noted], empty, *tables)
        self._store.directory.frontier = frontier
        self._store.write()

    def _add(self, rows: pa.Table, now: int, clock: int) -> None:
        if not rows.num_rows:
            return
        rows = rows.cast(self._store.schema)
        due = rows.column(_DUE).to_numpy()
        far = due // self._unit
        exponents = np.frexp((far - now // self._unit).astype(np.float64))[1].astype(np.int64)
        exponents = np.maximum((exponents - 1) // _BITS - 1, 0)
        panes = (((far >> (exponents * _BITS)) << _EXPONENT_BITS) | exponents) * self._clocks + clock
        for pane in np.unique(panes).tolist():
            merges = mergeable(self._store.directory.panes.get(pane, ()), True)
            stored = [one for of_run in self._store.read(merges).values() for one in of_run]
            own = rows.filter(pa.array(panes == pane))
            self._store.add(pane, pa.concat_tables([pa.Table.from_batches(stored, self._store.schema), own]), merges)

    def _opens(self, pane: int) -> int:
        """Return when a pane is opened: when it begins, or one of the narrowest when it is over."""
        number = pane // self._clocks
        exponent = number & ((1 << _EXPONENT_BITS) - 1)
        begins = (number >> _EXPONENT_BITS) << (exponent * _BITS)
        return begins * self._unit if exponent else (begins + 1) * self._unit - 1


def _by_key(table: pa.Table, count: int) -> list[list[list[Any]]]:
    ids = table.column(ID).to_numpy()
    if np.any(ids[1:] < ids[:-1]):
        order = np.argsort(ids, kind="stable")
        table, ids = table.take(pa.array(order)), ids[order]
    bounds = np.searchsorted(ids, np.arange(count + 1)).tolist()
    values = [column.to_pylist() for column in table.drop_columns([ID]).columns]
    return [[column[start:stop] for start, stop in pairwise(bounds)] for column in values]
