"""Keys that must be looked at when a time has come, in the directory and the chunks of `kept_windows`.

A key is noted with its time in a *pane*, which begins after the present. The further away the time is, the wider the pane: 1,
8, 64 … milliseconds or microseconds, at most an eighth of how far away it is. So a directory has few panes, however far times
reach. When a pane has begun, its keys are taken out: those whose time has come are due, the others are noted again, in
narrower panes. So each key is read a few times, not with each batch.

The number of a pane is where it begins, in units of its width, and in the last five bits the exponent of the width; where there
are several clocks, as of the two sides of a join, that is multiplied by their number, and the clock added.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.fields import Fields
from trident.runtime.steps.key_columns import Ints, group_ids, one_form
from trident.runtime.windows.kept_windows import Frontier, WindowStore, mergeable
from trident.runtime.windows.shares import ONE, PartitionPlace
from trident.runtime.windows.worker_input import bigint
from trident.state.interfaces import Key

_DUE = "$due"
_BITS, _EXPONENT_BITS = 3, 5

NEVER = -(1 << 62)
"""A time before all others."""


class DueKeys:
    """Which keys are due when, in one partition of a state, within a commit.

    `frontier`: how far time had come when it was last written; None: never.
    `clocks`: how many times there are that do not depend on each other; each key is due by one of them, or by several.
    `unit`: the width of the narrowest panes, in which keys are found when all of the pane is over.
    """

    def __init__(
        self, state: Any, key: Fields, place: PartitionPlace = ONE, times: str = "", clocks: int = 1, unit: int = 1
    ) -> None:
        self._store = WindowStore(state, key.concat(bigint(_DUE)), unit << _BITS, place, key, times)
        self._clocks, self._unit = clocks, unit
        self.frontier = self._store.directory.frontier

    @property
    def earliest(self) -> int | None:
        """Before this time no key is found; None: no key is ever."""
        return min(map(self._opens, self._store.directory.panes), default=None)

    def must_write(self, given: int) -> bool:
        """Whether the directory must be written although nothing changed; see `WindowStore`."""
        return self._store.must_write(given)

    def passed(self, now: int, clock: int = 0) -> pa.Table:
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

    def note(self, keys: pa.Table, due: Ints, looks: Ints, now: int, clock: int = 0) -> Ints:
        """Note keys that are due later than now, unless each is looked at before; return when each is looked at next.

        `keys`: the fields of the keys, a row for each.
        `due`: when each is due (int64); `NEVER`: at no time.
        `looks`: for when each was last noted.
        """
        again = (due > now) & ((looks <= now) | (due < looks))
        self._add(keys.filter(pa.array(again)).append_column(_DUE, pa.array(due[again], pa.int64())), now, clock)
        return np.where(again, due, looks)

    def write(self, frontier: Frontier) -> None:
        """Write what changed, and how far time has come."""
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
            runs = self._store.directory.panes.get(pane, [])
            merges = runs[len(runs) - mergeable(runs, True) :]
            stored = [one for of_run in self._store.read(merges).values() for one in of_run]
            own = rows.filter(pa.array(panes == pane))
            self._store.add(pane, pa.concat_tables([pa.Table.from_batches(stored, self._store.schema), own]), merges)

    def _opens(self, pane: int) -> int:
        """Return when a pane is opened: when it begins, or one of the narrowest when it is over."""
        number = pane // self._clocks
        exponent = number & ((1 << _EXPONENT_BITS) - 1)
        begins = (number >> _EXPONENT_BITS) << (exponent * _BITS)
        return begins * self._unit if exponent else (begins + 1) * self._unit - 1


def keys_together(group: Fields, tables: Sequence[pa.Table]) -> tuple[pa.Table, list[Key], Ints]:
    """Return the distinct keys of the tables, their names in the state, and the number of the key of each row."""
    schema = schema_of(group)
    whole = pa.concat_tables([table.select(schema.names).cast(schema) for table in tables])
    ids, firsts = group_ids(whole.columns, whole.num_rows)
    keys = one_form(whole.take(pa.array(firsts, pa.int64())), schema.names)
    return keys, list(zip(repeat("key"), *(column.to_pylist() for column in keys.columns))), ids
