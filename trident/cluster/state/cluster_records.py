"""The records that a cluster keeps: JSON with Storm's names of fields, readable with any client of ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Literal, NamedTuple, Self

from trident.cluster.cluster_errors import ClusterError

__all__ = [
    "Assignment",
    "ErrorInfo",
    "NodePort",
    "Status",
    "StatusKind",
    "StormBase",
    "SupervisorInfo",
    "TopologyKind",
    "WorkerHeartbeat",
]

_VERSION = 1

TopologyKind = Literal["trident", "bolts"]
StatusKind = Literal["active", "inactive", "killed", "failed"]


class NodePort(NamedTuple):
    """A slot: the id of a supervisor, and one of its ports."""

    node: str
    port: int

    def __str__(self) -> str:
        return f"{self.node}:{self.port}"


@dataclass(frozen=True)
class Status:
    """What a topology is meant to do.

    Attributes
    ----------
    kind
        `inactive`: its spouts are not asked for more. `killed`: it ends, and is forgotten. `failed`: it was put to rest because
        its driver kept dying; `reason` says of what.
    since_secs
        Seconds since 1970.
    wait_secs
        Of `killed`: how long what is pending may take.
    """

    kind: StatusKind
    since_secs: float
    wait_secs: float = 0.0
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"type": self.kind, "since-secs": self.since_secs, "wait-secs": self.wait_secs, "reason": self.reason}

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the status that `as_json` gave."""
        return cls(data["type"], data["since-secs"], data.get("wait-secs", 0.0), data.get("reason", ""))


@dataclass(frozen=True)
class StormBase:
    """A topology that was submitted: `/storms/{topology-id}`.

    Attributes
    ----------
    num_workers
        How many workers it runs with: processes of Spark.
    component_executors
        By component, how many executors were asked for.
    kind
        Whether it is Trident's, or one of spouts and bolts.
    target
        `MODULE:TOPOLOGY` within its package.
    code_hash
        The SHA-256 of its package, in hexadecimal digits.
    conf
        Settings as they were given: names and texts.
    generation
        Grows with each upgrade, and with what needs a new driver.
    submission
        Chosen by the client, so that a submission that is sent twice is one.
    previous_code_hash
        The package before the last upgrade; "" if there is none, or the new one has committed a batch.
    previous
        What else that upgrade has replaced, for going back: `target`, `conf` and `component->executors`.
    """

    storm_name: str
    launch_time_secs: float
    status: Status
    num_workers: int
    component_executors: Mapping[str, int]
    kind: TopologyKind
    target: str
    code_hash: str
    conf: Mapping[str, str] = field(default_factory=dict)
    generation: int = 1
    submission: str = ""
    previous_code_hash: str = ""
    previous: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return _dump(
            {
                "storm-name": self.storm_name,
                "launch-time-secs": self.launch_time_secs,
                "status": self.status.as_json(),
                "num-workers": self.num_workers,
                "component->executors": dict(self.component_executors),
                "kind": self.kind,
                "target": self.target,
                "code-hash": self.code_hash,
                "conf": dict(self.conf),
                "generation": self.generation,
                "submission": self.submission,
                "previous-code-hash": self.previous_code_hash,
                "previous": dict(self.previous),
            }
        )

    @classmethod
    def of_bytes(cls, data: bytes) -> Self:
        """Return the record that `to_bytes` gave."""
        with _Reading("storm base") as found:
            read = found(data)
            return cls(
                read["storm-name"],
                read["launch-time-secs"],
                Status.of_json(read["status"]),
                read["num-workers"],
                read["component->executors"],
                read["kind"],
                read["target"],
                read["code-hash"],
                read.get("conf", {}),
                read.get("generation", 1),
                read.get("submission", ""),
                read.get("previous-code-hash", ""),
                read.get("previous", {}),
            )


@dataclass(frozen=True)
class Assignment:
    """Where a topology runs: `/assignments/{topology-id}`.

    A topology has one driver, which is its executor `[1-1]`; the workers of the driver are Spark's.

    Attributes
    ----------
    master_code_dir
        Where Nimbus keeps the code.
    node_host
        By supervisor, its host.
    executor_node_port, executor_start_time_secs
        By executor, its slot, and since when it is assigned to that.
    code_hash, generation
        Of the base, when it was assigned. A driver of another generation ends and starts again.
    """

    master_code_dir: str
    node_host: Mapping[str, str]
    executor_node_port: Mapping[str, NodePort]
    executor_start_time_secs: Mapping[str, float]
    code_hash: str
    generation: int

    DRIVER: ClassVar[str] = "[1-1]"

    @property
    def slot(self) -> NodePort:
        """The slot of the driver."""
        return self.executor_node_port[self.DRIVER]

    @property
    def start_time_secs(self) -> float:
        """Since when the driver is assigned to its slot."""
        return self.executor_start_time_secs[self.DRIVER]

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return _dump(
            {
                "master-code-dir": self.master_code_dir,
                "node->host": dict(self.node_host),
                "executor->node+port": {name: list(slot) for name, slot in self.executor_node_port.items()},
                "executor->start-time-secs": dict(self.executor_start_time_secs),
                "code-hash": self.code_hash,
                "generation": self.generation,
            }
        )

    @classmethod
    def of_bytes(cls, data: bytes) -> Self:
        """Return the record that `to_bytes` gave."""
        with _Reading("assignment") as found:
            read = found(data)
            return cls(
                read["master-code-dir"],
                read["node->host"],
                {name: NodePort(*slot) for name, slot in read["executor->node+port"].items()},
                read["executor->start-time-secs"],
                read["code-hash"],
                read["generation"],
            )


