"""States on the servers of tests."""

from typing import Any

from states.cassandra import CassandraState
from states.memcached import MemcachedState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.servers import Server
from trident.state import StateSpec


def postgres_url(server: Server) -> str:
    return f"postgresql://trident@{server.address}/postgres"


def state_on(store: str, server: Server, name: str, **options: Any) -> StateSpec:
    """Return an opaque state of a store, on its server; `name` is its table, or the beginning of its keys."""
    if store == "postgres":
        return PostgresState.opaque(postgres_url(server), table=name, **options)
    if store == "redis":
        return RedisState.opaque(f"redis://{server.address}/0", prefix=name, **options)
    if store == "memcached":
        return MemcachedState.opaque([server.address], prefix=name, **options)
    place: dict[str, Any] = {"port": server.port, "keyspace": "tests", "table": name[-40:], "replication": 1}
    return CassandraState.opaque(["127.0.0.1"], **place, **options)
