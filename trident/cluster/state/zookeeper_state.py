"""`ZooKeeperClusterState`: the state of a cluster in a ZooKeeper, through kazoo.

Watches at a ZooKeeper: each reports one change, and ends with the connection.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trident.cluster.state.cluster_state import (
    Callback,
    ClusterEvent,
    EventDispatcher,
    EventKind,
    Versioned,
    checked_data,
    checked_path,
    checked_way,
)
from trident.cluster.state.zookeeper_requests import ClusterSession
from trident.cluster_errors import ClusterError
from trident.servers.zookeeper_session import CallResult, SessionChange

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.protocol.states import WatchedEvent

Fire = Callable[["WatchedEvent"], None]
Ask = Callable[["KazooClient", str, Fire | None], CallResult]

_log = logging.getLogger(__name__)


class ZooKeeperClusterState:
    """A cluster's state in a ZooKeeper; implements `ClusterState`.

    `hosts`: the servers: `host:port`, with commas in between.
    `root`: the node below which everything is stored; it is created if there is none.
    `session_timeout_s`: how long this process may be out of touch before the servers end its session. They may have bounds of
    their own.
    Raises `ClusterUnreachable`: no server answered within the timeout.
    Raises `EnvironmentProblem`: the package kazoo is missing.
    """

    def __init__(self, hosts: str, root: str = "/storm", session_timeout_s: float = 10.0) -> None:
        self._hosts, self._root = hosts, checked_way(root)
        self._dispatcher = EventDispatcher("cluster")
        self._watches = ZooKeeperWatches(root, self._dispatcher)
        try:
            self._session = ClusterSession(hosts, session_timeout_s, self._changed)
        except BaseException:
            self._dispatcher.close()
            raise
        try:
            self._session.call(lambda client: client.ensure_path_async(root))
        except BaseException:
            self.close()
            raise

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        at = self._written(path, data)
        while not self._session.replace(at, data):
            pass

    def create_ephemeral_node(self, path: str, data: bytes) -> bool:
        return self._session.create(self._written(path, data), data, ephemeral=True)

    def create_sequential(self, path: str, data: bytes) -> str:
        at = self._written(f"{path}0", data)[:-1]
        return self._session.create_sequential(at, data)[len(self._root) :]

    def set_data(self, path: str, data: bytes) -> None:
        self._session.put(self._written(path, data), data)

    def compare_and_set(self, path: str, data: bytes, version: int | None) -> bool:
        at = self._written(path, data)
        if version is None:
            return self._session.create(at, data)
        return self._session.compare_and_set(at, data, version)

    def delete_node(self, path: str) -> None:
        self._session.delete(self._written(path))

    def mkdirs(self, path: str) -> None:
        from kazoo.exceptions import NoChildrenForEphemeralsError

        at = self._at(path)
        try:
            self._session.call(lambda client: client.ensure_path_async(at))
        except NoChildrenForEphemeralsError as error:
            raise ClusterError(
                f"a node above {path!r} vanishes with a session; it cannot have nodes below it"
            ) from error

    # ---- reading -----------------------------------------------------------------------------------------------------

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        node = self._read(path, watch)
        return None if node is None else node.data

    def get_data_each(self, paths: Sequence[str]) -> list[bytes | None]:
        return self._session.data_of_each([self._at(path) for path in paths])

    def get_versioned(self, path: str) -> Versioned | None:
        return self._read(path, watch=False)

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        def ask(client: KazooClient, at: str, fire: Fire | None) -> CallResult:
            found: CallResult = client.get_children_async(at, fire, include_data=True)
            return found

        found = self._found(path, watch, True, ask)
        return [] if found is None else sorted(found[0])

    def get_data_below(self, path: str) -> dict[str, bytes]:
        return self.get_data_below_each([path])[path]

    def get_data_below_each(self, paths: Sequence[str]) -> dict[str, dict[str, bytes]]:
        """Return the data of all nodes directly below each path."""
        found: dict[str, dict[str, bytes]] = {path: {} for path in paths}
        names = self._session.children_of_each([self._at(path) for path in found])
        wanted = [(path, name) for path, below in zip(found, names, strict=True) for name in sorted(below)]
        ways = [f"{self._root}{path.rstrip('/')}/{name}" for path, name in wanted]
        for (path, name), data in zip(wanted, self._session.data_of_each(ways), strict=True):
            if data is not None:
                found[path][name] = data
        return found

    # ---- events and the session ----------------------------------------------------------------------------------------

    def register(self, callback: Callback) -> str:
        return self._dispatcher.register(callback)

    def unregister(self, callback_id: str) -> None:
        self._dispatcher.unregister(callback_id)

    def close(self) -> None:
        if self._session.is_ours:
            self._session.close()
            self._dispatcher.close()

    def _read(self, path: str, watch: bool) -> Versioned | None:
        node = self._found(path, watch, False, lambda client, at, fire: client.get_async(at, fire))
        return None if node is None else Versioned(node[0], node[1].version)

    def _found(self, path: str, watch: bool, children: bool, ask: Ask) -> Any:
        """Ask for something and its statistics, and watch it; None if there is no node, then its creation is watched."""
        from kazoo.exceptions import NoNodeError

        at, fire = self._at(path), self._watches.fire if watch else None
        while True:
            if watch:
                self._watches.expect(path, children)
            found = self._session.call(lambda client: ask(client, at, fire), NoNodeError).value
            if found is not None or not watch:
                return found
            if self._session.call(lambda client: client.exists_async(at, fire)).value is None:
                return None  # else it was created in between

    def _at(self, path: str) -> str:
        return self._root if checked_path(path) == "/" else self._root + path

    def _written(self, path: str, data: bytes = b"") -> str:
        checked_data(path, data)
        return self._at(checked_way(path))

    def _changed(self, change: SessionChange) -> None:
        if change == "suspended":
            self._watches.forget()
        if change != "connected":
            _log.warning("the session at the ZooKeeper %s is %s", self._hosts, change)
        self._dispatcher.put(ClusterEvent(change, ""))


_KINDS: dict[str, EventKind] = {"CREATED": "created", "CHANGED": "changed", "DELETED": "deleted", "CHILD": "children"}


class ZooKeeperWatches:
    """What is watched.

    `root`: what the paths of nodes begin with at the servers.
    """

    def __init__(self, root: str, dispatcher: EventDispatcher) -> None:
        self._root, self._dispatcher = root, dispatcher
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
            self._dispatcher.put(ClusterEvent(kind, path))

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
