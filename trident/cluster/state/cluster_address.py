"""Where a cluster is: the folder of one that runs on this machine, or the servers of its ZooKeeper."""

from __future__ import annotations

import os
from pathlib import Path

from trident.cluster.state.cluster_state import ClusterState
from trident.cluster.state.sqlite_nodes import SqliteNodes
from trident.cluster.state.zookeeper_state import ZooKeeperState
from trident.cluster_errors import ClusterError
from trident.errors import ConfigError
from trident.servers.log_addresses import ZooKeeperAddress, is_zookeeper

STATE_FILE = "cluster.db"
"""The file of a cluster on this machine, in its folder."""
_FOLDER = "trident-cluster"
_ROOT = "/storm"
_EXPECTED = f"expected is a folder, or zookeeper://host:2181,host:2181{_ROOT}"


def default_address() -> str:
    """Return the default address: that in the environment, else a folder below the working directory."""
    return os.environ.get("TRIDENT_CLUSTER") or _FOLDER


def is_embedded(address: str | Path) -> bool:
    """Tell whether an address is a folder; one that is neither is an error."""
    if isinstance(address, Path):
        return True
    if not address.strip():
        raise ClusterError(f"an empty text is not the address of a cluster; {_EXPECTED}")
    if is_zookeeper(address):
        return False
    if "://" in address or address.lower().startswith("zookeeper:"):
        raise ClusterError(f"{address!r} is not the address of a cluster; {_EXPECTED}")
    return True


def folder_of(address: str | Path) -> Path:
    """Return the folder of an embedded cluster, absolute; the address of another is an error."""
    if not is_embedded(address):
        raise ClusterError(f"{address!r} is a cluster in ZooKeeper; it has no folder")
    return Path(address).expanduser().absolute()


def with_root(address: str) -> str:
    """Return the address of a cluster in ZooKeeper with its ports and its root, also if these are the usual ones."""
    return str(_zookeeper(address))


def open_cluster_state(address: str | Path, session_timeout_s: float = 10.0) -> ClusterState:
    """Open the state of a cluster, and begin a session.

    Parameters
    ----------
    address
        A folder, which is made if there is none; or `zookeeper://host:2181,host:2181/root`, whose root is `/storm` if it
        has none.
    session_timeout_s
        How long this process may be out of touch with a ZooKeeper before its session is over, and its ephemeral nodes vanish.
        In a folder a session lasts as long as its process, and this is how long a change waits for others.

    Raises
    ------
    ClusterError
        The address is none, or what is there cannot be used.
    ClusterUnreachable
        Nothing answers within the timeout.
    """
    if session_timeout_s <= 0:
        raise ValueError(f"session_timeout_s is {session_timeout_s}; it must be more than 0")
    if not is_embedded(address):
        found = _zookeeper(str(address))
        return ClusterState(lambda tell: ZooKeeperState(found, session_timeout_s, tell))
    folder = folder_of(address)
    if folder.exists() and not folder.is_dir():
        raise ClusterError(f"{folder} is a file; {_EXPECTED}")
    return ClusterState(lambda tell: SqliteNodes(folder / STATE_FILE, session_timeout_s, tell))


def _zookeeper(address: str) -> ZooKeeperAddress:
    servers, slash, root = address.partition("://")[2].partition("/")
    if servers and not root.strip("/"):
        address = f"{address.removesuffix(slash + root)}{_ROOT}"
    try:
        return ZooKeeperAddress.of(address, "cluster")
    except ConfigError as error:
        raise ClusterError(f"{error}; {_EXPECTED}") from error
