"""CachedMap and CachedBatchReadsMap: memories in front of a backing map.

Both write the store first and remember second: a failed put must not look written (R10). Spark pins no partition to a
process, so what a `CachedMap` remembers between commits is valid only while no other process committed to the partition.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from trident.state.interfaces import IBackingMap, Key
from trident.state.key_counts import count_keys
from trident.state.wrappers.commit_memory import CommitMemory


class CachedMap(CommitMemory):
    """Remembers the least recently used entries of a map, absent keys included.

    The memory is used inside a commit only, and it outlives a commit only if the next commit of this very instance
    follows directly (see `CommitMemory`). Reads outside a commit, and reads of other threads than the one that
    commits, go to the store and are not remembered: they may run while another process writes.

    Put it right under the map.

    Parameters
    ----------
    delegate
        The store. It takes part in commits, keeps a sentinel, can be emptied and closed exactly if this map can.
    size
        How many entries are remembered; at least 1.
    """

    def __init__(self, delegate: IBackingMap[Any], size: int = 1000) -> None:
        if size < 1:
            raise ValueError(f"a cache of {size} entries: give at least 1, or use the store without a CachedMap")
        super().__init__(delegate)
        self.delegate, self.size = delegate, size
        self._cache: OrderedDict[Key, Any] = OrderedDict()

    def multi_get(self, keys: Sequence[Key]) -> Sequence[Any]:
        """Read what is remembered from memory and the rest, if any, with one request."""
        if not keys:
            return []
        if not self._remembers(keys):
            return self.delegate.multi_get(keys)
        cache = self._cache
        misses = [key for key in dict.fromkeys(keys) if key not in cache]
        read: dict[Key, Any] = {}
        count_keys(cached=len(keys) - len(misses))
        if misses:
            read = dict(zip(misses, self.delegate.multi_get(misses), strict=True))
        values: list[Any] = []
        for key in keys:
            if key in read:
                values.append(read[key])
            else:
                values.append(cache[key])
                cache.move_to_end(key)
        cache.update(read)
        self._evict()
        return values

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write to the store, then remember; after an error the keys are forgotten."""
        if not keys:
            return
        cache = self._cache
        try:
            self.delegate.multi_put(keys, values)
        except BaseException:
            # Any part may be written or not: only the store knows.
            for key in keys:
                cache.pop(key, None)
            raise
        if self._remembers(keys):
            for key, value in zip(keys, values, strict=True):
                cache[key] = value
                cache.move_to_end(key)
            self._evict()
        else:
            for key in keys:
                cache.pop(key, None)

    def multi_delete(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._cache.pop(key, None)
        super().multi_delete(keys)

    def reset(self) -> None:
        self._cache.clear()
        self._ended = None
        super().reset()

    def _forget(self) -> None:
        self._cache.clear()

    def _evict(self) -> None:
        cache = self._cache
        while len(cache) > self.size:
            cache.popitem(last=False)


class CachedBatchReadsMap:
    """Remembers what this batch wrote, so that later reads of the batch see it whatever the store shows by then.

    Despite its name (Trident's) it does not save reads: `multi_get` asks the store for all keys and lays the batch's
    own writes over the answer. `reset` is called at the begin and at the end of a commit.
    """

    def __init__(self, delegate: IBackingMap[Any]) -> None:
        self.delegate = delegate
        self._written: dict[Key, Any] = {}

    def multi_get(self, keys: Sequence[Key]) -> list[tuple[Any, bool]]:
        """Return `(value, whether this batch wrote it)` per key, in the order asked; None where absent."""
        if not keys:
            return []
        written = self._written
        stored = self.delegate.multi_get(keys)
        return [
            (written[key], True) if key in written else (value, False) for key, value in zip(keys, stored, strict=True)
        ]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        if keys:
            self.delegate.multi_put(keys, values)
            self._written.update(zip(keys, values, strict=True))

    def reset(self) -> None:
        """Forget the batch's writes."""
        self._written = {}
