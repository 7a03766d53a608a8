"""Topologies as their users ask for them, from the cluster's state alone: Nimbus need not be there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trident.cluster.state.cluster_records import Assignment, ErrorInfo, StormBase, WorkerHeartbeat
from trident.cluster.state.storm_cluster_state import StormClusterState
from trident.cluster.topology_of_cluster import facts, find_topology, first_line, why_waiting
from trident.observe.verdict import verdict
from trident.redaction import shown_settings

_FRESH_S = 30.0


@dataclass(frozen=True)
class TopologyOverview:
    """A topology, where it is meant to run, and what its driver last said.

    `why_waiting`: why it has no slot; "" if it has one, or needs none.
    `last_error`: of any component, while no driver of it runs; None if there was none.
    `page`: its address on the page of the leading Nimbus, which is read without a token; "" while none leads.
    """

    storm_id: str
    base: StormBase
    assignment: Assignment | None
    heartbeat: WorkerHeartbeat | None
    why_waiting: str = ""
    last_error: ErrorInfo | None = None
    page: str = ""

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
        return beat.state if time.time() - beat.time_secs < _FRESH_S else "silent"

    @property
    def verdict(self) -> dict[str, Any]:
        """Whether all is well with it, in the words of its page; see `trident.observe.verdict`."""
        beat = None if self.driver in ("none", "starting") else self.heartbeat
        known = facts(self.storm_id, self.base, self.assignment, beat)
        reason = first_line(self.base.status.reason) or self.why_waiting
        return verdict({**({} if beat is None else beat.stats), **known, "statusReason": reason})

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        base, assigned, beat = self.base, self.assignment, self.heartbeat
        return {
            "id": self.storm_id,
            "name": base.storm_name,
            "kind": base.kind,
            "status": base.status.kind,
            "reason": base.status.reason or self.why_waiting,
            "submitted": base.launch_time_secs,
            "statusSince": base.status.since_secs,
            "workers": base.num_workers,
            "executors": dict(base.component_executors),
            "target": base.target,
            "conf": shown_settings(base.conf),
            "codeHash": base.code_hash,
            "previousCodeHash": base.previous_code_hash,
            "generation": base.generation,
            "driver": self.driver,
            "supervisor": None if assigned is None else assigned.slot.node,
            "host": None if assigned is None else assigned.machine,
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
    """Return all topologies, by name."""
    bases, assignments = cluster.all_bases(), cluster.all_assignments()
    why = why_waiting(cluster, assignments) if set(bases) - set(assignments) else ""
    leader = cluster.leader()
    found = [_one(cluster, storm_id, base, assignments.get(storm_id), why, leader) for storm_id, base in bases.items()]
    return sorted(found, key=lambda each: (each.base.storm_name, each.base.launch_time_secs))


def overview(cluster: StormClusterState, topology: str) -> TopologyOverview:
    """Return one topology, see `find_topology`."""
    storm_id, base = find_topology(cluster.all_bases(), topology)
    assignment = cluster.assignment_info(storm_id)
    why = "" if assignment is not None else why_waiting(cluster, cluster.all_assignments())
    return _one(cluster, storm_id, base, assignment, why, cluster.leader())


def _one(
    cluster: StormClusterState,
    storm_id: str,
    base: StormBase,
    assignment: Assignment | None,
    why: str,
    leader: Mapping[str, Any] | None,
) -> TopologyOverview:
    beat = None if assignment is None else cluster.get_worker_heartbeat(storm_id, *assignment.slot)
    waits = assignment is None and base.status.kind in ("active", "inactive")
    page = "" if leader is None else f"{leader['url']}/#/topology/{storm_id}"
    current = TopologyOverview(storm_id, base, assignment, beat, why if waits else "", page=page)
    if current.driver in ("active", "inactive", "ending"):
        return current
    errors = [each for errors in cluster.all_errors(storm_id).values() for each in errors]
    return replace(current, last_error=max(errors, key=lambda each: each.time_secs, default=None))
