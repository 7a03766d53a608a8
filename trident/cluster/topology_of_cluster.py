"""The pages of one topology of a cluster: what its driver says, and what the cluster's state says about it.

Why a topology of a cluster waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trident.cluster.state.cluster_records import DRIVER, Assignment, ErrorInfo, StatusKind, StormBase, WorkerHeartbeat
from trident.cluster.state.storm_cluster_state import StormClusterState
from trident.cluster_errors import ClusterError, NoSuchTopology, NotRunning
from trident.errors import TridentError
from trident.observe.topology_status import pretty_seconds
from trident.observe.verdict import verdict
from trident.redaction import redacted, shown_configuration, shown_settings
from trident.ui.cluster_pages import Action, Page
from trident.ui.http_pages import HttpTopologyPages

_RECENT_DEATH_S = 1800.0

Acting = Callable[[str, Action, Mapping[str, Any]], Page]
"""Does something to a topology, by its id."""


_ACTIONS: Mapping[StatusKind, list[Action]] = {
    "active": ["deactivate", "rebalance", "kill"],
    "inactive": ["activate", "rebalance", "kill"],
    "failed": ["activate", "kill"],
    "killed": [],
}
"""What can be done to a topology, by the status of its record."""


class ClusterTopologyPages:
    """`TopologyPages` of a topology of the cluster: its driver's, or what its last heartbeat says."""

    def __init__(
        self,
        cluster: StormClusterState,
        storm_id: str,
        driver_of: Callable[[WorkerHeartbeat], HttpTopologyPages | None],
        act: Acting | None,
    ) -> None:
        self._cluster, self._id, self._driver_of, self._act = cluster, storm_id, driver_of, act

    def topology(self, window_s: int = 0) -> Page:
        """Return what the driver says, else what its last heartbeat said; `note` says so when it is the latter."""
        base, assignment, beat = self._known()
        page: Page = {} if beat is None else dict(beat.stats)
        driver = None if beat is None else self._driver_of(beat)
        note = "" if driver is not None else self._why_not(base, assignment)
        served = False
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
        errors = sorted(recent, key=lambda each: -each["errorTime"]) or page.get("errors", [])
        known = {
            "topologyErrors": errors,
            "note": note,
            "actions": _ACTIONS[base.status.kind],
            "isServed": served,
            "logs": ["driver", "output"],
        }
        settings = {"configuration": shown_configuration(base.conf), "configurationSet": sorted(base.conf)}
        found = facts(self._id, base, assignment, beat)
        page = {**settings, **page, **found, **known}
        why = why_waiting(self._cluster, self._cluster.all_assignments()) if found["status"] == "WAITING" else ""
        return {**page, "verdict": verdict({**page, **reasons(self._cluster, found, why)})}

    def component(self, component: str, window_s: int = 0) -> Page:
        """Return one component, with the errors that the cluster keeps of it."""
        page = self._driver().component(component, window_s)
        recent = [_error(each) for each in self._cluster.errors(self._id, component)]
        return {**page, "componentErrors": recent or page.get("componentErrors", [])}

    def visualization(self, window_s: int = 0) -> Page:
        """Return the picture; an empty one while there is no driver."""
        driver = self._driver_now()
        return {"nodes": [], "edges": []} if driver is None else driver.visualization(window_s)

    def series(self, window_s: int = 0) -> Page:
        driver = self._driver_now()
        return {} if driver is None else driver.series(window_s)

    def batches(self) -> Sequence[Page]:
        """Return the last batches; none while there is no driver."""
        driver = self._driver_now()
        return [] if driver is None else driver.batches()

    def lookup(self, state: str, key: Sequence[Any]) -> Page:
        return self._driver().lookup(state, key)

    def dead_letters(self) -> Page:
        """Return the dead letters that wait; none while there is no driver."""
        driver = self._driver_now()
        return {"deadLetters": []} if driver is None else driver.dead_letters()

    def act(self, action: Action, parameters: Mapping[str, Any]) -> Page:
        if self._act is None:
            raise ClusterError("this server can only be read")
        return self._act(self._id, action, parameters)

    def _known(self) -> tuple[StormBase, Assignment | None, WorkerHeartbeat | None]:
        base, assignment = self._cluster.storm_base(self._id), self._cluster.assignment_info(self._id)
        if base is None:
            raise NoSuchTopology(f"the topology {self._id} has ended")
        if assignment is None:
            return base, None, None
        beat = self._cluster.get_worker_heartbeat(self._id, *assignment.slot)
        is_of_now = beat is not None and beat.start_time_secs == assignment.start_time_secs
        return base, assignment, beat if is_of_now else None

    def _driver_now(self) -> HttpTopologyPages | None:
        _, _, beat = self._known()
        return None if beat is None else self._driver_of(beat)

    def _driver(self) -> HttpTopologyPages:
        driver = self._driver_now()
        if driver is None:
            base, assignment, _ = self._known()
            raise NotRunning(f"the topology {self._id} does not run: {self._why_not(base, assignment)}")
        return driver

    def _why_not(self, base: StormBase, assignment: Assignment | None) -> str:
        """Say why there is no driver that could be asked."""
        if base.status.kind == "failed":
            return f"it was marked as failed: {first_line(base.status.reason)}"
        if base.status.kind == "killed":
            return "it ends"
        if assignment is None:
            return f"it waits: {why_waiting(self._cluster, self._cluster.all_assignments())}"
        return f"its driver in slot {assignment.where} starts"


