"""What memories in front of a backing map have in common: when what they remember still counts (R10).

Spark pins no partition to a process. What an instance remembers outlives a commit only if its next commit follows directly:
the sentinel that the log expects must be the one that this instance left at the end of its last commit. In every other
case (another process committed meanwhile, a commit failed or never ended) it starts empty again.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from trident.state.backing_map import BackingMap
from trident.state.interfaces import IBackingMap, Key
from trident.state.sentinel import is_sentinel_key
from trident.state.txid import Txid
from trident.state.wrappers.forwarding import MapWrapper


class CommitMemory(MapWrapper):
    """A memory that is used by the thread that is inside a commit, and forgets unless commits follow directly.

    A commit that crashed counts as under way until the next one begins.
    """

    def __init__(self, store: IBackingMap[Any]) -> None:
        super().__init__(store)
        self._committing: int | None = None  # the thread that is inside a commit
        self._ended: Txid | None = None  # the last commit that ended well, while nothing began after it

    @property
    def past_caches(self) -> BackingMap:
        """The map that this is around."""
        return self.inner.past_caches

    def begin(self, txid: Txid) -> None:
        """Keep what is remembered if this commit follows directly on this instance's last one; else forget it."""
        ended, self._ended, self._committing = self._ended, None, None
        if ended is None or not follows(txid, ended):
            self._forget()
        self.inner.begin(txid)
        self._committing = threading.get_ident()

    def end(self, txid: Txid) -> None:
        """End the commit; if the store cannot, nothing that it wrote is remembered."""
        self._committing = None
        self.inner.end(txid)
        self._ended = txid  # after the store: puts that did not become durable must not be remembered

    @abstractmethod
    def _forget(self) -> None:
        """Start empty again."""

    def _remembers(self, keys: Sequence[Key]) -> bool:
        """Whether this thread is inside a commit and these are keys of its data.

        A sentinel under a reserved key shows what other writers did: it is always read from the store.
        """
        return self._committing == threading.get_ident() and not is_sentinel_key(keys)


def follows(txid: Txid, ended: Txid) -> bool:
    """Whether no commit can have happened between `ended`, which this instance ended, and `txid`."""
    if txid.incarnation is None or ended.sentinel is None:
        # No log to ask: only the very next txid is surely not preceded by another writer's.
        return txid.incarnation is None and ended.sentinel is None and int(txid) == int(ended) + 1
    return txid.expected == ended.sentinel
