"""Where a cluster is, a folder or an address of servers: opening its state there, its token, the logs of its topologies."""

import contextlib
import logging
import os
import secrets
from functools import partial
from pathlib import Path

from trident.cluster_state.cluster_records import StormBase
from trident.cluster_state.storm_cluster_state import ClusterState, StormClusterState
from trident.config import Config
from trident.errors import ClusterError, ClusterUnreachable, ConfigError, NotAllowed
from trident.log.log_reader import exists
from trident.nodes.interface import NodeEvent, Nodes, Tell
from trident.nodes.object_nodes import ObjectNodes
from trident.nodes.polled_nodes import NOT_THERE, PostgresNodes
from trident.nodes.sqlite_nodes import SqliteNodes
from trident.nodes.zookeeper_nodes import ZooKeeperNodes
from trident.roles import close_on_error
from trident.servers.local_processes import write_whole
from trident.servers.log_addresses import (
    ObjectAddress,
    PostgresAddress,
    ZooKeeperAddress,
    is_in_objects,
    is_postgres,
    is_zookeeper,
)
from trident.servers.patience import Patience

STATE_FILE = "cluster.db"  # the file of a cluster on this machine, in its folder
TOKEN_FILE = "token"  # the name of the file beside it with the token; only its user may read it
TOKEN_VARIABLE = "TRIDENT_TOKEN"  # the variable in which drivers find the token
_FOLDER = "trident-cluster"
_ROOT = "/storm"
_EXPECTED = (
    f"expected is a folder, or zookeeper://host:2181,host:2181{_ROOT}, postgresql://USER@HOST/DATABASE?cluster=NAME, "
    "s3://BUCKET/PREFIX (gs, az, abfss)"
)

_log = logging.getLogger(__name__)


def default_address() -> str:
    return os.environ.get("TRIDENT_CLUSTER") or _FOLDER


def cluster_at(address: str | Path) -> Path | ZooKeeperAddress | PostgresAddress | ObjectAddress:
    """Read the address of a cluster; a folder is absolute then. `ClusterError`: it is none."""
    text = str(address)
    try:
        if is_postgres(text):
            return PostgresAddress.of(text, "cluster")
        if is_in_objects(text):
            return ObjectAddress.of(text, "cluster")
        if is_zookeeper(text):
            servers, slash, root = text.partition("://")[2].partition("/")
            has_root = not servers or root.strip("/")
            return ZooKeeperAddress.of(text if has_root else f"{text.removesuffix(slash + root)}{_ROOT}", "cluster")
    except ConfigError as error:
        raise ClusterError(f"{error}; {_EXPECTED}") from error
    if not text.strip() or "://" in text or text.lower().startswith("zookeeper:"):
        raise ClusterError(
            f"{repr(text) if text.strip() else 'an empty text'} is not the address of a cluster; {_EXPECTED}"
        )
    return Path(text).expanduser().absolute()


def folder_of(address: str | Path) -> Path | None:
    """Return the folder of a cluster on this machine, absolute; None: it is on servers."""
    where = cluster_at(address)
    return where if isinstance(where, Path) else None


def open_cluster_state(address: str | Path, session_timeout_s: float = 10.0, makes: bool = True) -> ClusterState:
    """Open the state of a cluster, and begin a session. `ClusterUnreachable`: nothing answers in time.

    `address`: a folder, which is made if there is none, or one of servers, where it is made if `makes` says so.
    `session_timeout_s`: how long this process may be out of touch with servers; in a folder how long a change waits for others.
    """
    if session_timeout_s <= 0:
        raise ValueError(f"session_timeout_s is {session_timeout_s}; it must be more than 0")
    return ClusterState(partial(_open_nodes, cluster_at(address), session_timeout_s, makes))


