"""The stores, one row each: how to start the server, how to make a state, and what the store claims."""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from states.cassandra import CassandraState
from states.delta import DeltaState
from states.memcached import MemcachedState
from states.memory import MemoryMapState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.proxy import Proxy
from tests.harness.servers import Server, start_cassandra, start_memcached, start_postgres, start_redis
from tests.harness.sqlite_map import sqlite_state
from trident.errors import BackendError, FencedError
from trident.state import StateConf, StateSpec
from trident.testing import Limits

TOPOLOGY = "campaign"
KEY_FIELDS = (("key", "string"),)
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Store:
    """One row.

    Attributes
    ----------
    spec
        `spec(port, work, name)` makes an opaque state: of the server at that port, or in the folder `work`.
    limits
        What it claims, as the suite of `trident.testing` checks it.
    server
        Starts the server; None for a store inside the writing process.
    keeps
        What it acknowledged survives a SIGKILL, of its server or of the process that writes it. A store that does not
        keep it must name the loss.
    process
        Whether the data outlive the process that writes, so that it can be killed.
    told
        The errors that may tell a writer that it was replaced.
    partitions
        How many partitions a state has.
    by_address
        Whether another address is another server to it; if not, who takes over goes past the proxy.
    small
        The sizes of its campaigns in the default tests, where they differ; 0: they leave it out.
    fixture
        The fixture that has its server, which is slow to start and is used by other tests as well; empty: it has its own.
    """

    name: str
    spec: Callable[[int, Path, str], StateSpec]
    limits: Limits
    server: Callable[[Path], Server] | None = None
    keeps: bool = True
    process: bool = True
    told: tuple[type[Exception], ...] = (FencedError,)
    partitions: int = 2
    by_address: bool = False
    small: Mapping[str, int] = field(default_factory=dict)
    fixture: str = ""

    @property
    def fences(self) -> bool:
        """Whether a writer that was replaced does no harm, and is told."""
        return self.limits.fences != "no"


class Home:
    """A store that runs: its server, or its folder."""

    def __init__(self, store: Store, work: Path, server: Server | None = None) -> None:
        self.store, self.work = store, work
        self._owned = server is None and store.server is not None
        self._server = store.server(work) if server is None and store.server is not None else server
        self._proxy: Proxy | None = None
        self._specs: dict[tuple[int, str], StateSpec] = {}

    @property
    def server(self) -> Server:
        """The server; only of a store that has one."""
        assert self._server is not None, f"{self.store.name} has no server"
        return self._server

    @property
    def _port(self) -> int:
        return 0 if self._server is None else self._server.port

    def fresh_name(self, what: str) -> str:
        """Return a name that no state of this process had."""
        return f"{what}{next(_numbers)}"

    def open(self, name: str, read_only: bool = False, proxied: bool = False) -> list[Any]:
        """Open every partition of the state `name`, directly or through the proxy.

        One state is always reached in one of the two ways: a store may take another address for another server.
        """
        port = self.proxy.port if proxied else self._port
        # One spec for all instances: the data of a state in memory belong to it.
        spec = self._specs.setdefault((port, name), self.store.spec(port, self.work, name))
        conf = StateConf(TOPOLOGY, name, KEY_FIELDS, "bigint", {}, read_only)
        count = self.store.partitions
        return [spec.factory.make_state(conf, partition, count) for partition in range(count)]

    @property
    def proxy(self) -> Proxy:
        if self._proxy is None:
            self._proxy = Proxy(self.server.port)
        return self._proxy

    def empty(self) -> Any:
        """Return what `backend_suite` opens its stores with."""
        if self.store.limits.shared:
            return self.store.spec(self._port, self.work, "suite")
        return lambda: _ByName(self.store, self._port, self.work, self.fresh_name("suite"))

    @contextmanager
    def outage(self) -> Iterator[None]:
        """The server is dead for a while."""
        self.server.kill()
        try:
            yield
        finally:
            self.server.start()

    def bounce(self) -> None:
        """Kill the server and start it again on what it kept."""
        self.server.kill()
        self.server.start()

    def close(self) -> None:
        """Stop what was started."""
        if self._proxy is not None:
            self._proxy.close()
        if self._owned:
            self.server.stop()


