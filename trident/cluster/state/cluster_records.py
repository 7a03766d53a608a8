"""The records of topologies and where they run: JSON with Storm's names of fields, readable with any client of ZooKeeper.

Records as bytes: JSON with a version; what cannot be read is an error that says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Literal, NamedTuple, Self

from trident.cluster_errors import ClusterError

TopologyKind = Literal["trident", "bolts"]
StatusKind = Literal["active", "inactive", "killed", "failed"]


class NodePort(NamedTuple):
    """A slot: the id of a supervisor, and one of its ports."""

    node: str
    port: int

    def __str__(self) -> str:
        return f"{self.node}:{self.port}"


@dataclass(frozen=True)
class WantedStatus:
    """What a topology is meant to do.

    `kind`: `inactive`: its spouts are not asked for more. `killed`: it ends, and is forgotten. `failed`: its driver kept dying;
    `reason` says why.
    `since_secs`: seconds since 1970.
    `wait_secs`: of `killed`: how long what is pending may take.
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
        What else that upgrade has replaced, for going back: `target`, `conf` and `component->executors`. And `epoch`, the last
        one of the log before the new code: a batch of a later one shows that it runs.
    log_dir
        Where its log is if its settings do not say it, chosen when it was submitted.
    """

    storm_name: str
    launch_time_secs: float
    status: WantedStatus
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
    log_dir: str = ""

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return dump(
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
                "log-dir": self.log_dir,
            }
        )

    @classmethod
    def of_bytes(cls, data: bytes) -> Self:
        """Return the record that `to_bytes` gave."""
        with Reading("storm base") as parse:
            read = parse(data)
            return cls(
                read["storm-name"],
                read["launch-time-secs"],
                WantedStatus.of_json(read["status"]),
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
                read.get("log-dir", ""),
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
        By supervisor, the name of its machine, see `machine_names`.
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
    def machine(self) -> str:
        """The name of the machine of the driver."""
        return self.node_host.get(self.slot.node, self.slot.node)

    @property
    def where(self) -> str:
        """The slot as people read it: the machine and the port."""
        return f"{self.machine}:{self.slot.port}"

    @property
    def start_time_secs(self) -> float:
        """Since when the driver is assigned to its slot."""
        return self.executor_start_time_secs[self.DRIVER]

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        return dump(
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
        with Reading("assignment") as parse:
            read = parse(data)
            return cls(
                read["master-code-dir"],
                read["node->host"],
                {name: NodePort(*slot) for name, slot in read["executor->node+port"].items()},
                read["executor->start-time-secs"],
                read["code-hash"],
                read["generation"],
            )


_VERSION = 1


class Reading:
    """Turns what is wrong with the bytes of a record into an error that says so."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> Callable[[bytes], dict[str, Any]]:
        return self._read

    def _read(self, data: bytes) -> dict[str, Any]:
        values = json.loads(data)
        if values["version"] != _VERSION:
            raise ClusterError(
                f"a {self._what} is of version {values['version']}; this version of the software reads {_VERSION}. Use the "
                "version that runs in the cluster"
            )
        return dict(values)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, ValueError | KeyError | TypeError | AttributeError):
            raise ClusterError(
                f"the {self._what} cannot be read ({error!r}); was it written by another program?"
            ) from error


def dump(data: Mapping[str, Any]) -> bytes:
    """Return a record as JSON."""
    text = json.dumps({"version": _VERSION, **data}, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")  # a message of an error may have characters that have no UTF-8
