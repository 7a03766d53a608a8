"""Keys that must be looked at when a time has come, in the directory and the chunks of `kept_windows`.

A key is noted with its time in a *pane*, which begins after the present. The further away the time is, the wider the pane: 1,
8, 64 … milliseconds or microseconds, at most an eighth of how far away it is. So a directory has few panes, however far times
reach. When a pane has begun, its keys are taken out: those whose time has come are due, the others are noted again, in
narrower panes. So each key is read a few times, not with each batch.

The number of a pane is where it begins, in units of its width, and in the last five bits the exponent of the width.
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
from trident.runtime.windows.kept_windows import WindowStore, mergeable
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
    """

    def __init__(self, state: Any, key: Fields, place: PartitionPlace = ONE, times: str = "") -> None:
        self._store = WindowStore(state, key.concat(bigint(_DUE)), 1 << _BITS, place, key, times)
        self.frontier = self._store.directory.frontier

    @property
    def earliest(self) -> int | None:
        """Before this time no key is due; None: no key is ever."""
        return min(map(_begins, self._store.directory.panes), default=None)

    def must_write(self, given: int) -> bool:
        """Whether the directory must be written although nothing changed; see `WindowStore`."""
        return self._store.must_write(given)

    def passed(self, now: int) -> pa.Table:
        """Take out the keys that are due up to now, some twice, and return them."""
        runs = self._store.directory.panes
        begun = [pane for pane in runs if _begins(pane) <= now]
        read = self._store.read(run for pane in begun for run in runs[pane])
        table = pa.Table.from_batches([rows for of_run in read.values() for rows in of_run], self._store.schema)
        for pane in begun:
            self._store.remove(pane)
        is_due = table.column(_DUE).to_numpy() <= now
        self._add(table.filter(pa.array(~is_due)), now)
        return table.filter(pa.array(is_due)).drop_columns([_DUE])

    def note(self, keys: pa.Table, due: Ints, looks: Ints, now: int) -> Ints:
        """Note keys that are due later than now, unless each is looked at before; return when each is looked at next.

        `keys`: the fields of the keys, a row for each.
        `due`: when each is due (int64); `NEVER`: at no time.
        `looks`: for when each was last noted.
        """
        again = (due > now) & ((looks <= now) | (due < looks))
        self._add(keys.filter(pa.array(again)).append_column(_DUE, pa.array(due[again], pa.int64())), now)
        return np.where(again, due, looks)

    def write(self, frontier: int) -> None:
        """Write what changed, and how far time has come."""
        self._store.directory.frontier = frontier
        self._store.write()

    def _add(self, rows: pa.Table, now: int) -> None:
        rows = rows.cast(self._store.schema)
        due = rows.column(_DUE).to_numpy()
        exponents = np.maximum((np.frexp((due - now).astype(np.float64))[1] - 1) // _BITS - 1, 0).astype(np.int64)
        panes = ((due >> (exponents * _BITS)) << _EXPONENT_BITS) | exponents
        for pane in np.unique(panes).tolist():
            runs = self._store.directory.panes.get(pane, [])
            merges = runs[len(runs) - mergeable(runs, True) :]
            stored = [one for of_run in self._store.read(merges).values() for one in of_run]
            own = rows.filter(pa.array(panes == pane))
            self._store.add(pane, pa.concat_tables([pa.Table.from_batches(stored, self._store.schema), own]), merges)


def _begins(pane: int) -> int:
    return (pane >> _EXPONENT_BITS) << ((pane & ((1 << _EXPONENT_BITS) - 1)) * _BITS)


def keys_together(group: Fields, tables: Sequence[pa.Table]) -> tuple[pa.Table, list[Key], Ints]:
    """Return the distinct keys of the tables, their names in the state, and the number of the key of each row."""
    schema = schema_of(group)
    whole = pa.concat_tables([table.select(schema.names).cast(schema) for table in tables])
    ids, firsts = group_ids(whole.columns, whole.num_rows)
    keys = one_form(whole.take(pa.array(firsts, pa.int64())), schema.names)
    return keys, list(zip(repeat("key"), *(column.to_pylist() for column in keys.columns))), ids
