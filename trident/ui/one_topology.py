"""`OneTopology`: one running topology as if it were a cluster, for the page of `trident run` and for drivers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trident import __version__
from trident.cluster_errors import NoSuchTopology
from trident.ui.cluster_pages import LogOf, Page, TopologyPages

_RATES_S = 600
_OF_ROW = (
    "id",
    "name",
    "kind",
    "status",
    "uptime",
    "uptimeSeconds",
    "workersTotal",
    "executorsTotal",
    "tasksTotal",
    "rates",
    "lags",
    "health",
    "verdict",
)


class OneTopology:
    """`ClusterPages` of a single topology.

    `topology_id`: its id in addresses.
    `pages`: what is served of it.
    `log`: returns its log from an offset on, see `ClusterPages.log`; None: there is none.
    `names`: further names that it is found by.
    """

    def __init__(
        self,
        topology_id: str,
        pages: TopologyPages,
        log: Callable[[int | None], Page] | None = None,
        *,
        read_only: bool = False,
        names: tuple[str, ...] = (),
    ) -> None:
        self.topology_id, self.read_only = topology_id, read_only
        self._pages, self._log = pages, log
        self._names = {topology_id, *names}

    def cluster_summary(self) -> Page:
        row = self._row()
        return {
            "stormVersion": __version__,
            "oneTopology": self.topology_id,
            "supervisors": 0,
            "topologies": 1,
            "slotsTotal": 0,
            "slotsUsed": 0,
            "slotsFree": 0,
            "executorsTotal": row["executorsTotal"],
            "tasksTotal": row["tasksTotal"],
        }

    def nimbus_summary(self) -> Page:
        return {"nimbuses": []}

    def supervisor_summary(self) -> Page:
        return {"supervisors": []}

    def topology_summary(self) -> Page:
        return {"topologies": [self._row()]}

    def of_topology(self, topology_id: str) -> TopologyPages:
        self._check(topology_id)
        return self._pages

    def log(self, topology_id: str, offset: int | None = None, of: LogOf = "driver") -> Page:
        """Return its log; an empty page if no log is recorded, as of what the process prints."""
        self._check(topology_id)
        return {"text": "", "offset": 0, "next": 0} if self._log is None or of != "driver" else self._log(offset)

    def _row(self) -> Page:
        return {**topology_row(self._pages.topology(_RATES_S)), "id": self.topology_id}

    def _check(self, topology_id: str) -> None:
        if topology_id not in self._names:
            raise NoSuchTopology(f"there is no topology {topology_id!r} here, only {self.topology_id!r}")


def topology_row(page: Mapping[str, Any]) -> Page:
    """Return the entry of `/api/v1/topology/summary` for a topology's page, which may come from a heartbeat."""
    return {name: page.get(name) for name in _OF_ROW}
