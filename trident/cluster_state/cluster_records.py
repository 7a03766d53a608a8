"""The records of topologies and where they run: JSON with Storm's names of fields, readable with any client of ZooKeeper."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, Self

from trident.errors import ClusterError
from trident.redaction import redacted

TopologyKind = Literal["trident", "bolts"]
StatusKind = Literal["active", "inactive", "killed", "failed"]
_VERSION = 1


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
    """

    kind: StatusKind
    since_secs: float  # seconds since 1970
    wait_secs: float = 0.0  # of `killed`: how long what is pending may take
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        reason = redacted(self.reason)
        return {"type": self.kind, "since-secs": self.since_secs, "wait-secs": self.wait_secs, "reason": reason}

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["type"], data["since-secs"], data.get("wait-secs", 0.0), data.get("reason", ""))


@dataclass(frozen=True)
class ClusterRecord:
    """A dataclass as bytes, without secrets: JSON with a version and Storm's names. The same facts, the same bytes."""

    WHAT: ClassVar[str]
    ERROR: ClassVar[type[ClusterError]] = ClusterError
    IS_MESSAGE: ClassVar[bool] = False
    KEYS: ClassVar[Mapping[str, str]] = {}  # the names in JSON of fields that are not their own with `-` for `_`

    def to_bytes(self) -> bytes:
        values = {"version": _VERSION, **{self._key(name): value for name, value in vars(self).items()}}
        values |= {name: redacted(values[name]) for name in ("error", "reason") if name in values}
        text = json.dumps(
            values,
            ensure_ascii=False,
            separators=(",", ":"),
            default=lambda each: each.as_json() if isinstance(each, WantedStatus) else dict(each),
        )
        try:
            return text.encode(errors="replace" if self.IS_MESSAGE else "strict")
        except UnicodeEncodeError as error:
            lone = text[: error.end].rpartition('"')[2]
            raise self.ERROR(f"a {self.WHAT} cannot have the text {lone!r}: it is not UTF-8") from error

    @classmethod
    def of_bytes(cls, data: bytes, **instead: Any) -> Self:
        """Return the record that `to_bytes` gave, with other values of some fields, which need not be there then."""
        try:
            read = json.loads(data)
            if read["version"] != _VERSION:
                raise cls.ERROR(
                    f"a {cls.WHAT} is of version {read['version']}; this version of the software reads {_VERSION}. Use the "
                    "version that runs in the cluster"
                )
            return cls._of({**read, **instead})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise cls.ERROR(f"the {cls.WHAT} cannot be read ({error!r}); was it written by another program?") from error

    @classmethod
    def _of(cls, read: Mapping[str, Any]) -> Self:
        """Return the record of what was read, without what another release has beside its fields."""
        declared = {each.name: each for each in fields(cls)}
        return cls(
            **{
                name: read[cls._key(name)]
                for name, each in declared.items()
                if cls._key(name) in read or (each.default is MISSING and each.default_factory is MISSING)
            }
        )

    @classmethod
    def _key(cls, name: str) -> str:
        return cls.KEYS.get(name) or name.replace("_", "-")


@dataclass(frozen=True)
class StormBase(ClusterRecord):
    """A topology that was submitted: `/storms/{topology-id}`.

    `previous_code_hash`: the package before the last upgrade; "" if there is none, or the new one has committed a batch.
    `previous`: what else that upgrade has replaced, for going back: `target`, `conf` and `component->executors`. And `epoch`,
    the last one of the log before the new code: a batch of a later one shows that it runs.
    """

    WHAT = "storm base"
    KEYS: ClassVar[Mapping[str, str]] = {"component_executors": "component->executors"}

    storm_name: str
    launch_time_secs: float
    status: WantedStatus
    num_workers: int  # how many workers it runs with: processes of Spark
    component_executors: Mapping[str, int]  # by component, how many executors were asked for
    kind: TopologyKind  # whether it is Trident's, or one of spouts and bolts
    target: str  # `MODULE:TOPOLOGY` within its package
    code_hash: str  # the SHA-256 of its package, in hexadecimal digits
    conf: Mapping[str, str] = field(default_factory=dict)  # settings as they were given: names and texts
    generation: int = 1  # grows with each upgrade, and with what needs a new driver
    submission: str = ""  # chosen by the client, so that a submission that is sent twice is one
    previous_code_hash: str = ""
    previous: Mapping[str, Any] = field(default_factory=dict)
    log_dir: str = ""  # where its log is if its settings do not say it, chosen when it was submitted

    @classmethod
    def _of(cls, read: Mapping[str, Any]) -> Self:
        return super()._of({**read, "status": WantedStatus.of_json(read["status"])})


