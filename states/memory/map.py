"""What a state in memory holds, and the backing maps over it: each a writer that is fenced by the others of its process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from trident.errors import FencedError
from trident.state.backing_map import BackingMap, MapFacts
from trident.state.columns.number_columns import NumberColumns, NumberForm
from trident.state.columns.number_table import KeptValues, NumberTable
from trident.state.interfaces import Key
from trident.state.txid import Sentinel
from trident.state.values import OpaqueValue
from trident.storekit import check_move, displaced

V = TypeVar("V")


class MemoryData:
    """The values and the sentinel of one partition.

    Parameters
    ----------
    max_size
        How many entries are kept; the least recently used ones are dropped beyond it. 0: all.
    beside
        Another partition of the same state, whose values this one shares.
    form
        Of the values; see `KeptValues`.
    """

    def __init__(self, max_size: int = 0, beside: MemoryData | None = None, form: NumberForm | None = None) -> None:
        self.max_size = max_size
        self.sentinel: Sentinel | None = None
        self.lock: threading.Lock = threading.Lock() if beside is None else beside.lock
        own: KeptValues = LastUsedValues(max_size) if max_size else KeptValues(form=form)
        self.values: KeptValues = own if beside is None else beside.values

    def __len__(self) -> int:
        return len(self.values)

    @property
    def entries(self) -> dict[Key, Any]:
        """The values, while they are a dict."""
        return self.values.entries

    @property
    def columns(self) -> NumberTable | None:
        """The values as arrays; None while they are a dict."""
        return self.values.columns

    def keep(self, partitions: int) -> None:
        """Keep `max_size` entries for each of so many partitions."""
        if isinstance(self.values, LastUsedValues):
            self.values.max_size = self.max_size * partitions

    def clear(self) -> None:
        """Forget the values of all partitions, and this one's sentinel."""
        self.values.clear()
        self.sentinel = None


class LastUsedValues(KeptValues):
    """The `max_size` values that were read or written last."""

    entries: OrderedDict[Key, Any]

    def __init__(self, max_size: int) -> None:
        super().__init__(may_be_columns=False)
        self.max_size = max_size
        self.entries = OrderedDict()

    def get(self, keys: Sequence[Key]) -> list[Any]:
        """Return a value per key; what is read counts as used."""
        values = super().get(keys)
        for key, value in zip(keys, values, strict=True):
            if value is not None:
                self.entries.move_to_end(key)
        return values

    def put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write a value per key, and drop those that were used least recently."""
        super().put(keys, values)
        for key in keys:
            self.entries.move_to_end(key)
        while len(self.entries) > self.max_size:
            self.entries.popitem(last=False)


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
