"""Topologies as commands and pages show them, from the cluster's state alone: Nimbus need not be there."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trident.cluster_state.cluster_records import (
    DRIVER,
    Assignment,
    ErrorInfo,
    StormBase,
    SupervisorInfo,
    WorkerHeartbeat,
)
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.observe.health import verdict
from trident.observe.topology_status import pretty_seconds
from trident.redaction import shown_configuration
from trident.web.cluster_pages import Page

_FRESH_S = 30.0
_RECENT_DEATH_S = 1800.0


@dataclass(frozen=True)
class TopologyOverview:
    """A topology, where it is meant to run, and what its driver last said.

    `last_error`: of any component, while no driver of it runs; None if there was none, or it was not asked for.
    `clock_secs`: what the clock of its driver's machine last showed, as its supervisor says; None: no supervisor is there.
    """

    storm_id: str
    base: StormBase
    assignment: Assignment | None
    heartbeat: WorkerHeartbeat | None  # of its assignment; None: that has none yet
    why_waiting: str = ""  # why it has no slot; "" if it has one, or needs none
    driver_died: str = ""  # why its last driver died, or one cannot start, while it starts; "" after half an hour
    last_error: ErrorInfo | None = None
    page: str = ""  # its address on the page of the leading Nimbus, which is read without a token; "" while none leads
    clock_secs: float | None = None

    @property
    def heard_s(self) -> float | None:
        """How long its driver has said nothing, in seconds; None if it never said anything."""
        # Both times are of the driver's machine: the clock here may differ from it by more than a driver is ever silent.
        if self.heartbeat is None:
            return None
        return max(0.0, (self.clock_secs or time.time()) - self.heartbeat.time_secs)

    @property
    def driver(self) -> str:
        """What its driver does: `waiting` for a slot, `starting`, `active`, `inactive`, `ending`, `silent`, or `none`."""
        if self.base.status.kind == "failed":
            return "none"
        if self.assignment is None:
            return "ending" if self.base.status.kind == "killed" else "waiting"
        beat = self.heartbeat
        if beat is None or beat.generation != self.base.generation:
            return "starting"
        return beat.state if (self.heard_s or 0.0) < _FRESH_S else "silent"

    @property
    def status(self) -> str:
        if self.base.status.kind in ("killed", "failed"):
            return self.base.status.kind.upper()
        if self.assignment is None:
            return "WAITING"
        if self.heartbeat is None or self.heartbeat.state == "starting":
            return "STARTING"
        return "ACTIVE" if self.base.status.kind == "active" else "INACTIVE"

    @property
    def stats(self) -> Page:
        return {} if self.heartbeat is None else dict(self.heartbeat.stats)

    @property
    def why_no_driver(self) -> str:
        if self.base.status.kind == "failed":
            return f"it was marked as failed: {first_line(self.base.status.reason)}"
        if self.base.status.kind == "killed":
            return "it ends"
        if self.assignment is None:
            return f"it waits: {self.why_waiting}"
        return f"its driver in slot {self.assignment.where} starts"

    @property
    def verdict(self) -> dict[str, Any]:
        """Whether all is well with it, in the words of its page; see `trident.observe.health`."""
        judged: dict[str, Any] = self.with_verdict(self.stats)["verdict"]
        return judged

    def with_verdict(self, said: Page) -> Page:
        page, reason = {**said, **self.facts()}, first_line(self.base.status.reason) or self.why_waiting
        return {
            **page,
            "verdict": verdict({**page, "statusReason": reason, "driverDied": first_line(self.driver_died)}),
        }

    def facts(self) -> Page:
        now, base, assigned, beat = time.time(), self.base, self.assignment, self.heartbeat
        return {
            "id": self.storm_id,
            "encodedId": self.storm_id,
            "name": base.storm_name,
            "kind": base.kind,
            "status": self.status,
            "statusReason": base.status.reason,
            "uptime": pretty_seconds(now - base.launch_time_secs),
            "uptimeSeconds": now - base.launch_time_secs,
            "workersTotal": base.num_workers,
            "slot": None if assigned is None else assigned.where,
            "host": None if assigned is None else assigned.machine,
            "supervisor": None if assigned is None else assigned.slot.node,
            "driverUptimeSeconds": None if beat is None else beat.uptime_secs,
            "heardSecondsAgo": self.heard_s,
            "generation": base.generation,
            "target": base.target,
            "conf": shown_configuration(base.conf),
        }

    def as_json(self) -> dict[str, Any]:
        base, assigned, beat, facts = self.base, self.assignment, self.heartbeat, self.facts()
        alike = ("id", "name", "kind", "target", "conf", "generation", "supervisor", "host")
        return {
            **{name: facts[name] for name in alike},
            "status": base.status.kind,
            "reason": base.status.reason or self.why_waiting,
            "submitted": base.launch_time_secs,
            "statusSince": base.status.since_secs,
            "workers": base.num_workers,
            "executors": dict(base.component_executors),
            "codeHash": base.code_hash,
            "previousCodeHash": base.previous_code_hash,
            "driver": self.driver,
            "port": None if assigned is None else assigned.slot.port,
            "pid": None if beat is None else beat.pid,
            "driverUptime": None if beat is None else beat.uptime_secs,
            "heartbeat": None if beat is None else beat.time_secs,
            "page": self.page or None,
            "pages": None if beat is None else beat.pages or None,
            "lastError": None if self.last_error is None else self.last_error.error,
            "verdict": self.verdict,
        }


def overviews(cluster: StormClusterState) -> list[TopologyOverview]:
    """Return all topologies, in the order of submission, in a few requests however many there are."""
    bases, assignments = cluster.all_bases(), cluster.all_assignments()
    beats, leader, supervisors = cluster.all_heartbeats(list(bases)), cluster.leader(), cluster.all_supervisor_info()
    # Once for all that wait: it is the same for each of them.
    why = why_waiting(cluster, assignments, leader) if set(bases) - set(assignments) else ""
    found = []
    for storm_id, base in sorted(bases.items(), key=lambda item: (item[1].launch_time_secs, item[0])):
        assigned, said = assignments.get(storm_id), beats.get(storm_id, {})
        beat = None if assigned is None else said.get(f"{assigned.slot.node}-{assigned.slot.port}")
        at = None if assigned is None else supervisors.get(assigned.slot.node)
        found.append(_overview(cluster, TopologyOverview(storm_id, base, assigned, beat), why, leader, at))
    return found


def overview(cluster: StormClusterState, storm_id: str, base: StormBase) -> TopologyOverview:
    assigned, leader = cluster.assignment_info(storm_id), cluster.leader()
    beat = None if assigned is None else cluster.get_worker_heartbeat(storm_id, *assigned.slot)
    read = TopologyOverview(storm_id, base, assigned, beat)
    why = why_waiting(cluster, cluster.all_assignments(), leader) if read.status == "WAITING" else ""
    at = None if assigned is None else cluster.supervisor_info(assigned.slot.node)
    return _overview(cluster, read, why, leader, at)


def _overview(
    cluster: StormClusterState,
    read: TopologyOverview,
    why: str,
    leader: Mapping[str, Any] | None,
    supervisor: SupervisorInfo | None,
) -> TopologyOverview:
    """Complete what was read: without the heartbeat of another assignment, with what is known beside the records."""
    assigned, beat = read.assignment, read.heartbeat
    # A slot keeps the last heartbeat of the driver that had it before.
    if assigned is not None and beat is not None and beat.start_time_secs != assigned.start_time_secs:
        read = replace(read, heartbeat=None)
    errors = cluster.errors(read.storm_id, DRIVER) if read.status == "STARTING" else []
    died = max(errors, key=lambda each: each.time_secs, default=None)
    return replace(
        read,
        why_waiting=why if read.status == "WAITING" else "",
        driver_died=died.error if died is not None and time.time() - died.time_secs < _RECENT_DEATH_S else "",
        page="" if leader is None else f"{leader['url']}/#/topology/{read.storm_id}",
        clock_secs=None if supervisor is None else supervisor.time_secs,
    )


def with_last_error(cluster: StormClusterState, seen: TopologyOverview) -> TopologyOverview:
    # What an earlier driver died of is history once another one runs; `trident errors` has it.
    if seen.driver in ("active", "inactive", "ending"):
        return seen
    errors = [each for errors in cluster.all_errors(seen.storm_id).values() for each in errors]
    return replace(seen, last_error=max(errors, key=lambda each: each.time_secs, default=None))


def first_line(error: str) -> str:
    """Return an error in a line: its first one, the last one of a stack trace, both where a list follows."""
    lines = error.strip().splitlines() or [""]
    head, trace, _ = lines[0].partition("Traceback (most recent call last)")
    if trace:
        return lines[-1] if lines[-1].startswith(head.strip()) else f"{head}{lines[-1]}"
    return f"{lines[0]} {lines[-1].strip()}" if lines[0].endswith(":") else lines[0]


def why_waiting(cluster: StormClusterState, assignments: Mapping[str, Assignment], leader: object) -> str:
    if leader is None:
        return "no Nimbus leads the cluster, so it is not assigned"
    supervisors = cluster.all_supervisor_info()
    if not supervisors:
        return "no supervisor is there"
    offered = {(name, port) for name, info in supervisors.items() for port in info.meta}
    if offered <= {tuple(each.slot) for each in assignments.values()}:
        return f"no free slot: {len(offered)} of {len(offered)} are used. Start another supervisor, or kill a topology"
    used = len(offered & {tuple(each.slot) for each in assignments.values()})
    return f"it is about to be assigned: {used} of {len(offered)} slots are used"