@dataclass(frozen=True)
class Assignment(ClusterRecord):
    """Where a topology runs: `/assignments/{topology-id}`.

    A topology has one driver, which is its executor `[1-1]`; the workers of the driver are Spark's.

    `executor_node_port`, `executor_start_time_secs`: by executor, its slot, and since when it is assigned to that.
    `code_hash`, `generation`: of the base, when it was assigned. A driver of another generation ends and starts again.
    """

    WHAT = "assignment"
    KEYS: ClassVar[Mapping[str, str]] = {
        "node_host": "node->host",
        "executor_node_port": "executor->node+port",
        "executor_start_time_secs": "executor->start-time-secs",
    }

    master_code_dir: str  # where Nimbus keeps the code
    node_host: Mapping[str, str]  # by supervisor, the name of its machine, see `machine_names`
    executor_node_port: Mapping[str, NodePort]
    executor_start_time_secs: Mapping[str, float]
    code_hash: str
    generation: int

    DRIVER: ClassVar[str] = "[1-1]"

    @property
    def slot(self) -> NodePort:
        return self.executor_node_port[self.DRIVER]

    @property
    def machine(self) -> str:
        return self.node_host.get(self.slot.node, self.slot.node)

    @property
    def where(self) -> str:
        return f"{self.machine}:{self.slot.port}"

    @property
    def start_time_secs(self) -> float:
        return self.executor_start_time_secs[self.DRIVER]

    @classmethod
    def _of(cls, read: Mapping[str, Any]) -> Self:
        slots = {name: NodePort(*slot) for name, slot in read["executor->node+port"].items()}
        return super()._of({**read, "executor->node+port": slots})


DRIVER = "__driver"  # the name of the driver among the components that have errors


@dataclass(frozen=True)
class SupervisorInfo(ClusterRecord):
    """What a supervisor says about itself: `/supervisors/{id}`, an ephemeral node.

    `scheduler_meta`: what schedulers may use; here `{"logs": "http://…"}`, where the logs of its drivers are served.
    """

    WHAT = "supervisor info"

    time_secs: float
    hostname: str
    assignment_id: str
    used_ports: Sequence[int]
    meta: Sequence[int]  # all ports that it offers as slots
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
    """

    WHAT, IS_MESSAGE = "heartbeat", True

    time_secs: float
    uptime_secs: float
    storm_id: str
    hostname: str
    pid: int
    generation: int
    start_time_secs: float
    state: str  # `starting`, `active`, `inactive`, `ending`
    pages: str  # where the driver serves pages of its own; "" while it does not
    stats: Mapping[str, Any]  # its statistics in the shape of Storm UI's topology page; empty while it starts

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

    WHAT, IS_MESSAGE = "error", True

    time_secs: float
    error: str
    host: str
    port: int


@dataclass(frozen=True)
class DriverDeath(ClusterRecord):
    """A driver that ended without being ordered to: `/deaths/{topology-id}/d{number}`, the last hundred of each.

    `node`, `port`, `generation`, `start_time_secs`: its slot, which generation of the topology it ran, and since when it was
    assigned: by the clock of Nimbus, so that the assignment can be recognized although clocks differ.
    """

    WHAT, IS_MESSAGE = "death", True
    KEYS: ClassVar[Mapping[str, str]] = {name: name for name in ("time_secs", "start_time_secs", "ran_secs")}

    time_secs: float  # seconds since 1970
    node: str
    port: int
    generation: int
    start_time_secs: float
    ran_secs: float  # how long its topology had run; 0 if it never did
    fatal: bool  # whether another start would end in the same way: its code, or its settings, cannot run
    reason: str  # what is known of it
