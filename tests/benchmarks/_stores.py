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


_CASSANDRA: dict[str, Any] = {"keyspace": "bench", "replication": 1}
_POSTGRES = "postgresql://trident@127.0.0.1:{}/postgres"
_REDIS = "redis://127.0.0.1:{}/0"

MEASURED = {
    "redis-fields": MeasuredStore(
        lambda port, _, cache: RedisState.opaque(_REDIS.format(port), cache=cache, layout="fields"),
        start_redis,
        raw_redis,
    ),
    "redis": MeasuredStore(
        lambda port, _, cache: RedisState.opaque(_REDIS.format(port), cache=cache), start_redis, raw_redis
    ),
    "redis-cluster": MeasuredStore(
        lambda port, _, cache: RedisState.opaque(f"redis+cluster://127.0.0.1:{port}", cache=cache), RedisCluster
    ),
    "memcached": MeasuredStore(
        lambda port, _, cache: MemcachedState.opaque([f"127.0.0.1:{port}"], cache=cache),
        lambda work: start_memcached(work, "-m", 2048, "-M"),
        raw_memcached,
    ),
    "cassandra": MeasuredStore(
        lambda port, _, cache: CassandraState.opaque(["127.0.0.1"], port=port, cache=cache, **_CASSANDRA),
        start_cassandra,
        raw_cassandra,
    ),
    "cassandra-columns": MeasuredStore(
        lambda port, _, cache: CassandraState.opaque(
            ["127.0.0.1"], port=port, cache=cache, layout="columns", **_CASSANDRA
        ),
        start_cassandra,
        raw_cassandra,
    ),
    "postgres": MeasuredStore(
        lambda port, _, cache: PostgresState.opaque(_POSTGRES.format(port), cache=cache), start_postgres, raw_postgres
    ),
    "postgres-bytes": MeasuredStore(
        lambda port, _, cache: PostgresState.opaque(_POSTGRES.format(port), cache=cache, layout="binary"),
        start_postgres,
        raw_postgres,
    ),
    "delta": MeasuredStore(lambda port, work, cache: DeltaState.opaque(work / "state")),
}
