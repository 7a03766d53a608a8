"""`StormClusterState`: what Nimbus, supervisors and drivers know of each other, with the operations of Storm's protocol.

Ids and names of components are escaped as in addresses of pages where they have other characters than letters, digits and
`_.-~`, so `a/b` is the node `a%2Fb`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from trident.cluster_state.cluster_records import (
    Assignment,
    ClusterRecord,
    DriverDeath,
    ErrorInfo,
    NodePort,
    StormBase,
    SupervisorInfo,
    WorkerHeartbeat,
)
from trident.cluster_state.cluster_state import ClusterState
from trident.errors import ClusterError, NoSuchTopology
from trident.nodes.polled_nodes import above
from trident.redaction import redacted

_ASSIGNMENTS, _STORMS, _SUPERVISORS = "/assignments", "/storms", "/supervisors"
_WORKERBEATS, _ERRORS, _DEATHS, _NAMES = "/workerbeats", "/errors", "/deaths", "/names"
LEADER, NIMBUSES = "/nimbus/leader", "/nimbus/hosts"
_ERRORS_KEPT, _DEATHS_KEPT = 10, 100
_MAX_ERROR = 50_000

_Record = TypeVar("_Record", bound=ClusterRecord)


class StormClusterState:
    """Typed records over a `ClusterState`.

    `watch`: the callbacks registered at the state are called once when what was returned may have changed, or when the session
    was over and another has begun.

    Raises `ClusterError`: a record is of another version, or cannot be read; by all operations that read it.
    """

    def __init__(self, state: ClusterState) -> None:
        self.state = state

    def assignments(self, watch: bool = False) -> list[str]:
        return self._children(_ASSIGNMENTS, watch)

    def assignment_info(self, storm_id: str, watch: bool = False) -> Assignment | None:
        return self._record(Assignment, node_at(_ASSIGNMENTS, storm_id), watch)

    def all_assignments(self) -> dict[str, Assignment]:
        return self._records(Assignment, _ASSIGNMENTS)

    def replace_assignment(self, storm_id: str, before: Assignment | None, info: Assignment) -> bool:
        """Assign a topology if it is still assigned as `before` says; returns whether it was done."""
        path = node_at(_ASSIGNMENTS, storm_id)
        node = self.state.get_node(path)
        if (None if node is None else Assignment.of_bytes(node.data)) != before:
            return False
        return self.state.compare_and_set(path, info.to_bytes(), None if node is None else node.version)

    def leader(self, watch: bool = False) -> dict[str, Any] | None:
        """What the leading Nimbus says about itself: `id`, `url`, `host`, `pid`, `since-secs`, `version`; None without one."""
        leader = self.state.get_data(LEADER, watch)
        return None if leader is None else json.loads(leader)

    def nimbuses(self) -> list[dict[str, Any]]:
        return [json.loads(data) for _, data in sorted(self.state.get_data_below(NIMBUSES).items())]

    def active_storms(self) -> list[str]:
        return self._children(_STORMS)

    def storm_base(self, storm_id: str, watch: bool = False) -> StormBase | None:
        return self._record(StormBase, node_at(_STORMS, storm_id), watch)

    def all_bases(self, watch: bool = False) -> dict[str, StormBase]:
        """Return all topologies by id; new and removed ones are watched."""
        if watch:
            self._children(_STORMS, watch)
        return self._records(StormBase, _STORMS)

    def find_storm(self, topology: str) -> tuple[str, StormBase]:
        """Return the id and the record of a topology, by its id or its name; of several of one name, the one that does not end.

        Raises `NoSuchTopology`: there is none; the message names those that there are.
        """
        bases = self.all_bases()
        if topology in bases:
            return topology, bases[topology]
        matches = [(storm_id, base) for storm_id, base in bases.items() if base.storm_name == topology]
        if not matches:
            names = ", ".join(sorted(base.storm_name for base in bases.values())) or "none"
            raise NoSuchTopology(f"there is no topology {topology!r} in this cluster; its topologies are: {names}")
        return max(matches, key=lambda each: (each[1].status.kind != "killed", each[1].launch_time_secs))

    def activate_storm(self, storm_id: str, storm_base: StormBase) -> bool:
        """Add a topology under its name; False, and nothing is done, if there is one of this name or id."""
        name, record = node_at(_NAMES, storm_base.storm_name), node_at(_STORMS, storm_id)
        return self.state.create_all({name: storm_id.encode(), record: storm_base.to_bytes()})

    def storm_of_name(self, name: str) -> str | None:
        path = node_at(_NAMES, name)
        data = self.state.get_data(path)
        if data is not None and (not data or data.startswith(b"{")):
            raise ClusterError(f"{path} is of another version of the software; use the version that wrote it")
        return None if data is None else data.decode()

    def update_storm(self, storm_id: str, change: Callable[[StormBase], StormBase]) -> StormBase | None:
        """Replace a topology's record by `change` of it, even while others change it; None if there is no such topology."""
        path = node_at(_STORMS, storm_id)
        while (node := self.state.get_node(path)) is not None:
            changed = change(_read(StormBase.of_bytes, path, node.data))
            if self.state.compare_and_set(path, changed.to_bytes(), node.version):
                return changed
        return None

    def remove_storm(self, storm_id: str) -> None:
        """Forget a topology and what is kept of it; its record and its name last, so what a crash leaves goes next time."""
        for root in (_WORKERBEATS, _ERRORS, _DEATHS, _ASSIGNMENTS):
            self.state.delete_node(node_at(root, storm_id))
        base = self.storm_base(storm_id)
        if base is not None:
            has_name = self.storm_of_name(base.storm_name) == storm_id
            name = [node_at(_NAMES, base.storm_name)] if has_name else []
            self.state.delete_all([*name, node_at(_STORMS, storm_id)])

    def remove_late(self) -> None:
        """Remove what drivers and supervisors out of touch have said of topologies after these were forgotten."""
        roots = (_WORKERBEATS, _ERRORS, _DEATHS, _ASSIGNMENTS)
        said = [(root, storm_id) for root in roots for storm_id in self._children(root)]
        known = self.active_storms()  # read last: the record of a topology is there before anything else of it
        for root, storm_id in said:
            if storm_id not in known:
                self.state.delete_node(node_at(root, storm_id))

    def supervisors(self, watch: bool = False) -> list[str]:
        return self._children(_SUPERVISORS, watch)

    def supervisor_info(self, supervisor_id: str) -> SupervisorInfo | None:
        return self._record(SupervisorInfo, node_at(_SUPERVISORS, supervisor_id))

    def all_supervisor_info(self) -> dict[str, SupervisorInfo]:
        return self._records(SupervisorInfo, _SUPERVISORS)

    def supervisor_heartbeat(self, supervisor_id: str, info: SupervisorInfo) -> None:
        """Say that a supervisor is there; it is not any more when this session ends."""
        self.state.set_ephemeral_node(node_at(_SUPERVISORS, supervisor_id), info.to_bytes())

    def get_worker_heartbeat(self, storm_id: str, node: str, port: int) -> WorkerHeartbeat | None:
        return self._record(WorkerHeartbeat, _beat(storm_id, node, port))

    def heartbeats_at(self, slots: Mapping[str, NodePort]) -> dict[str, WorkerHeartbeat]:
        """Return, by topology, the last heartbeat from its slot, without statistics: many in one request, cheaply.

        A topology whose slot has sent none is not in the result.
        """
        paths = {storm_id: _beat(storm_id, *slot) for storm_id, slot in slots.items()}
        beats = zip(paths.items(), self.state.get_data_each(list(paths.values())), strict=True)
        return {
            storm_id: _read(WorkerHeartbeat.without_stats, path, data)
            for (storm_id, path), data in beats
            if data is not None
        }

    def all_heartbeats(self, storm_ids: Iterable[str] | None = None) -> dict[str, dict[str, WorkerHeartbeat]]:
        """Return the last heartbeats of topologies, each by `NODE-PORT`, in two requests; of all topologies if none is named.

        A topology without heartbeats has none in the result.
        """
        return {of: _read_all(WorkerHeartbeat, path, below) for of, path, below in self._below(_WORKERBEATS, storm_ids)}

    def worker_heartbeat(self, storm_id: str, node: str, port: int, info: WorkerHeartbeat) -> None:
        self.state.set_data(_beat(storm_id, node, port), info.to_bytes())

    def remove_worker_heartbeat(self, storm_id: str, node: str, port: int) -> None:
        self.state.delete_node(_beat(storm_id, node, port))

    def report_error(self, storm_id: str, component: str, error: ErrorInfo) -> None:
        """Add an error of a component; the oldest ones beyond ten are removed, and what is beyond 50,000 characters."""
        cut = replace(error, error=_cut(error.error))
        self._add(f"{node_at(_ERRORS, storm_id, component)}/e", cut, _ERRORS_KEPT)

    def errors(self, storm_id: str, component: str) -> list[ErrorInfo]:
        """Return the last errors of a component, newest first."""
        return _newest_first(self._records(ErrorInfo, node_at(_ERRORS, storm_id, component)))

    def all_errors(self, storm_id: str) -> dict[str, list[ErrorInfo]]:
        found = self._below(node_at(_ERRORS, storm_id))
        return {of: _newest_first(_read_all(ErrorInfo, path, below)) for of, path, below in found}

    def report_death(self, storm_id: str, death: DriverDeath) -> None:
        """Add a death; the oldest ones beyond a hundred are removed, and what is beyond 50,000 characters of a reason."""
        self._add(f"{node_at(_DEATHS, storm_id)}/d", replace(death, reason=_cut(death.reason)), _DEATHS_KEPT)

    def all_deaths(self) -> dict[str, list[DriverDeath]]:
        """Return the deaths by topology, oldest first; what cannot be read must not keep Nimbus from the other topologies."""
        found: dict[str, list[DriverDeath]] = {}
        for of, _, below in self._below(_DEATHS):
            deaths = found[of] = []
            for data in below.values():
                with suppress(ClusterError):
                    death = DriverDeath.of_bytes(data)
                    if death not in deaths[-1:]:  # else it was reported again, because an answer was lost
                        deaths.append(death)
        return found

    def disconnect(self) -> None:
        self.state.close()

    def _add(self, path: str, record: ClusterRecord, kept: int) -> None:
        """Add a record, whose name is the path and a number; of those with it, so many are kept."""
        created = self.state.create_sequential(path, record.to_bytes())
        for each in self.state.get_children(above(created))[:-kept]:
            self.state.delete_node(f"{above(created)}/{each}")

    def _below(self, root: str, ids: Iterable[str] | None = None) -> list[tuple[str, str, Mapping[str, bytes]]]:
        """Return of each node below a root, or of those named: its text, its path, and the data of the nodes below it."""
        paths = {node_at(root, text): text for text in (self._children(root) if ids is None else ids)}
        return [(paths[path], path, below) for path, below in self.state.get_data_below_each(list(paths)).items()]

    def _children(self, path: str, watch: bool = False) -> list[str]:
        return [text_of(name) for name in self.state.get_children(path, watch)]

    def _record(self, kind: type[_Record], path: str, watch: bool = False) -> _Record | None:
        data = self.state.get_data(path, watch)
        return None if data is None else _read(kind.of_bytes, path, data)

    def _records(self, kind: type[_Record], path: str) -> dict[str, _Record]:
        return _read_all(kind, path, self.state.get_data_below(path))


