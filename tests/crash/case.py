"""One cell of the crash matrix: its topology, and what its states must hold once the log says what was committed."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from states.delta import DeltaBackingMap, DeltaOptions
from states.memory import MemoryBackingMap, MemoryData
from states.postgres import PostgresState
from tests.crash.fuse import Arm, Fuse
from tests.crash.fused_wrappers import Chunks, CrashingMap, CrashingState, StormOpaqueMap
from tests.harness.topology_runs import open_view
from trident.arrow import table_of
from trident.config import Config
from trident.fields import Fields
from trident.log.log_address import open_reader
from trident.log.log_state import LogState
from trident.operations import Count, Sum
from trident.servers.log_addresses import Database
from trident.spout.interfaces import Definition, SpoutType, TransactionAttempt
from trident.state import CachedMap, Key, MicroBatchIBackingMap, StateConf, StateSpec, StateType, map_for
from trident.topology import TridentTopology

WORDS = [f"word-{number:02}" for number in range(24)]
SHELVES = 15
FIELDS = Fields("word: string", "shelf: bigint", "odd: boolean", "weight: bigint")


class Row(NamedTuple):
    """One row of the source. Its weight is a random number of 40 bits, so a wrong sum is never right by chance."""

    word: str
    shelf: int
    odd: bool
    weight: int


def rows_of(seed: int, count: int) -> list[Row]:
    rng = random.Random(f"rows {seed}")
    return [
        Row(rng.choice(WORDS), rng.randrange(SHELVES), rng.random() < 0.5, rng.getrandbits(40)) for _ in range(count)
    ]


class ScriptedSpout:
    """Gives every row of its source once, in batches of `batch_size` rows.

    A definition is `{"rows": numbers of the batch's rows, "left": numbers of the rows that no batch has yet}`.

    Parameters
    ----------
    kind
        `transactional` and `changing`: each definition is a new random choice among the rows that are left, so a
        replay is identical only if the framework remembers the first definition, as it must for a transactional
        spout; that of a changing (opaque) one drops and adds keys. `repeating`: opaque, with an identical replay.
    life
        Which driver of the schedule this is; another life chooses otherwise.
    worker_marker
        The worker that can create this file kills itself once it has read its part of batch `worker_txid`.
    """

    def __init__(
        self,
        kind: str,
        seed: int,
        life: int,
        fuse: Fuse,
        rows: int = 60,
        batch_size: int = 10,
        worker_marker: str = "",
        worker_txid: int = 0,
    ) -> None:
        self.spout_type = SpoutType.TRANSACTIONAL if kind == "transactional" else SpoutType.OPAQUE
        self.kind, self.seed, self.life, self.fuse = kind, seed, life, fuse
        self.rows, self.batch_size = rows, batch_size
        self.worker_marker, self.worker_txid = worker_marker, worker_txid
        self._defined: Counter[int] = Counter()

    def get_output_fields(self) -> Fields:
        return FIELDS

    def get_coordinator(self, conf: Mapping[str, Any]) -> ScriptedSpout:
        return self

    def get_emitter(self, conf: Mapping[str, Any]) -> ScriptedEmitter:
        return ScriptedEmitter(rows_of(self.seed, self.rows), self.fuse, self.worker_marker, self.worker_txid)

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition | None:
        self.fuse.reach("P0", txid)
        left = list(range(self.rows)) if previous is None else list(previous["left"])
        if not left:
            return None
        if self.kind == "repeating":
            rows = left[: self.batch_size]
        else:
            self._defined[txid] += 1
            rng = random.Random(f"{self.seed} {self.life} {txid} {self._defined[txid]}")
            rows = rng.sample(left, min(self.batch_size, len(left)))
        chosen = set(rows)
        return {"rows": rows, "left": [row for row in left if row not in chosen]}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> Sequence[Any]:
        rows = definition["rows"]
        middle = len(rows) // 2
        return [(attempt.txid, rows[:middle]), (attempt.txid, rows[middle:])]

    def success(self, txid: int, definition: Definition) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is open."""


class ScriptedEmitter:
    """Reads a part in two halves, so that a driver can die in between."""

    def __init__(self, rows: list[Row], fuse: Fuse, worker_marker: str, worker_txid: int) -> None:
        self._rows, self._fuse = rows, fuse
        self._worker_marker, self._worker_txid = worker_marker, worker_txid

    def emit(self, part: tuple[int, list[int]]) -> Iterator[pa.Table]:
        txid, numbers = part
        rows = [self._rows[number] for number in numbers]
        middle = len(rows) // 2
        yield table_of(FIELDS, rows[:middle])
        self._fuse.reach("P2", txid)
        yield table_of(FIELDS, rows[middle:])
        # All of the part is aggregated by now; the frame that carries it to the driver is not yet written.
        if self._worker_marker and txid == self._worker_txid:
            with suppress(FileExistsError):
                Path(self._worker_marker).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)


