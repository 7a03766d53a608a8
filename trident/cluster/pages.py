"""The pages of a cluster: what its state says, and what the drivers say of their topologies."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from trident import __version__
from trident.cluster.client import leader_url
from trident.cluster.topology_overviews import TopologyOverview, overview, overviews
from trident.cluster_state.cluster_address import open_cluster_state
from trident.cluster_state.cluster_records import ErrorInfo, StatusKind, machine_names
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.errors import ClusterError, NoSuchTopology, NotRunning, TridentError
from trident.observe.topology_status import pretty_seconds
from trident.redaction import shown_configuration
from trident.web.cluster_pages import Action, HttpTopologyPages, LogOf, Page, TopologyPages, topology_row

Acting = Callable[[str, Action, Mapping[str, Any]], Page]  # does something to a topology, by its id

_ACTIONS: Mapping[StatusKind, list[Action]] = {
    "active": ["deactivate", "rebalance", "kill"],
    "inactive": ["activate", "rebalance", "kill"],
    "failed": ["activate", "kill"],
    "killed": [],
}
"""What can be done to a topology, by the status of its record."""

_WITHOUT_DRIVER: Mapping[str, Page] = {
    "visualization": {"nodes": [], "edges": []}, "series": {}, "batches": {"batches": []}, "dead-letters": {"deadLetters": []},
}  # fmt: skip


class ClusterOverview:
    """`ClusterPages` of a cluster, which threads may share; without `act` they can only be read."""

    def __init__(self, cluster: StormClusterState, token: str | None, act: Acting | None = None) -> None:
        self.read_only = act is None
        self.act, self._cluster, self._token = act, cluster, token
        self._drivers: dict[str, HttpTopologyPages] = {}

    def cluster_summary(self) -> Page:
        supervisors, rows, runs = self._cluster.all_supervisor_info(), self._rows(), self._runs()
        total = sum(len(each.meta) for each in supervisors.values())
        used = sum(len(runs.get(node, ())) for node in supervisors)
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
        leader, now = self._cluster.leader(), time.time()
        return {
            "nimbuses": [
                {
                    **{name: each[name] for name in ("host", "pid", "url", "version")},
                    "status": "Leader" if leader is not None and leader["id"] == each["id"] else "Not a Leader",
                    "nimbusUpTime": pretty_seconds(now - each["since-secs"]),
                    "nimbusUpTimeSeconds": now - each["since-secs"],
                }
                for each in self._cluster.nimbuses()
            ]
        }

    def supervisor_summary(self) -> Page:
        supervisors, runs = self._cluster.all_supervisor_info(), self._runs()
        names = machine_names(supervisors)
        return {
            "supervisors": [
                {
                    "id": name,
                    "host": names[name],
                    "uptime": pretty_seconds(info.uptime_secs),
                    "uptimeSeconds": info.uptime_secs,
                    "slotsTotal": len(info.meta),
                    "slotsUsed": len(runs.get(name, ())),
                    "slotsFree": len(info.meta) - len(runs.get(name, ())),
                    "usedPorts": [port for port, _ in runs.get(name, ())],
                    "runs": [{"port": port, "id": storm_id} for port, storm_id in runs.get(name, ())],
                }
                for name, info in sorted(supervisors.items(), key=lambda item: (names[item[0]], item[0]))
            ]
        }

    def topology_summary(self) -> Page:
        # First those that failed, that wait, that have problems; else in the order of submission.
        return {"topologies": self._rows()}

    def of_topology(self, topology_id: str) -> TopologyPages:
        storm_id, _ = self._cluster.find_storm(topology_id)
        return ClusterTopologyPages(self._cluster, storm_id, self)

    def log(self, topology_id: str, offset: int | None = None, of: LogOf = "driver") -> Page:
        """Return a part of its driver's log, or of what that prints, from the machine where it is, or where its driver died."""
        storm_id, _ = self._cluster.find_storm(topology_id)
        assignment = self._cluster.assignment_info(storm_id)
        # A failed topology has no slot any more; what it failed of is logged where its driver died last.
        deaths = [] if assignment is not None else self._cluster.all_deaths().get(storm_id, [])
        if assignment is None and not deaths:
            return {"text": "", "offset": 0, "next": 0, "note": "the topology is not assigned to a machine"}
        node, machine = (deaths[-1].node,) * 2 if assignment is None else (assignment.slot.node, assignment.machine)
        info = self._cluster.supervisor_info(node)
        if info is None or "logs" not in info.scheduler_meta:
            raise ClusterError(f"the log of {storm_id} is on {machine}, whose supervisor is not running")
        return self.served_at(info.scheduler_meta["logs"], storm_id).log(offset, of)

    def served_at(self, url: str, storm_id: str) -> HttpTopologyPages:
        key = f"{url} {storm_id}"
        if key not in self._drivers:
            if len(self._drivers) > 1000:  # most of them of drivers that are long gone
                self._drivers.clear()
            self._drivers[key] = HttpTopologyPages(url, self._token, storm_id)
        return self._drivers[key]

    def _runs(self) -> dict[str, list[tuple[int, str]]]:
        """Return by supervisor the used ports and the topologies assigned to them, whether or not their drivers run."""
        runs: dict[str, list[tuple[int, str]]] = {}
        for (node, port), storm_id in sorted((each.slot, id_) for id_, each in self._cluster.all_assignments().items()):
            runs.setdefault(node, []).append((port, storm_id))
        return runs

    def _rows(self) -> list[Page]:
        judged = [(each, each.with_verdict(each.stats)) for each in overviews(self._cluster)]
        return sorted(({**topology_row(page), **each.facts()} for each, page in judged), key=_urgency)


