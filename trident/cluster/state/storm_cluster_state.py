"""`StormClusterState`: what Nimbus, supervisors and drivers tell each other, with the operations of Storm's protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import quote, unquote

from trident.cluster.state.cluster_records import (
    Assignment,
    ErrorInfo,
    NodePort,
    StormBase,
    SupervisorInfo,
    WorkerHeartbeat,
)
from trident.cluster.state.cluster_state import ClusterEvent, ClusterState

__all__ = ["StormClusterState"]

_ASSIGNMENTS, _STORMS, _SUPERVISORS = "/assignments", "/storms", "/supervisors"
_WORKERBEATS, _ERRORS = "/workerbeats", "/errors"
_ERRORS_KEPT = 10

_Told = Callable[[], None]


class StormClusterState:
    """Typed records over a `ClusterState`.

    A `callback` is called once, in the thread of the cluster state's events, when what was returned may have changed, or when
    the session was renewed and watches were lost.
    """

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._lock = threading.Lock()
        self._waiting: dict[str, list[_Told]] = {}
        self._registered = state.register(self._tell)
        for each in (_ASSIGNMENTS, _STORMS, _SUPERVISORS, _WORKERBEATS, _ERRORS):
            state.mkdirs(each)

    # ---- assignments -------------------------------------------------------------------------------------------------

    def assignments(self, callback: _Told | None = None) -> list[str]:
        """Return the ids of the topologies that are assigned."""
        return self._children(_ASSIGNMENTS, callback)

    def assignment_info(self, storm_id: str, callback: _Told | None = None) -> Assignment | None:
        """Return where a topology runs, None if it is not assigned."""
        data = self._data(f"{_ASSIGNMENTS}/{storm_id}", callback)
        return None if data is None else Assignment.of_bytes(data)

    def all_assignments(self) -> dict[str, Assignment]:
        """Return all assignments by topology."""
        return {name: Assignment.of_bytes(data) for name, data in self._below(_ASSIGNMENTS).items()}

    def set_assignment(self, storm_id: str, info: Assignment) -> None:
        """Say where a topology runs from now on."""
        self.state.set_data(f"{_ASSIGNMENTS}/{storm_id}", info.to_bytes())

    # ---- topologies ---------------------------------------------------------------------------------------------------

    def active_storms(self) -> list[str]:
        """Return the ids of all topologies that were submitted and not removed."""
        return self.state.get_children(_STORMS)

    def storm_base(self, storm_id: str, callback: _Told | None = None) -> StormBase | None:
        """Return a topology's record, None if there is none."""
        data = self._data(f"{_STORMS}/{storm_id}", callback)
        return None if data is None else StormBase.of_bytes(data)

    def all_bases(self, callback: _Told | None = None) -> dict[str, StormBase]:
        """Return all topologies by id; the callback is told of new and removed ones."""
        if callback is not None:
            self._children(_STORMS, callback)
        return {name: StormBase.of_bytes(data) for name, data in self._below(_STORMS).items()}

    def activate_storm(self, storm_id: str, storm_base: StormBase) -> bool:
        """Add a topology; False, and nothing is done, if there is one of this id."""
        return self.state.compare_and_set(f"{_STORMS}/{storm_id}", storm_base.to_bytes(), None)

    def update_storm(self, storm_id: str, change: Callable[[StormBase], StormBase]) -> StormBase | None:
        """Replace a topology's record by `change` of it, whoever else changes it; None if there is no such topology."""
        path = f"{_STORMS}/{storm_id}"
        while (found := self.state.get_versioned(path)) is not None:
            changed = change(StormBase.of_bytes(found.data))
            if self.state.compare_and_set(path, changed.to_bytes(), found.version):
                return changed
        return None

    def remove_storm_base(self, storm_id: str) -> None:
        """Forget a topology's record."""
        self.state.delete_node(f"{_STORMS}/{storm_id}")

    def remove_storm(self, storm_id: str) -> None:
        """Forget a topology: its assignment, then its record."""
        self.state.delete_node(f"{_ASSIGNMENTS}/{storm_id}")
        self.remove_storm_base(storm_id)

    # ---- supervisors --------------------------------------------------------------------------------------------------

    def supervisors(self, callback: _Told | None = None) -> list[str]:
        """Return the ids of the supervisors that are there."""
        return self._children(_SUPERVISORS, callback)

    def supervisor_info(self, supervisor_id: str) -> SupervisorInfo | None:
        """Return what a supervisor says of itself, None if it is not there."""
        data = self.state.get_data(f"{_SUPERVISORS}/{supervisor_id}")
        return None if data is None else SupervisorInfo.of_bytes(data)

    def all_supervisor_info(self) -> dict[str, SupervisorInfo]:
        """Return what all supervisors say, by id."""
        return {name: SupervisorInfo.of_bytes(data) for name, data in self._below(_SUPERVISORS).items()}

    def supervisor_heartbeat(self, supervisor_id: str, info: SupervisorInfo) -> None:
        """Say that a supervisor is there; it is not any more when this session ends."""
        self.state.set_ephemeral_node(f"{_SUPERVISORS}/{supervisor_id}", info.to_bytes())

    # ---- heartbeats -----------------------------------------------------------------------------------------------------

    def get_worker_heartbeat(self, storm_id: str, node: str, port: int) -> WorkerHeartbeat | None:
        """Return the last heartbeat of a topology from a slot, None if there was none."""
        data = self.state.get_data(_beat(storm_id, node, port))
        return None if data is None else WorkerHeartbeat.of_bytes(data)

    def executor_beats(self, storm_id: str, executor_node_port: Mapping[str, NodePort]) -> dict[str, WorkerHeartbeat]:
        """Return the last heartbeat of each executor whose slot has sent one."""
        slots = {slot: self.get_worker_heartbeat(storm_id, *slot) for slot in set(executor_node_port.values())}
        return {name: beat for name, slot in executor_node_port.items() if (beat := slots[slot]) is not None}

    def setup_heartbeats(self, storm_id: str) -> None:
        """Make room for the heartbeats of a topology."""
        self.state.mkdirs(f"{_WORKERBEATS}/{storm_id}")

    def teardown_heartbeats(self, storm_id: str) -> None:
        """Remove all heartbeats of a topology."""
        self.state.delete_node(f"{_WORKERBEATS}/{storm_id}")

    def heartbeat_storms(self) -> list[str]:
        """Return the ids of the topologies that have room for heartbeats."""
        return self.state.get_children(_WORKERBEATS)

    def worker_heartbeat(self, storm_id: str, node: str, port: int, info: WorkerHeartbeat) -> None:
        """Tell that the driver of a topology in a slot is well."""
        self.state.set_data(_beat(storm_id, node, port), info.to_bytes())

    def remove_worker_heartbeat(self, storm_id: str, node: str, port: int) -> None:
        """Remove the heartbeat of a slot."""
        self.state.delete_node(_beat(storm_id, node, port))

    # ---- errors ---------------------------------------------------------------------------------------------------------

    def report_error(self, storm_id: str, component: str, error: ErrorInfo) -> None:
        """Add an error of a component; the oldest ones beyond ten are removed."""
        path = f"{_ERRORS}/{storm_id}/{quote(component, safe='')}"
        self.state.mkdirs(path)
        self.state.create_sequential(f"{path}/e", error.to_bytes())
        for each in self.state.get_children(path)[:-_ERRORS_KEPT]:
            self.state.delete_node(f"{path}/{each}")

    def errors(self, storm_id: str, component: str) -> list[ErrorInfo]:
        """Return the last errors of a component, newest first."""
        found = self._below(f"{_ERRORS}/{storm_id}/{quote(component, safe='')}")
        return [ErrorInfo.of_bytes(data) for _, data in sorted(found.items(), reverse=True)]

    def all_errors(self, storm_id: str) -> dict[str, list[ErrorInfo]]:
        """Return the last errors of a topology by component."""
        names = self.state.get_children(f"{_ERRORS}/{storm_id}")
        return {unquote(name): self.errors(storm_id, unquote(name)) for name in names}

    def error_topologies(self) -> list[str]:
        """Return the ids of the topologies that have errors."""
        return self.state.get_children(_ERRORS)

    def teardown_topology_errors(self, storm_id: str) -> None:
        """Remove all errors of a topology."""
        self.state.delete_node(f"{_ERRORS}/{storm_id}")

    # ---- the session --------------------------------------------------------------------------------------------------

    def disconnect(self) -> None:
        """End the session."""
        self.state.unregister(self._registered)
        self.state.close()

    def _children(self, path: str, callback: _Told | None) -> list[str]:
        self._await(path, callback)
        return self.state.get_children(path, watch=callback is not None)

    def _data(self, path: str, callback: _Told | None) -> bytes | None:
        self._await(path, callback)
        return self.state.get_data(path, watch=callback is not None)

    def _below(self, path: str) -> dict[str, bytes]:
        return {name: data for name, data in self.state.get_data_below(path).items() if data}

    def _await(self, path: str, callback: _Told | None) -> None:
        if callback is not None:
            with self._lock:
                waiting = self._waiting.setdefault(path, [])
                if callback not in waiting:
                    waiting.append(callback)

    def _tell(self, event: ClusterEvent) -> None:
        if event.kind == "suspended":
            return
        with self._lock:
            paths: Iterable[str] = [event.path] if event.path else list(self._waiting)
            told = [callback for path in paths for callback in self._waiting.pop(path, ())]
        for callback in told:
            callback()


def _beat(storm_id: str, node: str, port: int) -> str:
    return f"{_WORKERBEATS}/{storm_id}/{node}-{port}"
