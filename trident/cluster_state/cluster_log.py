"""Where the transaction log of a topology is that runs in a cluster, if its settings do not say it."""

from __future__ import annotations

from pathlib import Path

from trident.cluster_state.cluster_address import STATE_FILE, cluster_at, default_address, open_cluster_state
from trident.cluster_state.cluster_records import StormBase
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.config import Config
from trident.errors import ClusterError
from trident.log.log_reader import exists


def log_of(cluster_address: str, name: str, daemon_dir: Path | None = None) -> str:
    """Return the log of the topologies of this name: on the servers of the cluster, or on this machine.

    On this machine it is that of `trident run`, if there is one or the cluster is in the same folder: then either may continue
    what the other has begun, as relative paths of states are below that folder too. Else it is in the folder of the cluster.

    `daemon_dir`: the working directory of the daemons; that of this process by default.
    """
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
    """Return the log of the topology that was submitted under a name to the cluster that commands find; None if there is none.

    Raises `ClusterError`: the cluster cannot be asked, and there is no log of `trident run` either.
    """
    address = default_address()
    where = cluster_at(address)
    if isinstance(where, Path) and not (where / STATE_FILE).is_file():
        return None
    try:
        cluster = StormClusterState(open_cluster_state(address))
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
