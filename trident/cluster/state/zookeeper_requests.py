"""What a cluster's state asks of a ZooKeeper to change nodes. `at` is a node's path at the servers.

A request whose answer is lost with the connection is sent again; whether the lost one was carried out is found by the number
of its change. So what was done is never reported as refused. (Two clients that write the very same bytes at that moment may
both be told that theirs was done.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trident.cluster.cluster_errors import ClusterError
from trident.cluster.state.node_paths import above
from trident.cluster.state.zookeeper_session import Result, ZooKeeperSession, lost_errors, together

if TYPE_CHECKING:
    from kazoo.client import KazooClient

__all__ = [
    "children_of_each",
    "compare_and_set",
    "create",
    "create_sequential",
    "data_of_each",
    "delete",
    "put",
    "replace",
]


def put(session: ZooKeeperSession, at: str, data: bytes) -> None:
    """Set a node's data; create it, and those above it, where there is none."""
    from kazoo.exceptions import NoNodeError

    while session.call(lambda client: client.set_async(at, data), NoNodeError).error is not None:
        if create(session, at, data):
            return


def create(session: ZooKeeperSession, at: str, data: bytes, ephemeral: bool = False) -> bool:
    """Create a node, and those above it; False if there is one."""
    from kazoo.exceptions import NoChildrenForEphemeralsError, NodeExistsError

    before = session.last_change

    def ask(client: KazooClient) -> Result:
        created: Result = client.create_async(at, data, ephemeral=ephemeral, makepath=True)
        return created

    try:
        answer = session.call(ask, NodeExistsError)
    except NoChildrenForEphemeralsError as error:
        raise _no_children(at) from error
    if answer.error is None or not answer.repeated:
        return answer.error is None
    found = _read(session, at)
    if found is None or found[1].czxid <= before:
        return False
    return bool(found[0] == data and found[1].ephemeralOwner == (session.id if ephemeral else 0))


def create_sequential(session: ZooKeeperSession, at: str, data: bytes) -> str:
    """Create a node whose name is `at` and the next number of the node above; returns its path at the servers."""
    from kazoo.exceptions import NoChildrenForEphemeralsError

    lost = lost_errors()
    while True:
        before = session.last_change
        try:
            answer = session.call(lambda client: client.create_async(at, data, sequence=True, makepath=True), *lost)
        except NoChildrenForEphemeralsError as error:
            raise _no_children(at) from error
        # Asking again would make a second one.
        created = answer.value if answer.error is None else _created_since(session, at, data, before)
        if created is not None:
            return str(created)


def compare_and_set(session: ZooKeeperSession, at: str, data: bytes, version: int) -> bool:
    """Set a node's data if it has this version."""
    from kazoo.exceptions import BadVersionError, NoNodeError

    if version < 0:  # any version, to ZooKeeper
        return False
    before = session.last_change
    answer = session.call(lambda client: client.set_async(at, data, version), BadVersionError, NoNodeError)
    if answer.error is None or not answer.repeated:
        return answer.error is None
    found = _read(session, at)
    return found is not None and found[0] == data and found[1].version == version + 1 and found[1].mzxid > before


def replace(session: ZooKeeperSession, at: str, data: bytes) -> bool:
    """Set a node of this session, or make it one; False if another client changed it in between: try again."""
    from kazoo.exceptions import NoAuthError, NoNodeError, NotEmptyError

    stat = session.call(lambda client: client.exists_async(at)).value
    if stat is None:
        return create(session, at, data, ephemeral=True)
    if stat.ephemeralOwner == session.id:
        return session.call(lambda client: client.set_async(at, data), NoNodeError).error is None

    def ask(client: KazooClient) -> Result:
        both = client.transaction()
        both.delete(at, stat.version)
        both.create(at, data, ephemeral=True)
        done: Result = both.commit_async()
        return done

    results = session.call(ask).value
    if any(isinstance(each, NotEmptyError) for each in results):
        raise ClusterError(f"the node {at!r} has nodes below it; it cannot become one that vanishes with a session")
    if any(isinstance(each, NoAuthError) for each in results):
        raise session.refused()
    return not any(isinstance(each, Exception) for each in results)


def delete(session: ZooKeeperSession, at: str) -> None:
    """Delete a node and all below it."""
    paths = [at]
    while _deleted(session, paths):
        paths = _tree(session, at)  # what is created below meanwhile is found the next time


def children_of_each(session: ZooKeeperSession, paths: Sequence[str]) -> list[list[str]]:
    """Return the names of the nodes below each path, asked for at once; none where there is no node."""
    from kazoo.exceptions import NoNodeError

    def ask(client: KazooClient) -> Result:
        return together([client.get_children_async(path) for path in paths], NoNodeError)

    return [[] if isinstance(each, NoNodeError) else each for each in session.call(ask).value]


def data_of_each(session: ZooKeeperSession, paths: Sequence[str]) -> list[bytes | None]:
    """Return the data of each node, asked for at once; None where there is none."""
    return [None if each is None else each[0] for each in _each(session, paths)]


def _deleted(session: ZooKeeperSession, paths: Sequence[str]) -> bool:
    """Delete nodes, those below others first; True if one is left that has nodes below it."""
    from kazoo.exceptions import NoNodeError, NotEmptyError

    def ask(client: KazooClient) -> Result:
        return together([client.delete_async(path) for path in sorted(paths, reverse=True)], NoNodeError, NotEmptyError)

    return any(isinstance(each, NotEmptyError) for each in session.call(ask).value)


def _tree(session: ZooKeeperSession, at: str) -> list[str]:
    """Return a node and all below it."""
    tree, level = [at], [at]
    while level:
        below = children_of_each(session, level)
        level = [f"{path}/{name}" for path, names in zip(level, below, strict=True) for name in names]
        tree += level
    return tree


def _read(session: ZooKeeperSession, at: str) -> Any:
    from kazoo.exceptions import NoNodeError

    return session.call(lambda client: client.get_async(at), NoNodeError).value


def _created_since(session: ZooKeeperSession, at: str, data: bytes, before: int) -> str | None:
    (names,) = children_of_each(session, [above(at)])
    ours = [path for path in (f"{above(at)}/{name}" for name in names) if path.startswith(at)]
    for path, found in zip(ours, _each(session, ours), strict=True):
        if found is not None and found[0] == data and found[1].czxid > before:
            return path
    return None


def _each(session: ZooKeeperSession, paths: Sequence[str]) -> list[Any]:
    from kazoo.exceptions import NoNodeError

    def ask(client: KazooClient) -> Result:
        return together([client.get_async(path) for path in paths], NoNodeError)

    return [None if isinstance(each, NoNodeError) else each for each in session.call(ask).value]


def _no_children(at: str) -> ClusterError:
    return ClusterError(f"the node {above(at)!r} vanishes with a session; it cannot have the node {at!r} below it")
