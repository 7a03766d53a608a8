"""The stores without Trident: one bulk read and one bulk write of given bytes, as each store's own client does them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol


class RawClient(Protocol):
    """Reads and writes the same keys over and over."""

    def read_for_commit(self) -> None:
        """Read all keys, the way a plain program does."""

    def read(self) -> None:
        """Read all keys, the fastest way that the store has."""

    def write(self) -> None:
        """Write all keys."""


class _Redis:
    def __init__(self, client: Any, keys: Sequence[str], value: bytes) -> None:
        self._client, self._keys, self._rows = client, list(keys), dict.fromkeys(keys, value)

    def read(self) -> None:
        found = self._client.mget(self._keys)
        assert len(found) == len(self._keys)

    read_for_commit = read

    def write(self) -> None:
        assert self._client.mset(self._rows)


class _Memcached:
    def __init__(self, client: Any, keys: Sequence[str], value: bytes) -> None:
        self._client, self._keys, self._rows = client, list(keys), dict.fromkeys(keys, value)

    def read(self) -> None:
        self._client.get_many(self._keys)

    read_for_commit = read

    def write(self) -> None:
        failed = self._client.set_many(self._rows, noreply=False)
        assert not failed


class _Cassandra:
    """One statement a key for a commit; for a read also `IN` on the clustering key, a hundred keys a statement."""

    BUCKETS, IN_KEYS, CONCURRENCY = 128, 100, 100

    def __init__(self, session: Any, keys: Sequence[str], value: bytes) -> None:
        self._session = session
        session.execute("CREATE TABLE IF NOT EXISTS single (key blob PRIMARY KEY, value blob)")
        session.execute(
            "CREATE TABLE IF NOT EXISTS bucketed (bucket int, key blob, value blob, PRIMARY KEY (bucket, key))"
        )
        self._select = session.prepare("SELECT value FROM single WHERE key = ?")
        self._insert = session.prepare("INSERT INTO single (key, value) VALUES (?, ?)")
        self._select_in = session.prepare("SELECT key, value FROM bucketed WHERE bucket = ? AND key IN ?")
        into = session.prepare("INSERT INTO bucketed (bucket, key, value) VALUES (?, ?, ?)")
        self._keys, self._value = [key.encode() for key in keys], value
        places = [(number % self.BUCKETS, key) for number, key in enumerate(self._keys)]
        self._run(into, [(bucket, key, value) for bucket, key in places])
        by_bucket = [[key for at, key in places if at == bucket] for bucket in range(self.BUCKETS)]
        self._pages = [
            (bucket, list(part[start : start + self.IN_KEYS]))
            for bucket, part in enumerate(by_bucket)
            for start in range(0, len(part), self.IN_KEYS)
        ]

    def read_for_commit(self) -> None:
        self._run(self._select, [(key,) for key in self._keys])

    def read(self) -> None:
        found: dict[bytes, bytes] = {}
        for page in self._run(self._select_in, self._pages):
            found.update((row[0], row[1]) for row in page.result_or_exc)
        assert len(found) == len(self._keys)

    def write(self) -> None:
        self._run(self._insert, [(key, self._value) for key in self._keys])

    def _run(self, statement: Any, rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        from cassandra.concurrent import execute_concurrent_with_args

        return list(execute_concurrent_with_args(self._session, statement, rows, concurrency=self.CONCURRENCY))


class _Postgres:
    """One `SELECT … = ANY` and one upsert from `unnest` for all keys."""

    READ = b"SELECT key, value FROM raw WHERE key = ANY(%b::bytea[])"
    WRITE = (
        b"INSERT INTO raw SELECT * FROM unnest(%b::bytea[], %b::bytea[]) "
        b"ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    )

    def __init__(self, connection: Any, keys: Sequence[str], value: bytes) -> None:
        self._connection, self._keys = connection, [key.encode() for key in keys]
        self._values = [value] * len(keys)
        connection.execute("CREATE TABLE raw (key bytea PRIMARY KEY, value bytea NOT NULL)")

    def read(self) -> None:
        cursor = self._connection.cursor(binary=True)
        assert len(cursor.execute(self.READ, [self._keys]).fetchall()) == len(self._keys)

    read_for_commit = read

    def write(self) -> None:
        self._connection.execute(self.WRITE, [self._keys, self._values])


@contextlib.contextmanager
def raw_redis(port: int, keys: Sequence[str], value: bytes) -> Iterator[RawClient]:
    """MGET and MSET of all keys in one call each, through redis-py with hiredis."""
    import redis

    with redis.Redis(port=port) as client:
        raw = _Redis(client, [f"raw:{key}" for key in keys], value)
        raw.write()
        yield raw


@contextlib.contextmanager
def raw_memcached(port: int, keys: Sequence[str], value: bytes) -> Iterator[RawClient]:
    """`get_many` and `set_many(noreply=False)` of pymemcache."""
    from pymemcache.client.base import Client

    client = Client(("127.0.0.1", port), no_delay=True)
    with contextlib.closing(client):
        raw = _Memcached(client, [f"raw:{key}" for key in keys], value)
        raw.write()
        yield raw


@contextlib.contextmanager
def raw_postgres(port: int, keys: Sequence[str], value: bytes) -> Iterator[RawClient]:
    """One statement to read and one to write all keys, through psycopg."""
    import psycopg

    with psycopg.connect(f"postgresql://trident@127.0.0.1:{port}/postgres", autocommit=True) as connection:
        raw = _Postgres(connection, keys, value)
        raw.write()
        yield raw


@contextlib.contextmanager
def raw_cassandra(port: int, keys: Sequence[str], value: bytes) -> Iterator[RawClient]:
    """`execute_concurrent_with_args`: one statement a key to read and to write; bulk reads by `IN`."""
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import RoundRobinPolicy
    from cassandra.query import tuple_factory

    profile = ExecutionProfile(RoundRobinPolicy(), row_factory=tuple_factory, request_timeout=60)
    cluster = Cluster(["127.0.0.1"], port=port, protocol_version=5, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
    try:
        session = cluster.connect()
        session.execute(
            "CREATE KEYSPACE IF NOT EXISTS raw WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        session.set_keyspace("raw")
        raw = _Cassandra(session, keys, value)
        raw.write()
        yield raw
    finally:
        cluster.shutdown()
