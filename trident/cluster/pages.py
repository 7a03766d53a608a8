"""The pages of a cluster: what its state says, and what the drivers say of their topologies."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trident import __version__
from trident.cluster.cluster_errors import ClusterError, NoSuchTopology
from trident.cluster.nimbus.leadership import hosts_of, leader_of
from trident.cluster.nimbus.topology_names import TopologyNames
from trident.cluster.state.cluster_records import ErrorInfo, StormBase, WorkerHeartbeat
from trident.cluster.state.storm_cluster_state import StormClusterState
from trident.errors import TridentError
from trident.ui.cluster_pages import Action, Page, TopologyPages
from trident.ui.http_pages import HttpTopologyPages
from trident.ui.one_topology import topology_row

__all__ = ["Acting", "ClusterOverview", "uptime_text"]

Acting = Callable[[str, Action, Mapping[str, Any]], Page]
"""Does something to a topology, by its id."""


class ClusterOverview:
    """`ClusterPages` of a cluster. Threads may share it.

    Parameters
    ----------
    token
        What drivers and supervisors want to be told.
    act
        Does what is asked; None: the pages can only be read.
    """

    def __init__(self, cluster: StormClusterState, token: str | None, act: Acting | None = None) -> None:
        self.read_only = act is None
        self._cluster, self._token, self._act = cluster, token, act
        self._names = TopologyNames(cluster)
        self._drivers: dict[str, HttpTopologyPages] = {}

    def cluster_summary(self) -> Page:
        """Return how much there is of everything."""
        supervisors, rows = self._cluster.all_supervisor_info(), self._rows()
        total = sum(len(each.meta) for each in supervisors.values())
        nodes = [each.slot.node for each in self._cluster.all_assignments().values()]
        used = sum(1 for node in nodes if node in supervisors)
        return {
            "stormVersion": __version__,
            "supervisors": len(supervisors),
            "topologies": len(rows),
            "slotsTotal": total,
            "slotsUsed": used,
            "slotsFree": total - used,
            "executorsTotal": sum(row["executorsTotal"] or 0 for row in rows),
            "tasksTotal": sum(row["tasksTotal"] or 0 for row in rows),
        }

    def nimbus_summary(self) -> Page:
        """Return every Nimbus."""
        leader, now = leader_of(self._cluster.state), time.time()
        return {
            "nimbuses": [
                {
                    "host": each["host"],
                    "pid": each["pid"],
                    "url": each["url"],
                    "status": "Leader" if leader is not None and leader["id"] == each["id"] else "Not a Leader",
                    "version": each["version"],
                    "nimbusUpTime": uptime_text(now - each["since-secs"]),
                    "nimbusUpTimeSeconds": now - each["since-secs"],
                }
                for each in hosts_of(self._cluster.state)
            ]
        }

    def supervisor_summary(self) -> Page:
        """Return every supervisor."""
        found = sorted(self._cluster.all_supervisor_info().items())
        return {
            "supervisors": [
                {
                    "id": name,
                    "host": info.hostname,
                    "uptime": uptime_text(info.uptime_secs),
                    "uptimeSeconds": info.uptime_secs,
                    "slotsTotal": len(info.meta),
                    "slotsUsed": len(info.used_ports),
                    "slotsFree": len(info.meta) - len(info.used_ports),
                    "usedPorts": list(info.used_ports),
                }
                for name, info in found
            ]
        }

    def topology_summary(self) -> Page:
        """Return every topology, in the order of submission."""
        return {"topologies": self._rows()}

    def of_topology(self, topology_id: str) -> TopologyPages:
        """Return the pages of a topology."""
        return _OfTopology(self, self._cluster, self.id_of(topology_id), self._act)

    def log(self, topology_id: str, offset: int | None = None) -> Page:
        """Return a part of its driver's log, from the machine to which it is assigned."""
        storm_id = self.id_of(topology_id)
        assignment = self._cluster.assignment_info(storm_id)
        if assignment is None:
            return {"text": "", "offset": 0, "next": 0, "note": "the topology is not assigned to a machine"}
        node = assignment.slot.node
        info = self._cluster.supervisor_info(node)
        if info is None or "logs" not in info.scheduler_meta:
            raise ClusterError(f"the log of {storm_id} is on {node}, whose supervisor is not there")
        return self._driver(info.scheduler_meta["logs"], storm_id).log(offset)

    def id_of(self, topology: str) -> str:
        """Return the id of a topology that is named by its id or its name.

        Raises
        ------
        NoSuchTopology
            There is none; the message lists those that there are.
        """
        return self._names.find(topology)[0]

    def driver_of(self, beat: WorkerHeartbeat) -> HttpTopologyPages | None:
        """Return what the driver of a heartbeat serves, None if it serves nothing."""
        return self._driver(beat.pages, beat.storm_id) if beat.pages else None

    def _driver(self, url: str, storm_id: str) -> HttpTopologyPages:
        key = f"{url} {storm_id}"
        if key not in self._drivers:
            if len(self._drivers) > 1000:  # those of drivers that are long gone
                self._drivers.clear()
            self._drivers[key] = HttpTopologyPages(url, self._token, storm_id)
        return self._drivers[key]

    def _rows(self) -> list[Page]:
        bases, assignments = self._cluster.all_bases(), self._cluster.all_assignments()
        beats = self._cluster.all_heartbeats(list(bases))
        rows = []
        for storm_id, base in sorted(bases.items(), key=lambda item: (item[1].launch_time_secs, item[0])):
            assignment = assignments.get(storm_id)
            slot = None if assignment is None else assignment.slot
            beat = None if slot is None else beats.get(storm_id, {}).get(f"{slot.node}-{slot.port}")
            if beat is not None and assignment is not None and beat.start_time_secs != assignment.start_time_secs:
                beat = None
            rows.append({**topology_row({} if beat is None else beat.stats), **facts(storm_id, base, slot, beat)})
        return rows


