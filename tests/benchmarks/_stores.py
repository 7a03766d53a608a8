"""The stores that are measured: how each is started, its state, and the raw client beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from states.cassandra import CassandraState
from states.delta import DeltaState
from states.memcached import MemcachedState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.benchmarks._raw_clients import RawClient, raw_cassandra, raw_memcached, raw_postgres, raw_redis
from tests.harness.servers import Server, Stops, start_cassandra, start_memcached, start_postgres, start_redis
from tests.states.redis.redis_cluster import cluster_in
from trident.state import StateSpec


class RedisCluster(Stops):
    """Three primaries; `port` is that of one of them."""

    def __init__(self, work: Path) -> None:
        self._ends = ExitStack()
        folders = (work / f"node{number}" for number in count())
        cluster = self._ends.enter_context(cluster_in(lambda: _made(next(folders)), 3))
        self.port = cluster.nodes[0].port

    def stop(self) -> None:
        self._ends.close()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@dataclass(frozen=True)
class MeasuredStore:
    """One store.

    `spec`: `spec(port, work, cache)` makes an opaque state with so many cached entries.
    `server`: starts the server, or several: then the first one's port is told; None for a store inside the process.
    `raw`: `raw(port, keys, value)`: the client of the store itself, for those keys and that value; None where it has none.
    """

    spec: Callable[[int, Path, int], StateSpec]
    server: Callable[[Path], Server | RedisCluster] | None = None
    raw: Callable[[int, Sequence[str], bytes], AbstractContextManager[RawClient]] | None = None


def _redis(**more: Any) -> Any:
    return lambda port, _, cache: RedisState.opaque(f"redis://127.0.0.1:{port}/0", cache=cache, **more)


def _cassandra(**more: Any) -> Any:
    more |= {"keyspace": "bench", "replication": 1}
    return lambda port, _, cache: CassandraState.opaque(["127.0.0.1"], port=port, cache=cache, **more)


def _postgres(**more: Any) -> Any:
    return lambda port, _, cache: PostgresState.opaque(
        f"postgresql://trident@127.0.0.1:{port}/postgres", cache=cache, **more
    )


def _cluster(port: int, _: Path, cache: int) -> StateSpec:
    return RedisState.opaque(f"redis+cluster://127.0.0.1:{port}", cache=cache)


def _memcached(port: int, _: Path, cache: int) -> StateSpec:
    return MemcachedState.opaque([f"127.0.0.1:{port}"], cache=cache)


MEASURED = {
    "redis-fields": MeasuredStore(_redis(layout="fields"), start_redis, raw_redis),
    "redis": MeasuredStore(_redis(), start_redis, raw_redis),
    "redis-cluster": MeasuredStore(_cluster, RedisCluster),
    "memcached": MeasuredStore(_memcached, lambda work: start_memcached(work, "-m", 2048, "-M"), raw_memcached),
    "cassandra": MeasuredStore(_cassandra(), start_cassandra, raw_cassandra),
    "cassandra-columns": MeasuredStore(_cassandra(layout="columns"), start_cassandra, raw_cassandra),
    "postgres": MeasuredStore(_postgres(), start_postgres, raw_postgres),
    "postgres-bytes": MeasuredStore(_postgres(layout="binary"), start_postgres, raw_postgres),
    "delta": MeasuredStore(lambda port, work, cache: DeltaState.opaque(work / "state")),
}