ROWS, BATCH_SIZE, TXID = 60, 10, 3
BATCHES = ROWS // BATCH_SIZE
SEGMENT_BYTES = 300
CHUNK = 2
KEYS: dict[str, list[Key]] = {
    "weights": [(word,) for word in WORDS],
    "counts": [(shelf, odd) for shelf in range(SHELVES) for odd in (False, True)],
}
"""Every key that a row can have, by state."""

LAYOUTS = ("columns", "binary")
"""Of the states in PostgreSQL."""

Contents = dict[str, dict[Key, Any]]


@dataclass(frozen=True)
class Pairing:
    """A kind of spout and a kind of state. The names of the spouts are those of `ScriptedSpout`."""

    spout: str
    state: str

    def __str__(self) -> str:
        return f"{self.spout}-{self.state}"


EXACT = [
    Pairing("transactional", "transactional"),
    Pairing("transactional", "opaque"),
    Pairing("repeating", "opaque"),
    Pairing("changing", "opaque"),
]
REPEATING_TRANSACTIONAL = Pairing("repeating", "transactional")
INEXACT = Pairing("changing", "transactional")
STORM = Pairing("changing", "storm")
STORM_REPEATED = Pairing("transactional", "storm")
"""Exact: what a failed attempt wrote, an identical replay writes too."""


@dataclass(frozen=True)
class Case:
    """What is run, and where it is made to crash.

    Attributes
    ----------
    point, how
        See `fuse.POINTS` and `fuse.Arm`.
    store
        `memory`, `delta`, or, with a log in PostgreSQL, `postgres` in the same database: its states and records are
        one transaction. `postgres apart`: each is its own, because states have two partitions.
    pending
        How many batches are in work at once. 1: the crash is in the first state, which has no cache; more: in the
        second one, with caches, and in memory with two partitions a state.
    memory_log
        Keep the log in memory too.
    log_at
        How the address of a log on a server begins, to which the folder of the case is added; empty: it is in files.
    """

    point: str
    pairing: Pairing
    store: str = "memory"
    how: str = "kill"
    pending: int = 1
    seed: int = 0
    memory_log: bool = False
    log_at: str = ""

    def __str__(self) -> str:
        parts = [self.point, str(self.pairing), self.store, self.how, f"pending{self.pending}"]
        return " ".join(
            [
                *parts,
                *(["memory-log"] if self.memory_log else []),
                *([self.log_at.partition(":")[0]] if self.log_at else []),
            ]
        )

    def log_dir(self, directory: Path) -> str:
        return f"{self.log_at}{directory}" if self.log_at else str(directory / "log")

    def log(self, directory: Path) -> LogState:
        with closing(open_reader(self.log_dir(directory))) as reader:
            return reader.refresh()

    @property
    def in_postgres(self) -> bool:
        return self.store.startswith("postgres")

    @property
    def database(self) -> str:
        return self.log_at.partition("?")[0]

    def table(self, directory: Path, state: str) -> str:
        return f"{state}-{blake2b(str(directory).encode(), digest_size=8).hexdigest()}"

    @property
    def is_exact(self) -> bool:
        """Whether the end must be exact. An opaque spout that happens to repeat itself is as good as transactional."""
        return self.pairing in (*EXACT, REPEATING_TRANSACTIONAL, STORM_REPEATED)

    def arm(self) -> Arm:
        """Return where the first life ends. What P14 interrupts is the recovery of a half written batch."""
        if self.point == "P13":
            return Arm("P13", 0, self.how)
        return Arm({"P14": "P9"}.get(self.point, self.point), TXID, self.how)

    def config(self, directory: Path, **settings: Any) -> Config:
        return Config(
            **{
                "engine": "in_process",
                "max_spout_pending": self.pending,
                "log_dir": None if self.memory_log else self.log_dir(directory),
                "allow_inexact": self.pairing not in EXACT,
                "retry_backoff_ms": 0,
                "poll_interval_ms": 5,
                "message_timeout_s": 60,
                **settings,
            }
        )

    def topology(
        self, directory: Path, life: int = 1, fuse: Fuse | None = None, worker_marker: str = ""
    ) -> TridentTopology:
        """Declare two states, fed by one stream."""
        armed = fuse or Fuse()
        spout = ScriptedSpout(
            self.pairing.spout, self.seed, life, armed, ROWS, BATCH_SIZE, worker_marker, TXID if worker_marker else 0
        )
        topology = TridentTopology("crash")
        stream = topology.new_stream("rows", spout)
        first, second = (
            StateSpec(Store(self, directory, number, armed), self.partitions) for number in range(len(KEYS))
        )
        stream.group_by("word").persistent_aggregate(first, "weight", Sum(), "weight", state_name="weights")
        stream.group_by("shelf", "odd").persistent_aggregate(second, Count(), "rows", state_name="counts")
        return topology

    @property
    def partitions(self) -> int:
        return 2 if self.store == "postgres apart" or (self.pending > 1 and self.store == "memory") else 1

    @property
    def victim(self) -> int:
        return 0 if self.pending == 1 else 1


