"""What supervisors and drivers say of themselves: heartbeats, errors of components, deaths of drivers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from trident.cluster.state.cluster_records import ClusterRecord
from trident.cluster_errors import ClusterError

DRIVER = "__driver"
"""The name of the driver among the components that have errors."""


@dataclass(frozen=True)
class SupervisorInfo(ClusterRecord):
    """What a supervisor says about itself: `/supervisors/{id}`, an ephemeral node.

    Attributes
    ----------
    meta
        All ports that it offers as slots.
    scheduler_meta
        What schedulers may use; here `{"logs": "http://…"}`, where the logs of its drivers are served.
    """

    WHAT = "supervisor info"

    time_secs: float
    hostname: str
    assignment_id: str
    used_ports: Sequence[int]
    meta: Sequence[int]
    scheduler_meta: Mapping[str, str]
    uptime_secs: float

    @classmethod
    def _of(cls, read: Mapping[str, Any]) -> Self:
        return super()._of({**read, "used-ports": tuple(read["used-ports"]), "meta": tuple(read["meta"])})


def machine_names(supervisors: Mapping[str, SupervisorInfo]) -> dict[str, str]:
    """Return by supervisor the one name of its machine that people read: its host, or the id where several have that host."""
    hosts = Counter(each.hostname for each in supervisors.values())
    return {id_: each.hostname if hosts[each.hostname] == 1 else id_ for id_, each in supervisors.items()}


@dataclass(frozen=True)
class WorkerHeartbeat(ClusterRecord):
    """What a driver says about itself, about once a second: `/workerbeats/{topology-id}/{supervisor}-{port}`.

    `generation`, `start_time_secs`: of the assignment that it runs.
    `state`: `starting`, `active`, `inactive`, `ending`.
    `pages`: where the driver serves pages of its own; "" while it does not.
    `stats`: its statistics, as plain data in the shape of Storm UI's topology page; empty while it starts.
    """

    WHAT = "heartbeat"

    time_secs: float
    uptime_secs: float
    storm_id: str
    hostname: str
    pid: int
    generation: int
    start_time_secs: float
    state: str
    pages: str
    stats: Mapping[str, Any]

    @classmethod
    def without_stats(cls, data: bytes) -> Self:
        """Return the record with empty statistics, which are most of its bytes: several times as fast."""
        # They are the last field; and a quotation mark within a text is never without a backslash.
        head, found_stats, _ = data.partition(b',"stats":')
        try:
            return cls.of_bytes(head + b"}" if found_stats else data, stats={})
        except ClusterError:  # another program's, in another order
            return cls.of_bytes(data, stats={})


@dataclass(frozen=True)
class ErrorInfo(ClusterRecord):
    """An error of a component: `/errors/{topology-id}/{component}/e{number}`, the last ten of each."""

    WHAT = "error"

    time_secs: float
    error: str
    host: str
    port: int


@dataclass(frozen=True)
class DriverDeath(ClusterRecord):
    """A driver that ended without being ordered to: `/deaths/{topology-id}/d{number}`, the last hundred of each.

    `time_secs`: seconds since 1970.
    `node`, `port`, `generation`, `start_time_secs`: its slot, which generation of the topology it ran, and since when it was
    assigned: by the clock of Nimbus, so that the assignment can be recognized although clocks differ.
    `ran_secs`: how long its topology had run; 0 if it never did.
    `fatal`: whether another start would end in the same way: its code, or its settings, cannot run.
    `reason`: what is known of it.
    """

    WHAT = "death"
    KEYS: ClassVar[Mapping[str, str]] = {name: name for name in ("time_secs", "start_time_secs", "ran_secs")}

    time_secs: float
    node: str
    port: int
    generation: int
    start_time_secs: float
    ran_secs: float
    fatal: bool
    reason: str
