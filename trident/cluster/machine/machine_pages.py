"""What a supervisor serves: the logs of its drivers, in the shape of the pages of a cluster."""

from __future__ import annotations

from pathlib import Path

from trident import __version__
from trident.cluster.cluster_errors import NoSuchTopology
from trident.cluster.machine.machine_folder import MachineFolder, read_log
from trident.ui.cluster_pages import Page, TopologyPages

__all__ = ["MachinePages"]


class MachinePages:
    """`ClusterPages` of one machine: it knows logs, and nothing of topologies."""

    read_only = True

    def __init__(self, folder: MachineFolder) -> None:
        self._folder = folder

    def cluster_summary(self) -> Page:
        """Return the version."""
        return {"stormVersion": __version__}

    def nimbus_summary(self) -> Page:
        """Return nothing."""
        return {"nimbuses": []}

    def supervisor_summary(self) -> Page:
        """Return the id."""
        return {"supervisors": [{"id": self._folder.id}]}

    def topology_summary(self) -> Page:
        """Return nothing."""
        return {"topologies": []}

    def of_topology(self, topology_id: str) -> TopologyPages:
        """Refuse: drivers serve these."""
        raise NoSuchTopology(f"a supervisor serves logs only; ask Nimbus for {topology_id!r}")

    def log(self, topology_id: str, offset: int | None = None) -> Page:
        """Return a part of a topology's log; what its process printed while it started is before it, until it logs."""
        file = self._folder.log_file(Path(topology_id).name)
        if not file.exists():
            file = self._folder.output_file(Path(topology_id).name)
        return dict(read_log(file, offset))
