"""Drivers that only have heartbeats: what `cluster.py` measures a Nimbus with."""

from __future__ import annotations

import time

from tests.harness.cluster_states import set_assignment
from trident.cluster.state.cluster_address import open_cluster_state
from trident.cluster.state.cluster_records import (
    Assignment,
    NodePort,
    StormBase,
    SupervisorInfo,
    WantedStatus,
    WorkerHeartbeat,
)
from trident.cluster.state.storm_cluster_state import StormClusterState

_START, _SLOTS = 1000.0, 100
_STATISTICS = {
    "rates": {f"operation-{number}": [number * 1.5, number * 2.5, number * 3.5] for number in range(56)},
    "components": [{"id": f"step-{number}", "emitted": 10**6, "executeLatency": "1.234"} for number in range(38)],
}


def write_topologies(cluster: StormClusterState, count: int) -> None:
    """Write the records of topologies that run, each in a slot of its own, and of their supervisors."""
    for number in range(count // _SLOTS):
        ports = list(range(_SLOTS))
        info = SupervisorInfo(time.time(), "127.0.0.1", "measured", ports, ports, {}, 1.0)
        cluster.supervisor_heartbeat(f"supervisor-{number}", info)
    for number in range(count):
        name, slot = _name(number), _slot(number)
        base = _base(name, WantedStatus("active", _START))
        driver = Assignment.DRIVER
        given = Assignment("code", {slot.node: "127.0.0.1"}, {driver: slot}, {driver: _START}, "0" * 64, 1)
        cluster.setup_heartbeats(name)
        set_assignment(cluster, name, given)
        cluster.activate_storm(name, base)


def beat_all(address: str, numbers: range) -> None:
    """Write a heartbeat of each of these topologies' drivers every second, until this process is ended."""
    cluster = StormClusterState(open_cluster_state(address))
    beats, ends = 0, time.monotonic()
    while True:
        beats, ends = beats + 1, ends + 1.0
        for number in numbers:
            slot = _slot(number)
            cluster.worker_heartbeat(_name(number), slot.node, slot.port, _beat(number, beats))
        time.sleep(max(0.0, ends - time.monotonic()))


def beat_bytes() -> int:
    """Return how large a heartbeat is."""
    return len(_beat(1, 1).to_bytes())


def killed_topology(name: str) -> StormBase:
    """Return the record of a topology that was killed and has no driver."""
    return _base(name, WantedStatus("killed", _START))


def _base(name: str, status: WantedStatus) -> StormBase:
    return StormBase(name, _START, status, 1, {}, "trident", "m:t", "0" * 64)


def _beat(number: int, beats: int) -> WorkerHeartbeat:
    """Return a heartbeat; its uptime is the number of those before it."""
    return WorkerHeartbeat(
        time.time(), float(beats), _name(number), "127.0.0.1", 1, 1, _START, "active", "http://127.0.0.1:1", _STATISTICS
    )


def _name(number: int) -> str:
    return f"measured-{number}-1"


def _slot(number: int) -> NodePort:
    return NodePort(f"supervisor-{number // _SLOTS}", number % _SLOTS)
