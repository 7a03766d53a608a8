"""`ZooKeeperClusterState`: the state of a cluster in a ZooKeeper, through kazoo.

Watches at a ZooKeeper: each reports one change, and ends with the connection.

A request whose answer is lost with the connection is sent again; whether the lost one was carried out is found by the number
of its change. So what was done is never reported as refused. (If two clients write the very same bytes at that moment, both
may get a success.)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trident.cluster.state.cluster_state import (
    Callback,
    ClusterEvent,
    EventDispatcher,
    EventKind,
    Versioned,
    above,
    checked_data,
    checked_path,
    checked_way,
)
from trident.cluster_errors import ClusterError, ClusterUnreachable
from trident.servers.zookeeper_session import (
    AUTH,
    CallResult,
    PendingAnswer,
    SessionChange,
    ZooKeeperSession,
    lost_errors,
)

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.protocol.states import WatchedEvent

Fire = Callable[["WatchedEvent"], None]
Ask = Callable[["KazooClient", str, Fire | None], CallResult]

_log = logging.getLogger(__name__)


class ZooKeeperClusterState(ZooKeeperSession):
    """A cluster's state in a ZooKeeper; implements `ClusterState`. `at` is a node's path at the servers.

    `hosts`: the servers: `host:port`, with commas in between.
    `root`: the node below which everything is stored; it is created if there is none.
    `session_timeout_s`: how long this process may be out of touch before the servers end its session, and a request without an
    answer. They may have bounds of their own.
    Raises `ClusterUnreachable`: no server answered within the timeout.
    Raises `EnvironmentProblem`: the package kazoo is missing.
    """

    needed_for, error = "a cluster's state in ZooKeeper", ClusterError

    def __init__(self, hosts: str, root: str = "/storm", session_timeout_s: float = 10.0) -> None:
        self._root = checked_way(root)
        self._dispatcher = EventDispatcher("cluster")
        self._watches = ZooKeeperWatches(root, self._dispatcher)
        try:
            super().__init__(hosts, session_timeout_s, f"the state of the cluster at {hosts}")
        except BaseException:
            self._dispatcher.close()
            raise
        try:
            self.call(lambda client: client.ensure_path_async(root))
        except BaseException:
            self.close()
            raise

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        at = self._written(path, data)
        while not self._replace(at, data):
            pass

    def create_ephemeral_node(self, path: str, data: bytes) -> bool:
        return self._create(self._written(path, data), data, ephemeral=True)

    def create_sequential(self, path: str, data: bytes) -> str:
        at, lost = self._written(f"{path}0", data)[:-1], lost_errors()
        while True:
            before = self.last_change
            answer = self._ask_below(
                at, lambda client: client.create_async(at, data, sequence=True, makepath=True), *lost
            )
            # Asking again would make a second one.
            created = answer.value if answer.error is None else self._created_since(at, data, before)
            if created is not None:
                return str(created)[len(self._root) :]

    def set_data(self, path: str, data: bytes) -> None:
        from kazoo.exceptions import NoNodeError

        at = self._written(path, data)
        while self.call(lambda client: client.set_async(at, data), NoNodeError).error is not None:
            if self._create(at, data):
                return

    def compare_and_set(self, path: str, data: bytes, version: int | None) -> bool:
        from kazoo.exceptions import BadVersionError, NoNodeError

        at = self._written(path, data)
        if version is None:
            return self._create(at, data)
        if version < 0:  # any version, to ZooKeeper
            return False
        before = self.last_change
        answer = self.call(lambda client: client.set_async(at, data, version), BadVersionError, NoNodeError)
        if answer.error is None or not answer.repeated:
            return answer.error is None
        (node,) = self._each([at])
        return node is not None and node[0] == data and node[1].version == version + 1 and node[1].mzxid > before

    def delete_node(self, path: str) -> None:
        at = self._written(path)
        paths = [at]
        while self._deleted(paths):
            paths = self._tree(at)  # what is created below meanwhile is found the next time

    def mkdirs(self, path: str) -> None:
        from kazoo.exceptions import NoChildrenForEphemeralsError

        at = self._at(path)
        try:
            self.call(lambda client: client.ensure_path_async(at))
        except NoChildrenForEphemeralsError as error:
            raise ClusterError(
                f"a node above {path!r} vanishes with a session; it cannot have nodes below it"
            ) from error

    # ---- reading -----------------------------------------------------------------------------------------------------

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        node = self._read(path, watch)
        return None if node is None else node.data

    def get_data_each(self, paths: Sequence[str]) -> list[bytes | None]:
        return self._data_of_each([self._at(path) for path in paths])

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
        names = self._children_of_each([self._at(path) for path in found])
        wanted = [(path, name) for path, below in zip(found, names, strict=True) for name in sorted(below)]
        ways = [f"{self._root}{path.rstrip('/')}/{name}" for path, name in wanted]
        for (path, name), data in zip(wanted, self._data_of_each(ways), strict=True):
            if data is not None:
                found[path][name] = data
        return found

    # ---- events and the session ----------------------------------------------------------------------------------------

    def register(self, callback: Callback) -> str:
        return self._dispatcher.register(callback)

    def unregister(self, callback_id: str) -> None:
        self._dispatcher.unregister(callback_id)

    def close(self) -> None:
        if self.is_ours:
            super().close()
            self._dispatcher.close()

    def changed(self, change: SessionChange) -> None:
        if change == "suspended":
            self._watches.forget()
        if change != "connected":
            _log.warning("the session at the ZooKeeper %s is %s", self.hosts, change)
        self._dispatcher.put(ClusterEvent(change, ""))

    def check_patience(self, since: float) -> None:
        if time.monotonic() - since > self.timeout_s:
            raise self.unreachable()

    def unreachable(self) -> ClusterUnreachable:
        return ClusterUnreachable(
            f"no ZooKeeper answers at {self.hosts} (tried for {self.timeout_s:g} s); is it up, and does it have a majority?"
        )

    def refused(self) -> ClusterError:
        return ClusterError(
            f"the ZooKeeper at {self.hosts} refuses access to the cluster: give {AUTH}=digest:USER:PASSWORD, of the user who "
            "made its nodes, to every daemon and client"
        )

    # ---- what changes nodes ----------------------------------------------------------------------------------------------

    def _create(self, at: str, data: bytes, ephemeral: bool = False) -> bool:
        """Create a node, and those above it; False if there is one."""
        from kazoo.exceptions import NodeExistsError

        before = self.last_change
        answer = self._ask_below(
            at, lambda client: client.create_async(at, data, ephemeral=ephemeral, makepath=True), NodeExistsError
        )
        if answer.error is None or not answer.repeated:
            return answer.error is None
        (node,) = self._each([at])
        if node is None or node[1].czxid <= before:
            return False
        return bool(node[0] == data and node[1].ephemeralOwner == (self.id if ephemeral else 0))

    def _replace(self, at: str, data: bytes) -> bool:
        """Set a node of this session, or make it one; False if another client changed it in between: try again."""
        from kazoo.exceptions import NoNodeError, NotEmptyError

        stat = self.call(lambda client: client.exists_async(at)).value
        if stat is None:
            return self._create(at, data, ephemeral=True)
        if stat.ephemeralOwner == self.id:
            return self.call(lambda client: client.set_async(at, data), NoNodeError).error is None

        def fill(both: Any) -> None:
            both.delete(at, stat.version)
            both.create(at, data, ephemeral=True)

        results = self.transaction(fill).value
        if any(isinstance(each, NotEmptyError) for each in results):
            raise ClusterError(f"the node {at!r} has nodes below it; it cannot become one that vanishes with a session")
        return not any(isinstance(each, Exception) for each in results)

    def _ask_below(
        self, at: str, create: Callable[[KazooClient], CallResult], *expected: type[Exception]
    ) -> PendingAnswer:
        """Ask for a new node, which the node above may not be able to have."""
        from kazoo.exceptions import NoChildrenForEphemeralsError

        try:
            return self.call(create, *expected)
        except NoChildrenForEphemeralsError as error:
            raise ClusterError(
                f"the node {above(at)!r} vanishes with a session; it cannot have the node {at!r} below it"
            ) from error

    def _created_since(self, at: str, data: bytes, before: int) -> str | None:
        (names,) = self._children_of_each([above(at)])
        ours = [path for path in (f"{above(at)}/{name}" for name in names) if path.startswith(at)]
        for path, found in zip(ours, self._each(ours), strict=True):
            if found is not None and found[0] == data and found[1].czxid > before:
                return path
        return None

    def _deleted(self, paths: Sequence[str]) -> bool:
        """Delete nodes, those below others first; True if one is left that has nodes below it."""
        from kazoo.exceptions import NoNodeError, NotEmptyError

        below_first = sorted(paths, reverse=True)
        found = self.call_each(lambda client: map(client.delete_async, below_first), NoNodeError, NotEmptyError)
        return any(isinstance(each, NotEmptyError) for each in found)

    def _tree(self, at: str) -> list[str]:
        """Return a node and all below it."""
        tree, level = [at], [at]
        while level:
            below = self._children_of_each(level)
            level = [f"{path}/{name}" for path, names in zip(level, below, strict=True) for name in names]
            tree += level
        return tree

    # ---- what reads them ---------------------------------------------------------------------------------------------------

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
            found = self.call(lambda client: ask(client, at, fire), NoNodeError).value
            if found is not None or not watch:
                return found
            if self.call(lambda client: client.exists_async(at, fire)).value is None:
                return None  # else it was created in between

    def _children_of_each(self, paths: Sequence[str]) -> list[list[str]]:
        """Return the names of the nodes below each path, asked for at once; none where there is no node."""
        from kazoo.exceptions import NoNodeError

        found = self.call_each(lambda client: map(client.get_children_async, paths), NoNodeError)
        return [[] if isinstance(each, NoNodeError) else each for each in found]

    def _data_of_each(self, paths: Sequence[str]) -> list[bytes | None]:
        return [None if each is None else each[0] for each in self._each(paths)]

    def _each(self, paths: Sequence[str]) -> list[Any]:
        """Return the data and facts of each node, asked for at once; None where there is none."""
        from kazoo.exceptions import NoNodeError

        found = self.call_each(lambda client: map(client.get_async, paths), NoNodeError)
        return [None if isinstance(each, NoNodeError) else each for each in found]

    def _at(self, path: str) -> str:
        return self._root if checked_path(path) == "/" else self._root + path

    def _written(self, path: str, data: bytes = b"") -> str:
        checked_data(path, data)
        return self._at(checked_way(path))


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