def find_topology(bases: Mapping[str, StormBase], topology: str) -> tuple[str, StormBase]:
    """Return the id and the record of a topology, by its id or its name; of several of one name, the one that does not end.

    Raises `NoSuchTopology`: there is none; the message names those that there are.
    """
    if topology in bases:
        return topology, bases[topology]
    matches = [(storm_id, base) for storm_id, base in bases.items() if base.storm_name == topology]
    if not matches:
        names = ", ".join(sorted(base.storm_name for base in bases.values())) or "none"
        raise NoSuchTopology(f"there is no topology {topology!r} in this cluster; its topologies are: {names}")
    return max(matches, key=lambda each: (each[1].status.kind != "killed", each[1].launch_time_secs))


def facts(storm_id: str, base: StormBase, assignment: Assignment | None, beat: WorkerHeartbeat | None) -> Page:
    """Return what the cluster's state says about a topology, for its row and its page."""
    now = time.time()
    return {
        "id": storm_id,
        "encodedId": storm_id,
        "name": base.storm_name,
        "kind": base.kind,
        "status": _status(base, assignment, beat),
        "statusReason": redacted(base.status.reason),
        "uptime": pretty_seconds(now - base.launch_time_secs),
        "uptimeSeconds": now - base.launch_time_secs,
        "workersTotal": base.num_workers,
        "slot": None if assignment is None else assignment.where,
        "host": None if assignment is None else assignment.machine,
        "supervisor": None if assignment is None else assignment.slot.node,
        "driverUptimeSeconds": None if beat is None else beat.uptime_secs,
        "heardSecondsAgo": None if beat is None else max(0.0, now - beat.time_secs),
        "generation": base.generation,
        "target": base.target,
        "conf": shown_settings(base.conf),
    }


def reasons(cluster: StormClusterState, found: Page, why: str) -> Page:
    """Return what `verdict` must know of a topology that waits, starts or has failed: why, each in a line.

    `found`: what `facts` says of it.
    `why`: why it waits, if it does.
    """
    errors = cluster.errors(found["id"], DRIVER) if found["status"] == "STARTING" else []
    last = max(errors, key=lambda each: each.time_secs, default=None)
    died = last is not None and time.time() - last.time_secs < _RECENT_DEATH_S
    return {
        "statusReason": first_line(found["statusReason"] or why),
        "driverDied": first_line(last.error) if died and last is not None else "",
    }


def first_line(error: str) -> str:
    """Return an error in a line, without secrets: its first one, the last one of a stack trace, both where a list follows."""
    lines = redacted(error).strip().splitlines() or [""]
    head, trace, _ = lines[0].partition("Traceback (most recent call last)")
    if trace:
        return lines[-1] if lines[-1].startswith(head.strip()) else f"{head}{lines[-1]}"
    return f"{lines[0]} {lines[-1].strip()}" if lines[0].endswith(":") else lines[0]


def _status(base: StormBase, assignment: Assignment | None, beat: WorkerHeartbeat | None) -> str:
    if base.status.kind in ("killed", "failed"):
        return base.status.kind.upper()
    if assignment is None:
        return "WAITING"
    if beat is None or beat.state == "starting":
        return "STARTING"
    return "ACTIVE" if base.status.kind == "active" else "INACTIVE"


def _error(info: ErrorInfo) -> dict[str, Any]:
    return {
        "errorTime": info.time_secs,
        "error": redacted(info.error),
        "errorHost": info.host,
        "errorPort": info.port,
        "errorLapsedSecs": max(0.0, time.time() - info.time_secs),
    }


def why_waiting(cluster: StormClusterState, assignments: Mapping[str, Assignment]) -> str:
    """Return why a topology has no slot that needs one."""
    if cluster.leader() is None:
        return "no Nimbus leads the cluster, so it is not assigned"
    supervisors = cluster.all_supervisor_info()
    if not supervisors:
        return "no supervisor is there"
    offered = {(name, port) for name, info in supervisors.items() for port in info.meta}
    if offered <= {tuple(each.slot) for each in assignments.values()}:
        return f"no free slot: {len(offered)} of {len(offered)} are used. Start another supervisor, or kill a topology"
    used = len(offered & {tuple(each.slot) for each in assignments.values()})
    return f"it is about to be assigned: {used} of {len(offered)} slots are used"
