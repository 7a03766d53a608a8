"""A case: a store, a spout, a kind of state, a fault; its topology, and whether what is stored at the end is exact."""

import random
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from states.delta import DeltaOptions
from tests.crash.case import KEYS, Pairing, ScriptedSpout, rows_of
from tests.crash.commit_tasks.task_seams import Fault, FaultyStates, Tables
from tests.crash.fuse import Fuse
from tests.harness.topology_runs import open_view
from trident.config import Config
from trident.log.log_reader import LogReader
from trident.log.log_state import LogState
from trident.operations import Sum
from trident.state import StateSpec, StateType
from trident.topology import TridentTopology

ROWS, BATCH_SIZE = 30, 10
BATCHES = ROWS // BATCH_SIZE
LOTS = 64
STORES = ("redis", "cassandra", "postgres", "delta")


def draw(word: str) -> int:
    """Give another number each time: what Spark computes again is something else."""
    return random.SystemRandom().randrange(LOTS)


@dataclass(frozen=True)
class TaskCase:
    """What is run.

    Attributes
    ----------
    name
        Of the topology; no two cases that share a store have the same.
    ports
        Of the servers, by store; 0 of Delta.
    fault
        Its folder is the case's.
    pending
        How many batches are in flight at once: 1 is one job for each, more are two, one that processes and one that commits.
    partitions
        Of the states in executors.
    without
        The rules that are switched off.
    workers
        `jobs`, or `resident`.
    """

    name: str
    store: str
    pairing: Pairing
    fault: Fault
    ports: dict[str, int] = field(hash=False)
    pending: int = 1
    seed: int = 0
    partitions: int = 2
    without: tuple[str, ...] = ()
    workers: str = "jobs"

    def __str__(self) -> str:
        rules = "".join(f" without {rule}" for rule in self.without)
        jobs = "one job" if self.pending == 1 else "two jobs"
        jobs = jobs if self.workers == "jobs" else f"resident workers, {self.pending} in flight"
        return f"{self.store} {self.pairing} {self.fault.how}@{self.fault.point} in {self.fault.state}, {jobs}{rules}"

    @property
    def folder(self) -> Path:
        return Path(self.fault.folder)

    @property
    def is_opaque(self) -> bool:
        """Whether user code may give other rows in each attempt: what an opaque state promises."""
        return self.pairing.state == "opaque"

    def config(self, **settings: Any) -> Config:
        return Config(
            **{
                "engine": "spark",
                "parallelism": 2,
                "workers": self.workers,
                "max_spout_pending": self.pending,
                "log_dir": str(self.folder / "log"),
                "retry_backoff_ms": 10,
                "poll_interval_ms": 200,  # many cases run side by side
                "max_batch_attempts": 3 if self.fault.how == "slow" else 30,  # faults of other cases meet this one too
                "message_timeout_s": 10.0 if self.fault.how == "pause" else 300.0,
                **settings,
            }
        )

    def topology(self, life: int = 1) -> TridentTopology:
        """Declare the states: `weights` by word; and by a number that is drawn, `lots` in executors, `shadow` in the driver."""
        topology = TridentTopology(self.name)
        spout = ScriptedSpout(self.pairing.spout, self.seed, life, Fuse(), ROWS, BATCH_SIZE)
        rows = topology.new_stream("rows", spout)
        if "weights" in self.states:
            self._sum(rows, "word", "weights", "executors")
        if self.is_opaque:
            drawn = rows.each("word", draw, "lot: int")
            self._sum(drawn, "lot", "lots", "executors")
            self._sum(drawn, "lot", "shadow", "driver")
        return topology

    @property
    def states(self) -> list[str]:
        """The states. Without a rule there is none whose tasks would find, by another rule, that rows are others."""
        both = ["weights", "lots", "shadow"] if self.is_opaque else ["weights"]
        return both[1:] if self.without else both

    def _sum(self, rows: Any, key: str, state: str, placement: str) -> None:
        spec = StateSpec(self._factory(), 1 if self.store == "delta" else self.partitions)
        grouped = rows.group_by(key)
        grouped.persistent_aggregate(spec, "weight", Sum(), "sum", state_name=state).placement(placement)

    def _factory(self) -> FaultyStates:
        kind = StateType(self.pairing.state)
        if self.store == "delta":
            few = 1 if self.seed % 2 else 1_000_000  # of one key, and of more than one, the state is kept in files
            maps: Any = Tables(self.fault.folder, DeltaOptions(max_keys_in_memory=few))
        else:
            maps = _spec(self.store, self.pairing.state, self.ports).factory.backing_map_factory
        return FaultyStates(maps, kind, self.fault, self.without)

    def log(self) -> LogState:
        return LogReader(self.folder / "log").refresh()

    def wrong(self) -> list[str]:
        """Say what is not exact, as a process finds that never ran the topology."""
        log = self.log()
        numbers = [number for record in log.history for number in record.spouts["rows"]["rows"]]
        problems = [] if sorted(numbers) == list(range(ROWS)) else [f"rows in committed batches: {sorted(numbers)}"]
        source, wanted = rows_of(self.seed, ROWS), Counter[Any]()
        for number in numbers:
            wanted[(source[number].word,)] += source[number].weight
        found = {name: self._stored(name, log) for name in self.states}
        if "weights" in found and found["weights"] != wanted:
            problems.append(f"weights are {found['weights']}, not {dict(wanted)}")
        if self.is_opaque and sum(found["lots"].values()) != wanted.total():
            problems.append(f"lots sum up to {sum(found['lots'].values()) / wanted.total():.3f} of what they must")
        if self.is_opaque and found["lots"] != found["shadow"]:
            problems.append("executors committed other rows than the driver")
        return problems

    def _stored(self, name: str, log: LogState) -> dict[Any, int]:
        keys = KEYS["weights"] if name == "weights" else [(lot,) for lot in range(LOTS)]
        with closing(open_view(self.topology().graph(), self.config(), name, partial(log.snapshot, name))) as view:
            return {key: value for key, value in zip(keys, view.multi_get(keys), strict=True) if value is not None}


def _spec(store: str, kind: str, ports: dict[str, int]) -> Any:
    port = ports[store]
    if store == "redis":
        from states.redis import RedisState

        return RedisState.of_kind(StateType(kind), f"redis://127.0.0.1:{port}/0", {})
    if store == "cassandra":
        from states.cassandra import CassandraState

        options = {"port": port, "keyspace": "kills", "table": "states", "replication": 1, "buckets": 4}
        return CassandraState.of_kind(StateType(kind), ["127.0.0.1"], options)
    from states.postgres import PostgresState

    return PostgresState.of_kind(StateType(kind), f"postgresql://trident@127.0.0.1:{port}/postgres", {})
