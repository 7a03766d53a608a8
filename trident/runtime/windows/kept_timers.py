"""What the state of a process with timers holds: the value and the timers of each key, and when each key must be looked at.

::

    ("key", *key)    -> version, when to look at the key, the value, the times of its timers, ascending
    ("windows",)     -> the directory of `due_keys`, with how far time has come, and its chunks

Times are milliseconds, or microseconds where they are timestamps. A batch reads and writes the keys of its own tuples, and
those with a timer that may fire. A key that sets its timer to a later time again and again is noted only when the earlier
time has come; see `DueKeys.note`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from trident.errors import CorruptValueError
from trident.naming import shown
from trident.runtime.steps.failures import Failure, StepFailed
from trident.runtime.windows.due_keys import NEVER, DueKeys
from trident.state.encoding.codec import decode_found, encode, encode_many
from trident.state.interfaces import Key

_VERSION = 1
_NOTHING: list[Any] = [_VERSION, NEVER, None, []]


class Kept(NamedTuple):
    """The value of a key, and the times of its timers."""

    value: Any
    times: set[int]


class KeptTimers:
    """The keys that a batch concerns, within a commit.

    `step`: the process, for errors.
    `due`: when the keys of the state are due.
    """

    def __init__(self, step: str, state: Any, due: DueKeys) -> None:
        self._step, self._state, self._due = step, state, due
        self._found: list[bool] = []
        self._looks: list[int] = []

    def read(self, names: Sequence[Key]) -> list[Kept]:
        """Read some keys, in the order asked; one that is not there has no value and no timers."""
        data = self._state.multi_get(names) if names else []
        records: list[list[Any]] = decode_found(data, _NOTHING)
        for version in {record[0] for record in records}:
            if version != _VERSION:
                raise CorruptValueError(
                    f"read the timers of a process: those of a key are of version {version!r}, this program knows {_VERSION}; "
                    "another version of the topology wrote them. Give the process another state_name"
                )
        self._found = [one is not None for one in data]
        self._looks = [record[1] for record in records]
        return [Kept(value, set(times)) for _, _, value, times in records]

    def write(self, names: Sequence[Key], keys: pa.Table, kept: Sequence[Kept], now: int) -> None:
        """Write the keys that were read, and how far time has come.

        `keys`: the grouping fields, a row for each name.
        """
        due = np.array([min(one.times, default=NEVER) for one in kept], np.int64)
        looks = self._due.note(keys, due, np.array(self._looks, np.int64), now).tolist()
        puts: dict[Key, list[Any]] = {}
        emptied = []
        for name, look, found, (value, times) in zip(names, looks, self._found, kept, strict=True):
            if value is not None or times:
                puts[name] = [_VERSION, look, value, sorted(times)]
            elif found:
                emptied.append(name)
        if puts:
            self._state.multi_put(list(puts), self._encoded(puts))
        if emptied:
            self._state.multi_remove(emptied)
        self._due.write(now)

    def _encoded(self, puts: dict[Key, list[Any]]) -> list[bytes]:
        try:
            return encode_many(list(puts.values()))
        except (CorruptValueError, TypeError) as error:
            for name, record in puts.items():
                try:
                    encode(record)
                except (CorruptValueError, TypeError) as own:
                    cause = f"the value {shown(record[2])} of key {name[1:]!r} cannot be stored: {own}"
                    raise StepFailed(Failure(self._step, None, cause, retry=False)) from own
            raise StepFailed(Failure(self._step, None, str(error), retry=False)) from error