def _read(of_bytes: Callable[[bytes], _Record], path: str, data: bytes) -> _Record:
    try:
        return of_bytes(data)
    except ClusterError as error:
        raise ClusterError(f"{path}: {error}") from error


def _read_all(kind: type[_Record], path: str, below: Mapping[str, bytes]) -> dict[str, _Record]:
    return {text_of(name): _read(kind.of_bytes, f"{path}/{name}", data) for name, data in below.items()}


def _newest_first(errors: Mapping[str, ErrorInfo]) -> list[ErrorInfo]:
    return [errors[name] for name in sorted(errors, reverse=True)]


def _beat(storm_id: str, node: str, port: int) -> str:
    return node_at(_WORKERBEATS, storm_id, f"{node}-{port}")


def _cut(text: str) -> str:
    return redacted(text[: 2 * _MAX_ERROR])[:_MAX_ERROR]  # before it is cut: half a secret is not known as one


def node_at(root: str, *texts: str) -> str:
    """Return the path of a node below `root`: one name for each text, whatever characters it has."""
    # `.` and `..` are no names, and are not escaped in addresses.
    names = (
        text.replace(".", "%2E") if text in (".", "..") else quote(text, "", errors="surrogateescape") for text in texts
    )
    return "/".join((root, *names))


def text_of(name: str) -> str:
    return unquote(name, errors="surrogateescape")