@dataclass(frozen=True)
class Store:
    """The `StateFactory` of one state of a case: the store with seams around it."""

    case: Case
    directory: Path
    number: int
    fuse: Fuse

    _memory: ClassVar[dict[tuple[Path, int, int], MemoryData]] = {}

    @property
    def in_memory(self) -> bool:
        return self.case.store == "memory"

    @property
    def database(self) -> Database | None:
        return Database.of(self.case.database) if self.case.in_postgres else None

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> CrashingState:
        case, victim = self.case, self.number == self.case.victim
        fuse = self.fuse if victim else Fuse()
        backing = MicroBatchIBackingMap(Chunks(self._open(conf, partition_index), fuse), 0, CHUNK)
        # The second state's: the first one has then been compared with the log already.
        seam: Any = CrashingMap(backing, fuse, self.fuse if self.number == 1 else Fuse())
        if case.pending > 1 and not conf.read_only:
            seam = CachedMap(seam, 100)
        state = _map(case.pairing.state, seam, conf.state, partition_index)
        return CrashingState(state, self.fuse, victim, later=self.number > 0)

    def _open(self, conf: StateConf, partition: int) -> Any:
        if self.in_memory:
            return MemoryBackingMap(self._memory.setdefault((self.directory, self.number, partition), MemoryData()))
        path = self.directory / f"{conf.state}-{partition}"
        kind = StateType.TRANSACTIONAL if self.case.pairing.state == "transactional" else StateType.OPAQUE
        if self.case.in_postgres:
            options = {"table": self.case.table(self.directory, conf.state), "layout": LAYOUTS[self.number]}
            spec: Any = PostgresState.of_kind(kind, self.case.database, options)
            return spec.factory.backing_map_factory(conf, partition, 1)
        # Files are merged every third batch, so that crashes fall around compactions too.
        return DeltaBackingMap(path, kind, conf, partition, DeltaOptions(compact_after_commits=3))

    @classmethod
    def contents(cls, directory: Path) -> list[Any]:
        """Return all that a case has stored in memory, as it is stored."""
        kept = sorted((key[1:], data) for key, data in cls._memory.items() if key[0] == directory)
        return [(place, data.sentinel, dict(data.values.entries)) for place, data in kept]

    @classmethod
    def forget(cls, directory: Path) -> None:
        for key in [key for key in cls._memory if key[0] == directory]:
            del cls._memory[key]


def _map(kind: str, backing: Any, name: str, partition: int) -> Any:
    if kind == "storm":
        return StormOpaqueMap(backing, name, partition)
    return map_for(StateType(kind), backing, name, partition)


def expected(seed: int, definitions: Iterable[Any]) -> Contents:
    """Return what a plain dict holds that was fed the rows of each definition once."""
    rows = source(seed)
    weights: Counter[Key] = Counter()
    counts: Counter[Key] = Counter()
    for definition in definitions:
        for row in (rows[number] for number in definition["rows"]):
            weights[(row.word,)] += row.weight
            counts[(row.shelf, row.odd)] += 1
    return {"weights": dict(weights), "counts": dict(counts)}


@lru_cache(8)
def source(seed: int) -> Sequence[Row]:
    return rows_of(seed, ROWS)


def committed(log: LogState) -> list[Any]:
    return [record.spouts["rows"] for record in log.history]


def stored(case: Case, directory: Path, log: LogState) -> Contents:
    """Read every key of all states, as another process does that never ran the topology."""
    graph, config = case.topology(directory).graph(), case.config(directory)
    contents: Contents = {}
    for name, keys in KEYS.items():
        view = open_view(graph, config, name, partial(log.snapshot, name))
        found = zip(keys, view.multi_get(keys), strict=True)
        contents[name] = {key: value for key, value in found if value is not None}
        view.close()
    return contents
