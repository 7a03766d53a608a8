"""Deaths of drivers, as supervisors tell them: Nimbus moves a topology that keeps dying, and marks it as failed in the end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from trident.cluster.state.cluster_state import ClusterState

__all__ = ["DriverDeath", "all_deaths", "forget_deaths", "report_death"]

_DEATHS = "/deaths"
_KEPT = 100


@dataclass(frozen=True)
class DriverDeath:
    """A driver that ended without being told to: `/deaths/{topology-id}/d{number}`.

    Attributes
    ----------
    time_secs
        Seconds since 1970.
    node, port, generation, start_time_secs
        Its slot, which generation of the topology it ran, and since when it was assigned: by the clock of Nimbus, so that
        clocks need not agree to tell which assignment it was.
    ran_secs
        How long its topology had run; 0 if it never did.
    fatal
        Whether another start would end in the same way: its code, or its settings, cannot run.
    reason
        What is known of it.
    """

    time_secs: float
    node: str
    port: int
    generation: int
    start_time_secs: float
    ran_secs: float
    fatal: bool
    reason: str


def report_death(state: ClusterState, storm_id: str, death: DriverDeath) -> None:
    """Add a death; the oldest ones beyond a hundred are removed."""
    path = f"{_DEATHS}/{storm_id}"
    state.mkdirs(path)
    state.create_sequential(f"{path}/d", json.dumps({"version": 1, **asdict(death)}).encode())
    for each in state.get_children(path)[:-_KEPT]:
        state.delete_node(f"{path}/{each}")


def all_deaths(state: ClusterState) -> dict[str, list[DriverDeath]]:
    """Return the deaths by topology, oldest first, without those that another version wrote in another form."""
    paths = {f"{_DEATHS}/{name}": name for name in state.get_children(_DEATHS)}
    return {
        paths[path]: [death for _, data in sorted(below.items()) if (death := _death(data)) is not None]
        for path, below in state.get_data_below_each(list(paths)).items()
    }


def forget_deaths(state: ClusterState, storm_id: str) -> None:
    """Remove the deaths of a topology."""
    state.delete_node(f"{_DEATHS}/{storm_id}")


def _death(data: bytes) -> DriverDeath | None:
    """Return what a node holds; None if it cannot be read: Nimbus must look after all topologies the same."""
    try:
        read = json.loads(data)
        read.pop("version")
        return DriverDeath(**read)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
