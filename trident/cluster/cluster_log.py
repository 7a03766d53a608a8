"""Where the transaction log of a topology is that runs in a cluster, if its settings do not say it."""

from __future__ import annotations

from trident.cluster.state.cluster_address import folder_of, is_embedded, with_root

__all__ = ["log_of"]


def log_of(cluster_address: str, name: str) -> str:
    """Return the log of the topologies of this name: in the ZooKeeper of the cluster, or in its folder."""
    if is_embedded(cluster_address):
        return str(folder_of(cluster_address).absolute() / "transactional" / name)
    return f"{with_root(cluster_address)}/transactional/{name}"
