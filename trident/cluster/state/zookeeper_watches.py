"""Watches at a ZooKeeper: each is told once, and ends with the connection."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trident.cluster.state.cluster_state import ClusterEvent, EventKind
from trident.cluster.state.event_teller import EventTeller

if TYPE_CHECKING:
    from kazoo.protocol.states import WatchedEvent

__all__ = ["ZooKeeperWatches"]

_KINDS: dict[str, EventKind] = {"CREATED": "created", "CHANGED": "changed", "DELETED": "deleted", "CHILD": "children"}


class ZooKeeperWatches:
    """What is watched.

    Parameters
    ----------
    root
        What the paths of nodes begin with at the servers.
    """

    def __init__(self, root: str, teller: EventTeller) -> None:
        self._root, self._teller = root, teller
        self._lock = threading.Lock()
        self._data: set[str] = set()
        self._children: set[str] = set()

    def expect(self, path: str, children: bool) -> None:
        """Expect an event of what is about to be read: it may come before the answer."""
        with self._lock:
            (self._children if children else self._data).add(path)

    def forget(self) -> None:
        """Drop all: the connection is lost."""
        with self._lock:
            self._data.clear()
            self._children.clear()

    def fire(self, event: WatchedEvent) -> None:
        """Tell of an event, if it is still waited for. This is what kazoo is given as its watch."""
        kind = _KINDS.get(event.type)
        if kind is None:  # of the connection, without a path
            return
        path = event.path[len(self._root) :] or "/"
        if self._take(kind, path):
            self._teller.tell(ClusterEvent(kind, path))

    def _take(self, kind: EventKind, path: str) -> bool:
        """Stop waiting for what the event ends; returns whether it was waited for."""
        with self._lock:
            waiting = [
                watched
                for watched, ending in ((self._data, "children"), (self._children, "changed"))
                if kind != ending and path in watched
            ]
            for watched in waiting:
                watched.remove(path)
            return bool(waiting)
