"""Where a cluster is: the folder of one that runs on this machine, or the servers of its ZooKeeper."""

from __future__ import annotations

import os
import re
from pathlib import Path

from trident.cluster.cluster_errors import ClusterError
from trident.cluster.state.cluster_state import ClusterState
from trident.cluster.state.node_paths import checked_path
from trident.cluster.state.sqlite_state import SqliteClusterState
from trident.cluster.state.zookeeper_state import ZooKeeperClusterState

__all__ = ["default_address", "folder_of", "is_embedded", "open_cluster_state", "with_root"]

_FILE = "cluster.db"
_FOLDER = "trident-cluster"
_ROOT = "/storm"
_SCHEME = "zookeeper://"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/,@\[\]]+)(?::(\d{1,5}))?")


def default_address() -> str:
    """Return the address of whoever names none: that in the environment, else a folder below the working directory."""
    return os.environ.get("TRIDENT_CLUSTER") or _FOLDER


def is_embedded(address: str | Path) -> bool:
    """Tell whether an address is a folder; one that is neither is an error."""
    if isinstance(address, Path):
        return True
    if not address.strip():
        raise ClusterError(f"an empty text is no address of a cluster; {_expected()}")
    scheme, found, _ = address.partition("://")
    if found and f"{scheme}://" != _SCHEME:
        raise ClusterError(f"{address!r} is no address of a cluster; {_expected()}")
    if not found and address.startswith("zookeeper:"):
        raise ClusterError(f"{address!r} is no address of a cluster; {_expected()}")
    return not found


def folder_of(address: str | Path) -> Path:
    """Return the folder of an embedded cluster, absolute; the address of another is an error."""
    if not is_embedded(address):
        raise ClusterError(f"{address!r} is a cluster in ZooKeeper; it has no folder")
    return Path(address).expanduser().absolute()


def with_root(address: str) -> str:
    """Return the address of a cluster in ZooKeeper with its ports and its root, also if these are the usual ones."""
    hosts, root = _servers(address)
    return f"{_SCHEME}{hosts}{root}"


def open_cluster_state(address: str | Path, session_timeout_s: float = 10.0) -> ClusterState:
    """Open the state of a cluster, and begin a session.

    Parameters
    ----------
    address
        A folder, which is made if there is none; or `zookeeper://host:2181,host:2181/root`, whose root is `/storm` if it
        has none.
    session_timeout_s
        How long this process may be out of touch before its session is over, and its ephemeral nodes vanish.

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
        hosts, root = _servers(str(address))
        return ZooKeeperClusterState(hosts, root, session_timeout_s)
    folder = folder_of(address)
    if folder.exists() and not folder.is_dir():
        raise ClusterError(f"{folder} is a file; {_expected()}")
    return SqliteClusterState(folder / _FILE, session_timeout_s)


def _servers(address: str) -> tuple[str, str]:
    hosts, slash, root = address.removeprefix(_SCHEME).partition("/")
    found = [_HOST.fullmatch(each) for each in hosts.split(",")]
    ports = [int(each[2] or 2181) for each in found if each is not None]
    if len(ports) < len(found) or not all(0 < port < 65536 for port in ports):
        raise ClusterError(f"{address!r} is no address of a cluster; {_expected()}")
    root = checked_path(slash + root.rstrip("/")) if root.strip("/") else _ROOT
    return ",".join(f"{each[1]}:{port}" for each, port in zip(found, ports, strict=True) if each is not None), root


def _expected() -> str:
    return f"expected is a folder, or {_SCHEME}host:2181,host:2181{_ROOT}"
