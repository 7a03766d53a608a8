"""ReadThroughMap: a cache outside the process in front of a durable map. The cache may lose, delay and keep anything.

Why no read is stale
    Every entry is in a *space*, a name that one instance drew at random and shares with no other. So only this instance
    fills the space, one call after the other, and no other writer's fill can be in it. The space is good while for each
    of its entries the last durable write of the key is the one that the entry shows:

    1. It begins empty.
    2. A key that is not in it is filled with what the durable map showed a moment before, inside a commit of this
       instance, in which no other instance writes the partition. (What a replaced writer can still slip into a store that
       does not keep it out entirely carries an attempt that lost: it stands for the very value that is filled here.)
    3. A write goes to the durable map first and then to the space. If either raises, it is unknown what each holds: the
       space is dropped. What the cache may still store late goes to a space that is never read.
    4. Another instance may write between two commits of this one. Then the log expects another sentinel than this
       instance left, and the space is dropped before the next read. The same after a commit that did not end.

    A space that was dropped never comes back. The cache may forget entries at any time: they are filled again by 2.
"""

from __future__ import annotations

import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from trident.errors import StateError
from trident.state.interfaces import IBackingMap, Key
from trident.state.txid import Txid
from trident.state.wrappers.cached import CommitMemory

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


class ReadThroughMap(CommitMemory):
    """A durable `IBackingMap` whose reads inside commits ask a cache first; see `CommitMemory`.

    A cache that fails is left alone until the next commit; the commit goes on without.
    It starts empty with every new instance of the map. Put it right under the map, as a `CachedMap`, not with one.

    Parameters
    ----------
    durable
        The store. The wrapper takes part in commits, keeps a sentinel, deletes and resets exactly if this map does.
    cache
        What is in front of it.
    """

    def __init__(self, durable: IBackingMap[Any], cache: SpacedCache[Any]) -> None:
        super().__init__(durable)
        self.durable, self.cache = durable, cache
        self._space: str | None = None  # None: the cache is not used

    def begin(self, txid: Txid) -> None:
        if self._space is None:
            self._forget()
        super().begin(txid)

    def close(self) -> None:
        self.cache.close()
        super().close()

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

    def _forget(self) -> None:
        self._space = secrets.token_hex(8)