def _urgency(row: Page) -> tuple[int, int]:
    status, tone = row["status"], row["verdict"]["tone"]
    return {"FAILED": 0, "WAITING": 1}.get(status, 2), {"bad": 0, "warn": 1}.get(tone, 2)


class ClusterTopologyPages:
    """`TopologyPages` of a topology of the cluster: its driver's, or what its last heartbeat says."""

    def __init__(self, cluster: StormClusterState, storm_id: str, overview: ClusterOverview) -> None:
        self._cluster, self._id, self._overview = cluster, storm_id, overview

    def topology(self, window_s: int = 0) -> Page:
        """Return what the driver says, else what its last heartbeat said; `note` says so when it is the latter."""
        seen, driver = self._look_up()
        page, base = seen.stats, seen.base
        note, served = seen.why_no_driver if driver is None else "", False
        try:
            if driver is not None:
                page, served = driver.topology(window_s), True
        except (TridentError, KeyError) as error:
            note = f"the driver does not answer, so this is what it said last: {error}"
        recent = [
            {"component": component, **_error(each)}
            for component, errors in self._cluster.all_errors(self._id).items()
            for each in errors
        ]
        settings = {"configuration": shown_configuration(base.conf), "configurationSet": sorted(base.conf)}
        # After the driver's own page: what is kept here outlives it, and it does not know what may be done to it.
        known = {
            "topologyErrors": sorted(recent, key=lambda each: -each["errorTime"]) or page.get("errors", []),
            "note": note,
            "actions": _ACTIONS[base.status.kind],
            "isServed": served,
            "logs": ["driver", "output"],
        }
        return seen.with_verdict({**settings, **page, **known})

    def view(self, name: str, window_s: int = 0) -> Page:
        what, _, component = name.partition("/")
        _, driver = self._look_up()
        if driver is None and what in _WITHOUT_DRIVER:
            return dict(_WITHOUT_DRIVER[what])
        page = self._driver().view(name, window_s)
        if what == "component":
            recent = [_error(each) for each in self._cluster.errors(self._id, component)]
            page["componentErrors"] = recent or page.get("componentErrors", [])
        return page

    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        return self._driver().lookup(state, key)

    def act(self, action: Action, parameters: Mapping[str, Any]) -> Page:
        if self._overview.act is None:
            raise ClusterError("this server can only be read")
        return self._overview.act(self._id, action, parameters)

    def _look_up(self) -> tuple[TopologyOverview, HttpTopologyPages | None]:
        """Return the topology, and what its driver serves; None if it serves nothing."""
        base = self._cluster.storm_base(self._id)
        if base is None:
            raise NoSuchTopology(f"the topology {self._id} has ended")
        seen = overview(self._cluster, self._id, base)
        url = "" if seen.heartbeat is None else seen.heartbeat.pages
        return seen, self._overview.served_at(url, self._id) if url else None

    def _driver(self) -> HttpTopologyPages:
        seen, driver = self._look_up()
        if driver is None:
            raise NotRunning(f"the topology {self._id} does not run: {seen.why_no_driver}")
        return driver


def _error(info: ErrorInfo) -> dict[str, Any]:
    return {
        "errorTime": info.time_secs,
        "error": info.error,
        "errorHost": info.host,
        "errorPort": info.port,
        "errorLapsedSecs": max(0.0, time.time() - info.time_secs),
    }


@contextmanager
def open_cluster_pages(address: str, token: str | None) -> Iterator[ClusterOverview]:
    """Open the pages of a cluster; what is asked for goes to the leading Nimbus, with the cluster's token."""
    cluster = StormClusterState(open_cluster_state(address, makes=False))

    def forward(storm_id: str, action: Action, parameters: Mapping[str, Any]) -> Page:
        with HttpTopologyPages(leader_url(cluster), token, storm_id) as nimbus:
            return nimbus.act(action, parameters)

    try:
        yield ClusterOverview(cluster, token, None if token is None else forward)
    finally:
        cluster.disconnect()
