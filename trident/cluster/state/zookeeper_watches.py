"""Watches at a ZooKeeper that outlast a lost connection: kazoo forgets its own then."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trident.cluster.state.cluster_state import ClusterEvent, EventKind
from trident.cluster.state.event_teller import EventTeller
from trident.servers.zookeeper_session import Result, ZooKeeperSession

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.protocol.states import WatchedEvent, ZnodeStat

__all__ = ["ZooKeeperWatches"]

_KINDS: dict[str, EventKind] = {"CREATED": "created", "CHANGED": "changed", "DELETED": "deleted", "CHILD": "children"}
_ABSENT = 0
_UNREAD = -1


class ZooKeeperWatches:
    """What is watched, and which change of it was the last when it was read: 0 if there was no node.

    Parameters
    ----------
    root
        What the paths of nodes begin with at the servers.
    """

    def __init__(self, root: str, teller: EventTeller) -> None:
        self._root, self._teller = root, teller
        self._lock = threading.Lock()
        self._connection = 0
        self._data: dict[str, int] = {}
        self._children: dict[str, int] = {}

    def begin(self, path: str, children: bool) -> int:
        """Expect events of what is about to be read: they may come before the answer. Returns the number for `read`."""
        with self._lock:
            (self._children if children else self._data).setdefault(path, _UNREAD)
            return self._connection

    def read(self, path: str, children: bool, found: ZnodeStat | None, begun: int) -> bool:
        """Note what was read; False if the connection was lost in between: read again, nothing is watched."""
        with self._lock:
            known = self._children if children else self._data
            if path in known:  # else an event came first
                known[path] = _ABSENT if found is None else found.pzxid if children else found.mzxid
            return begun == self._connection

    def lose(self) -> None:
        """Note that the connection is lost, and what the servers would tell with it."""
        with self._lock:
            self._connection += 1

    def forget(self) -> None:
        """Drop all: the session is over."""
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

    def set_again(self, session: ZooKeeperSession) -> list[ClusterEvent]:
        """Watch all on the new connection; returns the events that were missed."""
        from kazoo.exceptions import NoNodeError

        with self._lock:
            # Who is reading sets the watch with that.
            data, children = (
                [(path, known) for path, known in watched.items() if known != _UNREAD]
                for watched in (self._data, self._children)
            )

        def ask(client: KazooClient) -> list[Result]:
            paths = [self._at(path) for path, _ in children]
            return [
                *(client.exists_async(self._at(path), self.fire) for path, _ in data),
                # Of a node that is not there only its creation can be watched, which is the business of `exists`.
                *(client.exists_async(path, self.fire) for path in paths),
                *(client.get_children_async(path, self.fire, include_data=True) for path in paths),
            ]

        found = session.call_each(ask, NoNodeError)
        now = [_ABSENT if stat is None else stat.mzxid for stat in found[: len(data)]]
        missed = [_missed("changed", *was, seen) for was, seen in zip(data, now, strict=True)]
        lists = found[len(data) + len(children) :]
        below = [_ABSENT if isinstance(each, NoNodeError) else each[1].pzxid for each in lists]
        missed += [_missed("children", *was, seen) for was, seen in zip(children, below, strict=True)]
        return [event for event in missed if event is not None and self._take(event.kind, event.path)]

    def _at(self, path: str) -> str:
        return self._root if path == "/" else self._root + path

    def _take(self, kind: EventKind, path: str) -> bool:
        """Stop waiting for what the event ends; returns whether it was waited for."""
        with self._lock:
            of_data = kind != "children" and self._data.pop(path, None) is not None
            of_children = kind != "changed" and self._children.pop(path, None) is not None
            return of_data or of_children


def _missed(kind: EventKind, path: str, known: int, seen: int) -> ClusterEvent | None:
    if seen == known:
        return None
    if seen == _ABSENT:
        return ClusterEvent("deleted", path)
    return ClusterEvent("created" if known == _ABSENT else kind, path)
