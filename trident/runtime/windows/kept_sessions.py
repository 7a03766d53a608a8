"""What the state of a session window holds: the open sessions of each key, and when each key must be looked at again.

::

    ("key", *key)    -> version, when to look again, then columns, a row for each session, or for each tuple if the aggregator
                        takes tuples: first time, last time, the values
    ("windows",)     -> the directory of `due_keys`, with the watermark, and its chunks

Times are in the unit of the event time: microseconds of a timestamp, else milliseconds.

A batch reads and writes the keys of its own rows, and those that have a session which may be complete. A key is *due* at the
earliest end of its sessions. Most tuples only make a session longer; then the key keeps its place, is looked at too early,
and gets another one. So a key is noted once in the time of a gap, however many tuples come.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from trident.arrow import schema_of
from trident.errors import CorruptValueError
from trident.fields import Fields
from trident.graph import WindowNode
from trident.runtime.steps.key_columns import Ints
from trident.runtime.windows.due_keys import NEVER, DueKeys
from trident.runtime.windows.shares import ONE, PartitionPlace
from trident.runtime.windows.worker_input import AT, START, value_fields
from trident.state.encoding.codec import decode_found, encode_many
from trident.state.interfaces import Key

ID = "$id"
"""The column with the number of a row's key."""

_VERSION = 1


class KeptSessions:
    """The state of a session window, within a commit.

    `schema`: of the rows that `read` gives: `ID`, `START`, `AT`, and what is kept beside the key.
    `watermark`: after the batches so far; None before the first tuple.
    """

    def __init__(self, node: WindowNode, state: Any, place: PartitionPlace = ONE) -> None:
        self._state, self._values = state, value_fields(node)
        self._due = DueKeys(state, node.group, place, node.config.times)
        self.schema = schema_of(Fields.of([ID, START, AT], ["bigint"] * 3).concat(self._values))
        self.watermark = self._due.frontier
        self._found: list[bool] = []
        self._looks = np.empty(0, np.int64)

    def must_write(self, given: int) -> bool:
        """Whether the directory must be written although nothing changed; see `WindowStore`."""
        return self._due.must_write(given)

    def due_keys(self, watermark: int) -> pa.Table:
        """Take out the keys that are due since the watermark passes them, some twice, and return them."""
        return self._due.passed(watermark - 1)

    def read(self, names: Sequence[Key]) -> pa.Table:
        """Return the rows of some keys; `ID` is the place of the key in `names`."""
        if not names:
            return self.schema.empty_table()
        data = self._state.multi_get(names)
        empty = [_VERSION, NEVER, *([] for _ in self.schema.names[1:])]
        records: list[list[Any]] = decode_found(data, empty)
        for version, width in {(record[0], len(record)) for record in records}:
            if version != _VERSION or width != len(empty):
                raise CorruptValueError(
                    f"read the sessions of a window: one is of version {version!r} with {width - 4} columns, this topology "
                    f"keeps version {_VERSION} with {list(self._values.names)}; another version of the topology wrote it. "
                    "Give the window another state_name"
                )
        self._found = [one is not None for one in data]
        self._looks = np.array([record[1] for record in records], np.int64)
        sizes = [len(record[2]) for record in records]
        columns = zip(self.schema.types[1:], zip(*(record[2:] for record in records), strict=True), strict=True)
        arrays = [pa.array(list(chain.from_iterable(of_keys)), type_) for type_, of_keys in columns]
        return pa.table([pa.array(np.repeat(np.arange(len(records)), sizes), pa.int64()), *arrays], schema=self.schema)

    def write(self, names: Sequence[Key], keys: pa.Table, rows: pa.Table, due: Ints, watermark: int) -> None:
        """Store the rows of the keys that were read in place of theirs, ordered by `ID`, and the watermark.

        `keys`: the grouping fields, a row for each name.
        `due`: when each key is due: one number per key, `NEVER` if it has no session any more.
        """
        looks = self._due.note(keys, due, self._looks, watermark - 1).tolist()
        bounds = np.searchsorted(rows.column(ID).to_numpy(), np.arange(len(names) + 1)).tolist()
        columns = [column.to_pylist() for column in rows.columns[1:]]
        puts: dict[Key, list[Any]] = {}
        emptied = []
        for name, look, found, (start, stop) in zip(names, looks, self._found, pairwise(bounds), strict=True):
            if start < stop:
                puts[name] = [_VERSION, look, *(column[start:stop] for column in columns)]
            elif found:
                emptied.append(name)
        if puts:
            self._state.multi_put(list(puts), encode_many(list(puts.values())))
        if emptied:
            self._state.multi_remove(emptied)
        self._due.write(watermark)
