"""What a cluster's state asks of a ZooKeeper to change nodes. `at` is a node's path at the servers.

A request whose answer is lost with the connection is sent again; whether the lost one was carried out is found by the number
of its change. So what was done is never reported as refused. (If two clients write the very same bytes at that moment, both
may get a success.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trident.cluster.state.cluster_state import above
from trident.cluster_errors import ClusterError, ClusterUnreachable
from trident.servers.zookeeper_session import AUTH, CallResult, SessionChange, ZooKeeperSession, lost_errors

if TYPE_CHECKING:
    from kazoo.client import KazooClient


class ClusterSession(ZooKeeperSession):
    """The session of a cluster's state; each request may take as long as the session lasts without an answer.

    `on_change`: called with `suspended`, `connected` or `expired`, in kazoo's thread: it must not wait.
    """

    needed_for, error = "a cluster's state in ZooKeeper", ClusterError

    def __init__(self, hosts: str, timeout_s: float, on_change: Callable[[SessionChange], None]) -> None:
        self._on_change = on_change
        super().__init__(hosts, timeout_s, f"the state of the cluster at {hosts}")

    def changed(self, change: SessionChange) -> None:
        self._on_change(change)

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

    def put(self, at: str, data: bytes) -> None:
        """Set a node's data; create it, and those above it, where there is none."""
        from kazoo.exceptions import NoNodeError

        while self.call(lambda client: client.set_async(at, data), NoNodeError).error is not None:
            if self.create(at, data):
                return

    def create(self, at: str, data: bytes, ephemeral: bool = False) -> bool:
        """Create a node, and those above it; False if there is one."""
        from kazoo.exceptions import NoChildrenForEphemeralsError, NodeExistsError

        before = self.last_change

        def ask(client: KazooClient) -> CallResult:
            created: CallResult = client.create_async(at, data, ephemeral=ephemeral, makepath=True)
            return created

        try:
            answer = self.call(ask, NodeExistsError)
        except NoChildrenForEphemeralsError as error:
            raise _no_children(at) from error
        if answer.error is None or not answer.repeated:
            return answer.error is None
        node = self._read(at)
        if node is None or node[1].czxid <= before:
            return False
        return bool(node[0] == data and node[1].ephemeralOwner == (self.id if ephemeral else 0))

    def create_sequential(self, at: str, data: bytes) -> str:
        """Create a node whose name is `at` and the next number of the node above; returns its path at the servers."""
        from kazoo.exceptions import NoChildrenForEphemeralsError

        lost = lost_errors()
        while True:
            before = self.last_change
            try:
                answer = self.call(lambda client: client.create_async(at, data, sequence=True, makepath=True), *lost)
            except NoChildrenForEphemeralsError as error:
                raise _no_children(at) from error
            # Asking again would make a second one.
            created = answer.value if answer.error is None else self._created_since(at, data, before)
            if created is not None:
                return str(created)

    def compare_and_set(self, at: str, data: bytes, version: int) -> bool:
        """Set a node's data if it has this version."""
        from kazoo.exceptions import BadVersionError, NoNodeError

        if version < 0:  # any version, to ZooKeeper
            return False
        before = self.last_change
        answer = self.call(lambda client: client.set_async(at, data, version), BadVersionError, NoNodeError)
        if answer.error is None or not answer.repeated:
            return answer.error is None
        node = self._read(at)
        return node is not None and node[0] == data and node[1].version == version + 1 and node[1].mzxid > before

    def replace(self, at: str, data: bytes) -> bool:
        """Set a node of this session, or make it one; False if another client changed it in between: try again."""
        from kazoo.exceptions import NoNodeError, NotEmptyError

        stat = self.call(lambda client: client.exists_async(at)).value
        if stat is None:
            return self.create(at, data, ephemeral=True)
        if stat.ephemeralOwner == self.id:
            return self.call(lambda client: client.set_async(at, data), NoNodeError).error is None

        def fill(both: Any) -> None:
            both.delete(at, stat.version)
            both.create(at, data, ephemeral=True)

        results = self.transaction(fill).value
        if any(isinstance(each, NotEmptyError) for each in results):
            raise ClusterError(f"the node {at!r} has nodes below it; it cannot become one that vanishes with a session")
        return not any(isinstance(each, Exception) for each in results)

    def delete(self, at: str) -> None:
        """Delete a node and all below it."""
        paths = [at]
        while self._deleted(paths):
            paths = self._tree(at)  # what is created below meanwhile is found the next time

    def children_of_each(self, paths: Sequence[str]) -> list[list[str]]:
        """Return the names of the nodes below each path, asked for at once; none where there is no node."""
        from kazoo.exceptions import NoNodeError

        found = self.call_each(lambda client: map(client.get_children_async, paths), NoNodeError)
        return [[] if isinstance(each, NoNodeError) else each for each in found]

    def data_of_each(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the data of each node, asked for at once; None where there is none."""
        return [None if each is None else each[0] for each in self._each(paths)]

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
            below = self.children_of_each(level)
            level = [f"{path}/{name}" for path, names in zip(level, below, strict=True) for name in names]
            tree += level
        return tree

    def _read(self, at: str) -> Any:
        from kazoo.exceptions import NoNodeError

        return self.call(lambda client: client.get_async(at), NoNodeError).value

    def _created_since(self, at: str, data: bytes, before: int) -> str | None:
        (names,) = self.children_of_each([above(at)])
        ours = [path for path in (f"{above(at)}/{name}" for name in names) if path.startswith(at)]
        for path, found in zip(ours, self._each(ours), strict=True):
            if found is not None and found[0] == data and found[1].czxid > before:
                return path
        return None

    def _each(self, paths: Sequence[str]) -> list[Any]:
        from kazoo.exceptions import NoNodeError

        found = self.call_each(lambda client: map(client.get_async, paths), NoNodeError)
        return [None if isinstance(each, NoNodeError) else each for each in found]


def _no_children(at: str) -> ClusterError:
    return ClusterError(f"the node {above(at)!r} vanishes with a session; it cannot have the node {at!r} below it")
