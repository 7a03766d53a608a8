"""What the REST interface serves: `TopologyPages` of one topology that runs, `ClusterPages` of all that there are.

`OneTopology` is one running topology as if it were a cluster, for the page of `trident run` and for drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from trident import __version__
from trident.cluster_errors import NoSuchTopology

Page = dict[str, Any]
"""Plain data, ready for JSON; names as Storm UI has them where it has them (`/api/v1/topology/<id>` …)."""

Action = str
"""`activate`, `deactivate`, `kill`, `rebalance`; `dead-letters` puts some back, or discards them."""

LogOf = Literal["driver", "output"]
"""The log of a driver, or what its processes print, those of its workers on that machine too: only a cluster keeps that."""


_OF_ROW = (
    "id", "name", "kind", "status", "uptime", "uptimeSeconds", "workersTotal", "executorsTotal", "tasksTotal", "rates", "lags",
    "health", "verdict",
)  # fmt: skip


class TopologyPages(Protocol):
    """The pages of one topology, made in the process that runs it. Any thread may ask.

    Windows are in seconds: 600, 10800, 86400, or 0 for all time. What does not exist (a component, a state) is a `KeyError`
    whose text says what there is.
    """

    def topology(self, window_s: int = 0) -> Page:
        """Return the whole: figures by window, components, states, sources with lag, errors, what Storm UI shows."""

    def component(self, component: str, window_s: int = 0) -> Page:
        """Return one component: an operation or state of Trident, a spout, a bolt."""

    def visualization(self, window_s: int = 0) -> Page:
        """Return the picture: nodes and edges with rates."""

    def series(self, window_s: int = 0) -> Page:
        """Return throughput, latency, lag and failures over time as columns; without any while no driver answers."""

    def batches(self) -> Sequence[Page]:
        """Return the last batches, oldest first, with the seconds of their phases; none for spouts and bolts."""

    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        """Return `{"state", "key", "value", "txid"}` of one key."""

    def dead_letters(self) -> Page:
        """Return `{"deadLetters": …}`: the newest of those that wait."""

    def act(self, action: Action, parameters: Mapping[str, Any]) -> Page:
        """Do something to the topology. Raises `TridentError` if it cannot be done."""


class ClusterPages(Protocol):
    """The pages of a cluster, or of one topology that runs alone. Any thread may ask.

    A topology that does not exist is `NoSuchTopology`. `trident.cluster_errors` has what else is raised.
    """

    read_only: bool

    def cluster_summary(self) -> Page:
        """Return how many supervisors, slots, executors and topologies there are, and the version."""

    def nimbus_summary(self) -> Page:
        """Return every Nimbus and which of them leads."""
        return {"nimbuses": []}

    def supervisor_summary(self) -> Page:
        """Return every supervisor with its slots and uptime."""
        return {"supervisors": []}

    def topology_summary(self) -> Page:
        """Return every topology, one entry each."""

    def of_topology(self, topology_id: str) -> TopologyPages:
        """Return the pages of a topology, by its id or its name."""

    def log(self, topology_id: str, offset: int | None = None, of: LogOf = "driver") -> Page:
        """Return `{"text", "offset", "next"}`: the log of its driver from `offset` on, 64 KiB at most, or its last 64 KiB."""


class OneTopology(ClusterPages):
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
            "topologies": 1,
            **dict.fromkeys(("supervisors", "slotsTotal", "slotsUsed", "slotsFree"), 0),
            **{name: row[name] for name in ("executorsTotal", "tasksTotal")},
        }

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
        return {**topology_row(self._pages.topology(600)), "id": self.topology_id}

    def _check(self, topology_id: str) -> None:
        if topology_id not in self._names:
            raise NoSuchTopology(f"there is no topology {topology_id!r} here, only {self.topology_id!r}")


def topology_row(page: Mapping[str, Any]) -> Page:
    """Return the entry of `/api/v1/topology/summary` for a topology's page, which may come from a heartbeat."""
    return {name: page.get(name) for name in _OF_ROW}
