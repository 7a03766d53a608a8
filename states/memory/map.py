"""The backing maps over one partition in memory, each a writer that is fenced by the others of its process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from states.memory.data import MemoryData
from trident.errors import FencedError
from trident.state.backing_map import BackingMap, MapFacts
from trident.state.columns.number_columns import NumberColumns
from trident.state.interfaces import Key
from trident.state.txid import Sentinel
from trident.state.values import OpaqueValue
from trident.storekit import check_move, displaced

V = TypeVar("V")


class MemoryBackingMap(BackingMap, Generic[V]):
    """An `IBackingMap` over a dict, with a sentinel of its own and fencing between the writers of one process."""

    facts = MapFacts(
        commits_atomically=True
    )  # no seal: the memory of a process ends as a whole, never with half of a commit

    def __init__(self, data: MemoryData | None = None) -> None:
        self.data = MemoryData() if data is None else data
        self._own: Sentinel | None = None
        self._seen: Sentinel | None = None
        self._has_seen = False

    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        """Read many keys; an entry that is read counts as used."""
        with self.data.lock:
            return self.data.values.get(keys)

    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        """Write many keys, all or none.

        Raises
        ------
        FencedError
            Another writer has moved the sentinel since this one did. Nothing was written.
        """
        with self.data.lock:
            self._check_fence("put {} keys to memory", len(keys))
            self.data.values.put(keys, values)

    def multi_delete(self, keys: Sequence[Key]) -> None:
        """Delete many keys, all or none; fenced as `multi_put` is."""
        with self.data.lock:
            self._check_fence("delete {} keys from memory", len(keys))
            self.data.values.delete(keys)

    def key_pages(self) -> Iterator[Sequence[Key]]:
        """Iterate over the keys as of one moment: a single page."""
        with self.data.lock:
            keys = self.data.values.keys()
        yield keys

    def read_sentinel(self) -> Sentinel | None:
        """Return the last commit that touched these data."""
        self._seen, self._has_seen = self.data.sentinel, True
        return self._seen

    def move_sentinel(self, sentinel: Sentinel, force: bool = False) -> None:
        """Move the sentinel on from what was read or laid last; this is the writer from now on."""
        data = self.data
        with data.lock:
            found = data.sentinel
            seen = self._seen if self._has_seen else found
            check_move("move the sentinel in memory", sentinel, found, seen, force)
            data.sentinel = self._own = self._seen = sentinel
            self._has_seen = True

    def reset(self) -> None:
        with self.data.lock:
            self.data.clear()
            self._own, self._has_seen = None, False

    def _check_fence(self, doing: str, keys: int) -> None:
        if self.data.sentinel is not self._own and self.data.sentinel != self._own:
            doing = doing.format(keys)
            if self._own is None:
                raise FencedError(doing, str(self._own), str(self.data.sentinel))
            raise displaced(doing, self._own, self.data.sentinel, self._own)

    def __len__(self) -> int:
        return len(self.data)


class ColumnarMemoryMap(MemoryBackingMap[OpaqueValue]):
    """Commits columns besides: from the first commit of many keys by columns on, opaque numbers are stored as columns.

    A class of its own, because a subclass of `MemoryBackingMap` expects every read and write in the methods that it knows.
    """

    facts = MapFacts(commits_atomically=True, keeps_columns=True)

    def multi_get_opaque(self, keys: Sequence[Key]) -> NumberColumns | None:
        """Read keys; None if the values are a dict, or are to be one."""
        with self.data.lock:
            return self.data.values.find(keys)
