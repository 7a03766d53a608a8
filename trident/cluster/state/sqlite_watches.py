"""Watches of one session over the journal of a cluster's SQLite file."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from trident.cluster.state.cluster_state import ClusterEvent, EventKind
from trident.cluster.state.node_paths import above

__all__ = ["JournalWatches"]


class JournalWatches:
    """Which paths are watched, and since which entry of the journal. Whoever sets a watch or reads the journal holds `lock`."""

    def __init__(self, position: int) -> None:
        self.lock = threading.Lock()
        self.position = position
        self._data: dict[str, int] = {}
        self._children: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Whether anything is watched."""
        return bool(self._data or self._children)

    def watch_data(self, path: str, since: int) -> None:
        """Watch a node, or that it is created."""
        self._data.setdefault(path, since)

    def watch_children(self, path: str, since: int) -> None:
        """Watch which nodes are below a node, and whether it is there."""
        self._children.setdefault(path, since)

    def forget(self, position: int) -> None:
        """Drop all watches; read the journal from there."""
        self.position = position
        self._data.clear()
        self._children.clear()

    def read(self, entries: Iterable[tuple[int, EventKind, str]]) -> list[ClusterEvent]:
        """Return the events of further entries of the journal, in their order."""
        events = []
        for seq, kind, path in entries:
            self.position = seq
            of_data = self._fires(self._data, path, seq)
            # The children of a node that is changed are the same.
            of_children = kind != "changed" and self._fires(self._children, path, seq)
            if of_data or of_children:
                events.append(ClusterEvent(kind, path))
            if kind != "changed" and self._fires(self._children, above(path), seq):
                events.append(ClusterEvent("children", above(path)))
        return events

    @staticmethod
    def _fires(watched: dict[str, int], path: str, seq: int) -> bool:
        since = watched.get(path)
        if since is None or since >= seq:
            return False
        del watched[path]
        return True
