"""What Nimbus, supervisors and drivers know of each other, in the operations of Storm's protocol."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from trident.errors import ClusterError, ClusterUnreachable, NoSuchTopology
from trident.nodes.interface import Create, Delete, NodeEvent, Nodes, Put, Refusal, Step, StoredNode, Tell
from trident.nodes.polled_nodes import above
from trident.redaction import redacted

_ASSIGNMENTS, _STORMS, _SUPERVISORS = "/assignments", "/storms", "/supervisors"
_WORKERBEATS, _ERRORS, _DEATHS, _NAMES = "/workerbeats", "/errors", "/deaths", "/names"
LEADER, NIMBUSES = "/nimbus/leader", "/nimbus/hosts"
_ERRORS_KEPT, _DEATHS_KEPT = 10, 100
_MAX_ERROR = 50_000
MAX_DATA_BYTES = 1_000_000  # ZooKeeper ends the connection of who sends more than 1,048,575 bytes, names included
_AT_ONCE = 200  # nodes that are deleted together

_Record = TypeVar("_Record", bound=ClusterRecord)


class ClusterState:
    """A tree of nodes with data of at most 1,000,000 bytes, and a session. Threads may share it, no forked child.

    `watch`: the callbacks are told once when what was returned may have changed. `ClusterUnreachable`: no server answers within
    the session's timeout, or an answer was lost and others have changed the node since: whether a change was made is not known.
    """

    def __init__(self, open_nodes: Callable[[Tell], Nodes]) -> None:
        self._callbacks: list[Tell] = []
        self._nodes = open_nodes(self._tell)

    def register(self, callback: Tell) -> None:
        """Call `callback` with every event from now on; as `Tell` it must not wait, so it cannot use the state."""
        self._callbacks.append(callback)

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        """Set a node that vanishes with this session; if it is of another session, it becomes one of this session."""
        while True:
            node = self.get_node(path)
            if node is None:
                done = self.create_ephemeral_node(path, data)
            elif node.owner == self._nodes.id:
                done = self._change(Put(path, data), durable=False) is None
            else:
                refusal = self._change(Delete(path, node.version), Create(path, data, ephemeral=True), durable=False)
                if refusal == "not empty":
                    raise ClusterError(
                        f"the node {path!r} has nodes below it; it cannot become one that vanishes with a session"
                    )
                done = refusal is None
            if done:
                return

    def create_ephemeral_node(self, path: str, data: bytes) -> bool:
        """Create such a node; False, and nothing is done, if there is a node at `path`."""
        return self._create(Create(path, data, ephemeral=True), durable=False)

    def create_sequential(self, path: str, data: bytes) -> str:
        """Create a node whose name is `path` and a number of ten digits, which only grows; returns its path."""
        # The last number is the data of the node above; they begin again when that was deleted.
        parent = above(path)
        while True:
            node = self.get_node(parent)
            if node is None:
                self.mkdirs(parent)
                continue
            used = [int(name[-10:]) for name in self.get_children(parent) if name[-10:].isdecimal()]
            number = max([-1, *used, *([int(node.data)] if node.data.isdigit() else [])]) + 1
            created = f"{path}{number:010}"
            match self._change(Put(parent, str(number).encode(), node.version), Create(created, data)):
                case None:
                    return created
                case "ephemeral":
                    raise _nothing_below(parent)

    def set_data(self, path: str, data: bytes) -> None:
        """Set a node's data; a node that does not exist is created, persistent, and the nodes above it."""
        while self._change(Put(path, data), durable=False) == "missing":
            if self._create(Create(path, data), durable=False):
                return

    def compare_and_set(self, path: str, data: bytes, version: int | None) -> bool:
        """Set a node's data if it has this version; None: create it if there is none. Returns whether it was done."""
        if version is None:
            return self.create_all({path: data})
        # One below 0 is any version, to ZooKeeper.
        return version >= 0 and self._change(Put(path, data, version)) is None

    def create_all(self, nodes: Mapping[str, bytes]) -> bool:
        """Create nodes, and those above them, all at once; False, and nothing is done, if one of them is there."""
        return self._create(*(Create(path, data) for path, data in nodes.items()))

    def delete_all(self, paths: Sequence[str]) -> None:
        """Delete nodes that have none below, all at once; nothing is done if one of them is not there any more."""
        self._change(*(Delete(path) for path in paths))

    def delete_node(self, path: str) -> None:
        """Delete a node and all below it; harmless if there is none."""
        while self._change(Delete(path)) == "not empty":  # what is created below meanwhile is found the next time
            below, level = list[str](), [path]
            while level:
                names = zip(level, self._nodes.names(level), strict=True)
                level = [f"{parent}/{name}" for parent, each in names for name in each]
                below += level
            below.sort(reverse=True)  # those below others first
            for at in range(0, len(below), _AT_ONCE):
                self._change(*map(Delete, below[at : at + _AT_ONCE]))

    def mkdirs(self, path: str) -> None:
        """Create a node without data and those above it, where they are missing."""
        if self.get_node(path) is None:
            self.create_all({path: b""})

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        """Return a node's data, None if there is no node."""
        node = self.get_node(path, watch)
        return None if node is None else node.data

    def get_data_each(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return, for each path, what `get_data` returns, in as few requests as can be."""
        return [None if node is None else node.data for node in self._nodes.read(paths)]

    def get_node(self, path: str, watch: bool = False) -> StoredNode | None:
        """Return a node's data, version and owner, None if there is no node."""
        return self._nodes.read([path], watch)[0]

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        """Return the names of the nodes below, sorted; none if there is no node."""
        return self._nodes.names([path], watch)[0]

    def get_data_below(self, path: str) -> dict[str, bytes]:
        """Return the data of all nodes directly below, by name, in as few requests as can be."""
        return self.get_data_below_each([path])[path]

    def get_data_below_each(self, paths: Sequence[str]) -> dict[str, dict[str, bytes]]:
        """Return, for each path, what `get_data_below` returns, in as few requests as can be."""
        found: dict[str, dict[str, bytes]] = {path: {} for path in paths}
        names = zip(found, self._nodes.names(list(found)), strict=True)
        wanted = [(path, name) for path, below in names for name in below]
        nodes = self._nodes.read([f"{path.rstrip('/')}/{name}" for path, name in wanted])
        for (path, name), node in zip(wanted, nodes, strict=True):
            if node is not None:
                found[path][name] = node.data
        return found

    def close(self) -> None:
        """End the session: its ephemeral nodes vanish at once. Harmless when it is closed, and in a forked child."""
        if self._nodes.is_ours:
            self._nodes.close()

    def _tell(self, event: NodeEvent) -> None:
        for callback in list(self._callbacks):
            callback(event)

    def _change(self, *steps: Step, durable: bool = True) -> Refusal | None:
        for step in steps:
            if isinstance(step, Create | Put) and (size := len(step.data)) > MAX_DATA_BYTES:
                raise ClusterError(
                    f"{size:,} bytes are too many for the node {step.path!r}, which holds {MAX_DATA_BYTES:,}"
                )
        refusal = self._nodes.change(*steps, durable=durable)
        if refusal == "unknown":
            raise ClusterUnreachable(
                f"the answer to a change of the node {steps[-1].path!r} was lost, and others have changed it since: it is not "
                "known whether this change was made"
            )
        return refusal

    def _create(self, *nodes: Create, durable: bool = True) -> bool:
        while (refusal := self._change(*nodes, durable=durable)) == "missing":
            for each in nodes:
                self.mkdirs(above(each.path))
        if refusal == "ephemeral":
            raise _nothing_below(above(nodes[0].path))
        return refusal is None


class StormClusterState:
    """Typed records over a `ClusterState`, and its watches; `ClusterError`: a record cannot be read."""

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
        """Return a topology's id and record, by its id or its name; of several the one that does not end."""
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
            name = [node_at(_NAMES, base.storm_name)] if self.storm_of_name(base.storm_name) == storm_id else []
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
        """Return, by topology, the last heartbeat that its slot sent, without statistics, in one request."""
        paths = {storm_id: _beat(storm_id, *slot) for storm_id, slot in slots.items()}
        beats = zip(paths.items(), self.state.get_data_each(list(paths.values())), strict=True)
        return {
            storm_id: _read(WorkerHeartbeat.without_stats, path, data)
            for (storm_id, path), data in beats
            if data is not None
        }

    def all_heartbeats(self, storm_ids: Iterable[str] | None = None) -> dict[str, dict[str, WorkerHeartbeat]]:
        """Return the last heartbeats of topologies, by `NODE-PORT`, in two requests; of all by default."""
        return {of: _read_all(WorkerHeartbeat, path, below) for of, path, below in self._below(_WORKERBEATS, storm_ids)}

    def worker_heartbeat(self, storm_id: str, node: str, port: int, info: WorkerHeartbeat) -> None:
        self.state.set_data(_beat(storm_id, node, port), info.to_bytes())

    def remove_worker_heartbeat(self, storm_id: str, node: str, port: int) -> None:
        self.state.delete_node(_beat(storm_id, node, port))

    def report_error(self, storm_id: str, component: str, error: ErrorInfo) -> None:
        """Add an error of a component; the oldest ones beyond ten are removed, and what is beyond 50,000 characters."""
        self._add(f"{node_at(_ERRORS, storm_id, component)}/e", replace(error, error=_cut(error.error)), _ERRORS_KEPT)

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


def _nothing_below(path: str) -> ClusterError:
    return ClusterError(f"the node {path!r} vanishes with a session; it cannot have nodes below it")
