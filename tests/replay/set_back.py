"""Stores in memory that can be set back, and that end a driver in the middle of a commit."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from tests.harness.crashing_stores import DictMap
from trident.state import Key, StateSpec, map_state


class Killed(BaseException):
    """As `kill -9`: nothing but what was written is left."""


Entries = dict[tuple[str, int], dict[Any, Any]]


class Stores:
    """The partitions of all states of a topology.

    Attributes
    ----------
    entries
        By state and partition, what is stored.
    kill_in, copy_in
        After so many writes, in the middle of one, the driver ends, and `copied` is what is stored at that moment; None: never.
    fail_in, error
        After so many writes one raises this error; None: none does.
    puts
        By state and partition, how often something was written.
    """

    def __init__(self) -> None:
        self.entries: Entries = {}
        self.copied: Entries = {}
        self.kill_in: int | None = None
        self.copy_in: int | None = None
        self.fail_in: int | None = None
        self.error: Exception | None = None
        self.puts: dict[tuple[str, int], int] = {}

    def state(self, kind: str = "opaque") -> StateSpec:
        def backing(conf: Any, partition: int, count: int) -> _Map:
            return _Map(self, (conf.state, partition))

        return map_state(backing, kind)

    def copy(self) -> Entries:
        return copy.deepcopy({place: entries for place, entries in self.entries.items() if entries})

    def set_back(self, older: Entries, *states: str, partitions: Sequence[int] = range(100)) -> None:
        """Bring what some partitions of some states had then."""
        for (state, partition), entries in self.entries.items():
            if state in states and partition in partitions:
                entries.clear()
                entries.update(copy.deepcopy(older.get((state, partition), {})))

    def wrote(self, place: tuple[str, int]) -> None:
        """Count a write, of which half is there."""
        self.puts[place] = self.puts.get(place, 0) + 1
        if self.fail_in is not None:
            self.fail_in -= 1
            if self.fail_in < 0 and self.error is not None:
                self.fail_in = None
                raise self.error
        if self.copy_in is not None:
            self.copy_in -= 1
            if self.copy_in < 0:
                self.copied, self.copy_in = self.copy(), None
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                self.kill_in = None
                raise Killed


class _Map(DictMap):
    def __init__(self, stores: Stores, place: tuple[str, int]) -> None:
        super().__init__(stores.entries.setdefault(place, {}))
        self._stores, self._place = stores, place

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        middle = len(keys) // 2
        super().multi_put(keys[:middle], values[:middle])
        self._stores.wrote(self._place)
        super().multi_put(keys[middle:], values[middle:])

    def key_pages(self) -> Iterator[Sequence[Key]]:
        yield list(self.entries)

    def reset(self) -> None:
        self.entries.clear()