@dataclass(frozen=True)
class _ByName:
    """Gives each state a store of its own, for one that several states cannot share."""

    store: Store
    port: int
    work: Path
    folder: str

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> Any:
        name = f"{self.folder}-{hashlib.blake2b(conf.prefix.encode(), digest_size=8).hexdigest()}"
        if self.store.partitions == 1:  # several partitions are as many stores
            name, partition_index, num_partitions = f"{name}-{partition_index}", 0, 1
        return self.store.spec(self.port, self.work, name).factory.make_state(conf, partition_index, num_partitions)


def _cassandra(port: int, work: Path, name: str) -> StateSpec:
    return CassandraState.opaque(
        ["127.0.0.1"], port=port, keyspace="campaigns", table="states", replication=1, buckets=8
    )


def _cassandra_columns(port: int, work: Path, name: str) -> StateSpec:
    return CassandraState.opaque(["127.0.0.1"], port=port, keyspace="campaigns", replication=1, layout="columns")


def _redis(port: int, work: Path, name: str) -> StateSpec:
    return RedisState.opaque(f"redis://127.0.0.1:{port}/0")


def _redis_that_keeps(work: Path) -> Server:
    """Each write is on disk before it is answered."""
    return start_redis(work, "--appendonly", "yes", "--appendfsync", "always", "--save", "")


_SERVER = Limits(durable=True, repartitions=True, fences="all", lists=True, removes=True, resets=True)
_MEMORY = Limits(fences="all", lists=True, removes=True, resets=True)
_ATOMIC = replace(
    _SERVER, max_key_bytes=2_600, moves_at_commit=True, atomic_put=True, isolated=True, atomic_commit=True
)
_DELTA = replace(_MEMORY, durable=True, shared=False, moves_at_commit=True, isolated=True, atomic_commit=True)
_OWN = {"contract": 0}  # test_contracts.py has it; the suite adds random schedules, which the full size has
STORES = {
    store.name: store
    for store in (
        # A memory whose process is killed is gone, log and all: nothing is promised, so nothing is killed.
        Store("memory", lambda port, work, name: MemoryMapState.opaque(), _MEMORY, process=False),
        Store(
            "delta", lambda port, work, name: DeltaState.opaque(work / name), _DELTA, told=(FencedError, BackendError),
            partitions=1, small={**_OWN, "kills": 2, "reads": 200},
        ),
        Store(
            "sqlite", lambda port, work, name: sqlite_state(str(work / "states.db")),
            Limits(durable=True, repartitions=True, lists=True, resets=True),
        ),
        Store("redis", _redis, _SERVER, _redis_that_keeps, small=_OWN),
        Store("redis-volatile", _redis, _SERVER, start_redis, keeps=False, small=_OWN),
        # A write that is under way when its writer is replaced may still arrive: harmless, but not nothing.
        Store(
            "memcached", lambda port, work, name: MemcachedState.opaque([f"127.0.0.1:{port}"]),
            replace(_SERVER, fences="written", lists=False), lambda work: start_memcached(work, "-M", "-I", "8m"),
            keeps=False, by_address=True, small=_OWN,
        ),
        Store(
            "cassandra", _cassandra, replace(_SERVER, fences="written"), start_cassandra, fixture="cassandra_server",
            small={**_OWN, "kills": 0, "takeovers": 2, "reads": 300},
        ),
        Store(  # commits as "cassandra" does; the full size has it
            "cassandra-columns", _cassandra_columns, replace(_SERVER, fences="written"), start_cassandra,
            fixture="cassandra_server", small={**_OWN, "kills": 0, "takeovers": 1, "reads": 0},
        ),
        Store(
            "postgres", lambda port, work, name: PostgresState.opaque(f"postgresql://trident@127.0.0.1:{port}/postgres"),
            _ATOMIC, start_postgres, small=_OWN,
        ),
    )
}  # fmt: skip
