"""Memories in front of a backing map, and when what they remember still counts (R10).

All write the store first and remember second: a failed put must not look written. What an instance remembers outlives a
commit only if its next commit follows directly: the sentinel that the log expects must be the one that it left at the end of
its last commit. Otherwise (another process committed, a commit failed or never ended) it starts empty again.

Every entry is in a *space*, a name that one instance drew at random and shares with no other, so no other writer's fill can
be in it, although the cache may lose, delay and keep anything. The space shows the last durable write of each of its entries:

1. It begins empty.
2. A key that is not in it is filled with what the durable map showed a moment before, inside a commit of this instance, in
   which no other writes the partition. (What a replaced writer can still slip in carries an attempt that lost: it stands for
   the very value that is filled here.)
3. A write goes to the durable map first and then to the space. If either raises, the space is dropped.
4. If another instance wrote between two commits, or a commit did not end, the space is dropped before the next read.

A space that was dropped never comes back.
"""

import logging
import secrets
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from trident.counts import count_keys
from trident.errors import StateError
from trident.state.forwarding import MapWrapper
from trident.state.interfaces import IBackingMap, Key
from trident.state.sentinel import is_sentinel_key
from trident.state.txid import Txid

_LOGGER = logging.getLogger(__name__)
V = TypeVar("V")


class SpacedCache(ABC, Generic[V]):
    """A cache that keeps entries apart by space. It may lose any of them; a `StateError` from it does no harm."""

    @abstractmethod
    def get(self, space: str, keys: Sequence[Key]) -> Sequence[tuple[V | None] | None]:
        """Return what is known of each key: `(value,)`, `(None,)` if it is known to be absent, None if nothing is."""

    @abstractmethod
    def put(self, space: str, keys: Sequence[Key], values: Sequence[V | None]) -> None:
        """Keep entries; None: the key is known to be absent. Raise if an older entry of a key may still be there."""

    def close(self) -> None:
        """Release connections."""


class ReadThroughMap(MapWrapper):
    """A durable `IBackingMap` whose reads inside commits ask a cache first, absent keys included. Put it right under the map.

    It takes part in commits, keeps a sentinel, deletes and resets exactly if `durable` does. Reads outside a commit, and of
    other threads than the one that commits, go to the store and are not remembered: they may run while another process
    writes. A cache that fails is left alone until the next commit; the commit goes on without.
    """

    def __init__(self, durable: IBackingMap[Any], cache: SpacedCache[Any]) -> None:
        super().__init__(durable)
        self.durable, self.cache, behind = durable, cache, self.inner.facts.past_caches
        self.facts = replace(self.facts, past_caches=self.inner if behind is None else behind)
        self._committing: int | None = None  # the thread that is inside a commit
        self._ended: Txid | None = None  # the last commit that ended well, while nothing began after it
        self._space: str | None = None  # None: the cache is not used until the next commit

    def begin(self, txid: Txid) -> None:
        """Keep what is remembered if this commit follows directly on this instance's last one; else start empty."""
        ended, self._ended, self._committing = self._ended, None, None
        if self._space is None or ended is None or not follows(txid, ended):
            self._space = secrets.token_hex(8)
        self.inner.begin(txid)
        self._committing = threading.get_ident()

    def end(self, txid: Txid) -> None:
        """End the commit; if the store cannot, nothing that it wrote is remembered."""
        self._committing = None
        self.inner.end(txid)
        self._ended = txid  # after the store: puts that did not become durable must not be remembered

    def multi_get(self, keys: Sequence[Key]) -> Sequence[Any]:
        if not keys or not self._remembers(keys):
            return self.inner.multi_get(keys) if keys else []
        known = self._recall(keys)
        misses = list(dict.fromkeys(key for key, entry in zip(keys, known, strict=True) if entry is None))
        count_keys(cached=len(keys) - len(misses))
        if not misses:
            return [entry[0] for entry in known if entry is not None]
        read = self.inner.multi_get(misses)
        self._remember(misses, read)
        found = dict(zip(misses, read, strict=True))
        return [found[key] if entry is None else entry[0] for key, entry in zip(keys, known, strict=True)]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Write to the store, then remember; after an error nothing is remembered."""
        if keys:
            self._write(partial(self.inner.multi_put, keys, values), keys, values)

    def multi_delete(self, keys: Sequence[Key]) -> None:
        if keys:
            self._write(partial(self.inner.multi_delete, keys), keys, [None] * len(keys))

    def reset(self) -> None:
        self._ended = self._space = None
        self.inner.reset()

    def close(self) -> None:
        self.cache.close()
        super().close()

    def _remembers(self, keys: Sequence[Key]) -> bool:
        """Whether this thread is inside a commit, and these are keys of its data: sentinels are always read from the store."""
        return self._committing == threading.get_ident() and not is_sentinel_key(keys)

    def _write(self, write: Callable[[], None], keys: Sequence[Key], values: Sequence[Any]) -> None:
        try:
            write()
        except BaseException:
            self._space = None  # any part may be written or not: only the store knows
            raise
        if self._remembers(keys):
            self._remember(keys, values)
        elif not is_sentinel_key(keys):
            self._space = None

    def _recall(self, keys: Sequence[Key]) -> Sequence[tuple[Any] | None]:
        if self._space is not None:
            try:
                return self.cache.get(self._space, keys)
            except StateError as error:
                self._leave(error)
        return [None] * len(keys)

    def _remember(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        space, self._space = self._space, None  # if this is interrupted, the contents of the space are unknown
        if space is None:
            return
        try:
            self.cache.put(space, keys, values)
        except StateError as error:
            self._leave(error)
        else:
            self._space = space

    def _leave(self, error: StateError) -> None:
        self._space = None
        _LOGGER.warning("the cache fails, and is not used until the next commit: %s", error)


def follows(txid: Txid, ended: Txid) -> bool:
    """Whether no commit can have happened between `ended`, which this instance ended, and `txid`."""
    if txid.incarnation is None or ended.sentinel is None:
        # No log to ask: only the very next txid is surely not preceded by another writer's.
        return txid.incarnation is None and ended.sentinel is None and int(txid) == int(ended) + 1
    return txid.expected == ended.sentinel


class CachedMap(ReadThroughMap):
    """Remembers the `size` entries of a map that were used last, in this process; put it right under the map."""

    def __init__(self, delegate: IBackingMap[Any], size: int = 1000) -> None:
        if size < 1:
            raise ValueError(f"a cache of {size} entries: give at least 1, or use the store without a CachedMap")
        super().__init__(delegate, _LastUsed(size))
        self.delegate, self.size = delegate, size


class _LastUsed(SpacedCache[Any]):
    """The entries of one space that were used last, in this process."""

    def __init__(self, size: int) -> None:
        self._size, self._space = size, ""
        self._entries: OrderedDict[Key, Any] = OrderedDict()

    def get(self, space: str, keys: Sequence[Key]) -> list[tuple[Any] | None]:
        entries, known = self._of(space), list[tuple[Any] | None]()
        for key in keys:
            if key in entries:
                entries.move_to_end(key)
                known.append((entries[key],))
            else:
                known.append(None)
        return known

    def put(self, space: str, keys: Sequence[Key], values: Sequence[Any]) -> None:
        entries = self._of(space)
        for key, value in zip(keys, values, strict=True):
            entries[key] = value
            entries.move_to_end(key)
        while len(entries) > self._size:
            entries.popitem(last=False)

    def _of(self, space: str) -> OrderedDict[Key, Any]:
        if space != self._space:
            self._space = space
            self._entries.clear()
        return self._entries


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