def _open_nodes(
    where: Path | ZooKeeperAddress | PostgresAddress | ObjectAddress, timeout_s: float, makes: bool, tell: Tell
) -> Nodes:
    match where:
        case Path():
            if where.exists() and not where.is_dir():
                raise ClusterError(f"{where} is a file; {_EXPECTED}")
            return SqliteNodes(where / STATE_FILE, timeout_s, tell)
        case PostgresAddress():
            return PostgresNodes(where, timeout_s, tell, makes)
        case ObjectAddress():
            return ObjectNodes(where, timeout_s, tell, makes)
        case ZooKeeperAddress():

            def hear(event: NodeEvent) -> None:
                if event.kind in ("suspended", "expired"):
                    _log.warning("the session at the ZooKeeper %s is %s", where.hosts, event.kind)
                tell(event)

            what = f"the state of the cluster at {where.hosts}"
            patience = Patience("ZooKeeper", where, ClusterUnreachable, timeout_s)
            nodes = ZooKeeperNodes(where, what, timeout_s, patience, ClusterError, hear, makes)
            with close_on_error(nodes.close):
                if not makes and nodes.read(["/"]) == [None]:
                    raise ClusterUnreachable(f"{what} {NOT_THERE}")
            return nodes


def log_of(cluster_address: str, name: str, daemon_dir: Path | None = None) -> str:
    """Return the log of the topologies of this name: on the servers of the cluster, or on this machine."""
    # On this machine that of `trident run`, if there is one or the cluster is in the same folder: either may continue what the
    # other has begun, as relative paths of states are below that folder too. Else it is in the folder of the cluster.
    folder, here = cluster_at(cluster_address), (daemon_dir or Path.cwd()).absolute()
    if not isinstance(folder, Path):
        return folder.log_below(name)
    own, of_run = folder / "transactional" / name, here / Config().log_folder(name)
    if exists(own):
        return str(own)
    return str(of_run if folder.parent == here or exists(of_run) else own)


def log_of_base(cluster_address: str, base: StormBase) -> str:
    return base.conf.get("log_dir") or base.log_dir or log_of(cluster_address, base.storm_name)


def submitted_log(name: str) -> str | None:
    """Return the log of a topology of the cluster that commands find; `ClusterError`: it is not known where."""
    address = default_address()
    where = cluster_at(address)
    if isinstance(where, Path) and not (where / STATE_FILE).is_file():
        return None
    try:
        cluster = StormClusterState(open_cluster_state(address, makes=False))
        try:
            named = [base for base in cluster.all_bases().values() if base.storm_name == name]
        finally:
            cluster.disconnect()
    except ClusterError as error:
        if exists(Config().log_folder(name)):
            return None
        raise ClusterError(f"{error}. So it is not known where the log of {name!r} is; name it (--log-dir)") from error
    if named:
        return log_of_base(address, max(named, key=lambda base: base.launch_time_secs))
    return None if exists(Config().log_folder(name)) else log_of(address, name)  # it may have been killed


def find_token(folder: Path | None, given: str | None) -> str | None:
    """Return the token that was given, else that in the folder of the cluster; None if there is none."""
    if given:
        return given
    if folder is None:
        return None
    try:
        return (folder / TOKEN_FILE).read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ClusterError(
            f"the token of the cluster cannot be read: {error}. Only the user who started it may; others give it with --token"
        ) from error


def own_token(given: str | None, folder: Path | None) -> str:
    """Return the token for a daemon; the folder of the cluster gets one if it has none. `NotAllowed`: no folder."""
    token = find_token(folder, given)
    if token is not None:
        return token
    if folder is None:
        raise NotAllowed(
            f"a cluster on servers needs a token that all of its daemons and clients know. Make one, as with `openssl rand "
            f"-hex 16`, and put it into the environment as {TOKEN_VARIABLE} (or --token)"
        )
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f"{TOKEN_FILE}.{secrets.token_hex(4)}"
    write_whole(aside, secrets.token_hex(16), 0o600)
    with contextlib.suppress(FileExistsError):  # another daemon may make it just now
        os.link(aside, folder / TOKEN_FILE)  # whole, and only once
    aside.unlink()
    token = find_token(folder, None)
    if token is None:
        raise ClusterError(
            f"{folder / TOKEN_FILE} is empty, and no token would be right. Remove it: the next daemon that starts makes a new "
            "one, and the others of this cluster have to start again"
        )
    return token
