"""Why a topology of a cluster waits."""

from __future__ import annotations

from collections.abc import Mapping

from trident.cluster.nimbus.leadership import leader_of
from trident.cluster.state.cluster_records import Assignment
from trident.cluster.state.storm_cluster_state import StormClusterState

__all__ = ["why_waiting"]


def why_waiting(cluster: StormClusterState, assignments: Mapping[str, Assignment]) -> str:
    """Return why a topology has no slot that needs one."""
    if leader_of(cluster.state) is None:
        return "no Nimbus leads the cluster, so it is not assigned"
    supervisors = cluster.all_supervisor_info()
    if not supervisors:
        return "no supervisor is there"
    offered = {(name, port) for name, info in supervisors.items() for port in info.meta}
    if offered <= {tuple(each.slot) for each in assignments.values()}:
        slots = f"{len(supervisors)} supervisors offer {len(offered)} slots"
        return f"no free slot: {slots}, and all are taken. Start another supervisor, or kill a topology"
    return "it is about to be assigned"