class _OfTopology:
    """`TopologyPages` of a topology of the cluster: its driver's, or what its last heartbeat says."""

    def __init__(
        self, overview: ClusterOverview, cluster: StormClusterState, storm_id: str, act: Acting | None
    ) -> None:
        self._overview, self._cluster, self._id, self._act = overview, cluster, storm_id, act

    def topology(self, window_s: int = 0) -> Page:
        base, slot, beat = self._known()
        page: Page = {} if beat is None else dict(beat.stats)
        note = ""
        try:
            driver = None if beat is None else self._overview.driver_of(beat)
            if driver is not None:
                page = driver.topology(window_s)
        except (TridentError, KeyError) as error:
            note = f"the driver does not answer, so this is what it said last: {error}"
        told = [
            {"component": component, **_error(each)}
            for component, errors in self._cluster.all_errors(self._id).items()
            for each in errors
        ]
        errors = sorted(told, key=lambda each: -each["errorTime"]) or page.get("errors", [])
        return {**page, **facts(self._id, base, slot, beat), "topologyErrors": errors, "note": note}

    def component(self, component: str, window_s: int = 0) -> Page:
        page = self._driver().component(component, window_s)
        told = [_error(each) for each in self._cluster.errors(self._id, component)]
        return {**page, "componentErrors": told or page.get("componentErrors", [])}

    def visualization(self, window_s: int = 0) -> Page:
        return self._driver().visualization(window_s)

    def batches(self) -> Sequence[Page]:
        return self._driver().batches()

    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        return self._driver().lookup(state, key)

    def act(self, action: Action, parameters: Mapping[str, Any]) -> Page:
        if self._act is None:
            raise ClusterError("this server can only be read")
        return self._act(self._id, action, parameters)

    def _known(self) -> tuple[StormBase, Any, WorkerHeartbeat | None]:
        base, assignment = self._cluster.storm_base(self._id), self._cluster.assignment_info(self._id)
        if base is None:
            raise NoSuchTopology(f"the topology {self._id} has ended")
        if assignment is None:
            return base, None, None
        beat = self._cluster.get_worker_heartbeat(self._id, *assignment.slot)
        is_of_now = beat is not None and beat.start_time_secs == assignment.start_time_secs
        return base, assignment.slot, beat if is_of_now else None

    def _driver(self) -> HttpTopologyPages:
        _, slot, beat = self._known()
        driver = None if beat is None else self._overview.driver_of(beat)
        if driver is None:
            where = "it waits for a free slot" if slot is None else f"its driver in slot {slot} starts"
            raise ClusterError(f"the topology {self._id} does not run yet: {where}")
        return driver


def facts(storm_id: str, base: StormBase, slot: Any, beat: WorkerHeartbeat | None) -> Page:
    """Return what the cluster's state says of a topology, for its row and its page."""
    now = time.time()
    return {
        "id": storm_id,
        "encodedId": storm_id,
        "name": base.storm_name,
        "kind": base.kind,
        "status": _status(base, slot, beat),
        "statusReason": base.status.reason,
        "uptime": uptime_text(now - base.launch_time_secs),
        "uptimeSeconds": now - base.launch_time_secs,
        "workersTotal": base.num_workers,
        "slot": None if slot is None else str(slot),
        "host": None if beat is None else beat.hostname,
        "driverUptimeSeconds": None if beat is None else beat.uptime_secs,
        "heardSecondsAgo": None if beat is None else max(0.0, now - beat.time_secs),
        "generation": base.generation,
        "target": base.target,
        "conf": dict(base.conf),
    }


def _status(base: StormBase, slot: Any, beat: WorkerHeartbeat | None) -> str:
    if base.status.kind in ("killed", "failed"):
        return base.status.kind.upper()
    if slot is None:
        return "WAITING"
    if beat is None or beat.state == "starting":
        return "STARTING"
    return "ACTIVE" if base.status.kind == "active" else "INACTIVE"


def _error(info: ErrorInfo) -> dict[str, Any]:
    return {
        "errorTime": info.time_secs,
        "error": info.error,
        "errorHost": info.host,
        "errorPort": info.port,
        "errorLapsedSecs": max(0.0, time.time() - info.time_secs),
    }


def uptime_text(seconds: float) -> str:
    """Return a time as Storm UI has it: `2d 3h 4m 5s`."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if left >= size or parts:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join([*parts, f"{left}s"])