@dataclass(frozen=True)
class SupervisorInfo:
    """What a supervisor says of itself: `/supervisors/{id}`, an ephemeral node.

    Attributes
    ----------
    meta
        All ports that it offers as slots.
    scheduler_meta
        What schedulers may use; here `{"logs": "http://…"}`, where the logs of its drivers are served.
    """

    time_secs: float
    hostname: str
    assignment_id: str
    used_ports: Sequence[int]
    meta: Sequence[int]
    scheduler_meta: Mapping[str, str]
    uptime_secs: float

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return _dump(
            {
                "time-secs": self.time_secs,
                "hostname": self.hostname,
                "assignment-id": self.assignment_id,
                "used-ports": list(self.used_ports),
                "meta": list(self.meta),
                "scheduler-meta": dict(self.scheduler_meta),
                "uptime-secs": self.uptime_secs,
            }
        )

    @classmethod
    def of_bytes(cls, data: bytes) -> Self:
        """Return the record that `to_bytes` gave."""
        with _Reading("supervisor info") as found:
            read = found(data)
            return cls(
                read["time-secs"],
                read["hostname"],
                read["assignment-id"],
                tuple(read["used-ports"]),
                tuple(read["meta"]),
                read["scheduler-meta"],
                read["uptime-secs"],
            )


@dataclass(frozen=True)
class WorkerHeartbeat:
    """What a driver says of itself about once a second: `/workerbeats/{topology-id}/{supervisor}-{port}`.

    Attributes
    ----------
    generation, start_time_secs
        Of the assignment that it runs.
    state
        `starting`, `active`, `inactive`, `ending`.
    pages
        Where the driver serves pages of its own; "" while it does not.
    stats
        Its statistics, as plain data in the shape of Storm UI's topology page; empty while it starts.
    """

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

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return _dump(
            {
                "time-secs": self.time_secs,
                "uptime-secs": self.uptime_secs,
                "storm-id": self.storm_id,
                "hostname": self.hostname,
                "pid": self.pid,
                "generation": self.generation,
                "start-time-secs": self.start_time_secs,
                "state": self.state,
                "pages": self.pages,
                "stats": dict(self.stats),
            }
        )

    @classmethod
    def of_bytes(cls, data: bytes) -> Self:
        """Return the record that `to_bytes` gave."""
        with _Reading("heartbeat") as found:
            read = found(data)
            return cls._of(read, read["stats"])

    @classmethod
    def without_stats(cls, data: bytes) -> Self:
        """Return the record with empty statistics, which are most of its bytes: several times as fast."""
        # They are the last field; and a quotation mark within a text is never without a backslash.
        head, found_stats, _ = data.partition(b',"stats":')
        with _Reading("heartbeat") as found:
            try:
                return cls._of(found(head + b"}" if found_stats else data), {})
            except (ValueError, KeyError):  # another program's, in another order
                return cls._of(found(data), {})

    @classmethod
    def _of(cls, read: Mapping[str, Any], stats: Mapping[str, Any]) -> Self:
        return cls(
            read["time-secs"],
            read["uptime-secs"],
            read["storm-id"],
            read["hostname"],
            read["pid"],
            read["generation"],
            read["start-time-secs"],
            read["state"],
            read["pages"],
            stats,
        )


@dataclass(frozen=True)
class ErrorInfo:
    """An error of a component: `/errors/{topology-id}/{component}/e{number}`, the last ten of each."""

    time_secs: float
    error: str
    host: str
    port: int

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return _dump({"time-secs": self.time_secs, "error": self.error, "host": self.host, "port": self.port})

    @classmethod
    def of_bytes(cls, data: bytes) -> Self:
        """Return the record that `to_bytes` gave."""
        with _Reading("error") as found:
            read = found(data)
            return cls(read["time-secs"], read["error"], read["host"], read["port"])


class _Reading:
    """Turns what is wrong with the bytes of a record into an error that says so."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> Callable[[bytes], dict[str, Any]]:
        return self._read

    def _read(self, data: bytes) -> dict[str, Any]:
        found = json.loads(data)
        if found["version"] != _VERSION:
            raise ClusterError(
                f"a {self._what} is of version {found['version']}; this version of the software reads {_VERSION}. Use the "
                "version that runs in the cluster"
            )
        return dict(found)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ValueError | KeyError | TypeError | AttributeError):
            raise ClusterError(
                f"the {self._what} cannot be read ({error!r}); was it written by another program?"
            ) from error


def _dump(data: Mapping[str, Any]) -> bytes:
    text = json.dumps({"version": _VERSION, **data}, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")  # a message of an error may have characters that have no UTF-8
