"""The stores that are measured: how each is started, its state, and its own client without Trident beside it."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from states.cassandra import CassandraState
from states.delta import DeltaState
from states.memcached import MemcachedState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.benchmarks._measuring import made
from tests.harness.servers import ROOT, Server, Stops, start_cassandra, start_memcached, start_postgres, start_redis
from tests.states.redis.redis_cluster import cluster_in
from trident.state import Key, StateSpec

_ON = "t.word = s.word"


class RawClient:
    """Reads and writes the same keys over and over, all of them at once.

    `read`: the fastest way that the store has.
    `read_for_commit`: the way a plain program does; `read`, if there is no other.
    """

    def __init__(
        self, read: Callable[[], object], write: Callable[[], object],
        read_for_commit: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        self.read, self.write, self.read_for_commit = read, write, read_for_commit or read
        write()


class _Cassandra:
    """One statement a key for a commit; for a read also `IN` on the clustering key, a hundred keys a statement."""

    BUCKETS, IN_KEYS, CONCURRENCY = 128, 100, 100

    def __init__(self, session: Any, keys: Sequence[str], value: bytes) -> None:
        self._session = session
        session.execute("CREATE TABLE IF NOT EXISTS single (key blob PRIMARY KEY, value blob)")
        columns = "bucket int, key blob, value blob, PRIMARY KEY (bucket, key)"
        session.execute(f"CREATE TABLE IF NOT EXISTS bucketed ({columns})")
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


@contextlib.contextmanager
def raw_redis(port: int, keys: Sequence[str], value: bytes) -> Iterator[RawClient]:
    """MGET and MSET of all keys in one call each, through redis-py with hiredis."""
    import redis

    with redis.Redis(port=port) as client:
        rows = dict.fromkeys((f"raw:{key}" for key in keys), value)
        yield RawClient(lambda: client.mget(list(rows)), lambda: client.mset(rows))


@contextlib.contextmanager
def raw_memcached(port: int, keys: Sequence[str], value: bytes) -> Iterator[RawClient]:
    """`get_many` and `set_many(noreply=False)` of pymemcache."""
    from pymemcache.client.base import Client

    client = Client(("127.0.0.1", port), no_delay=True)
    with contextlib.closing(client):
        rows = dict.fromkeys((f"raw:{key}" for key in keys), value)
        yield RawClient(lambda: client.get_many(list(rows)), lambda: client.set_many(rows, noreply=False))


@contextlib.contextmanager
def raw_postgres(port: int, keys: Sequence[str], value: bytes) -> Iterator[RawClient]:
    """One statement to read and one to write all keys, through psycopg."""
    import psycopg

    read = b"SELECT key, value FROM raw WHERE key = ANY(%b::bytea[])"
    write = (
        b"INSERT INTO raw SELECT * FROM unnest(%b::bytea[], %b::bytea[]) "
        b"ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    )
    own = [key.encode() for key in keys]
    with psycopg.connect(f"postgresql://trident@127.0.0.1:{port}/postgres", autocommit=True) as connection:
        connection.execute("CREATE TABLE raw (key bytea PRIMARY KEY, value bytea NOT NULL)")
        yield RawClient(
            lambda: connection.cursor(binary=True).execute(read, [own]).fetchall(),
            lambda: connection.execute(write, [own, [value] * len(own)]),
        )


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
        copies = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        session.execute(f"CREATE KEYSPACE IF NOT EXISTS raw WITH replication = {copies}")
        session.set_keyspace("raw")
        raw = _Cassandra(session, keys, value)
        yield RawClient(raw.read, raw.write, raw.read_for_commit)
    finally:
        cluster.shutdown()


def _rows(keys: list[Key], txid: int) -> pa.Table:
    columns = {
        "word": pa.array([key[0] for key in keys]), "txid": pa.array([txid] * len(keys), pa.int64()),
        "attempt": pa.array([1 << 20] * len(keys), pa.int64()), "prev": pa.array([txid - 1] * len(keys), pa.int64()),
        "curr": pa.array([txid] * len(keys), pa.int64()),
    }  # fmt: skip
    return pa.table(columns)


class RustMerge:
    """A table of `all_keys`; its commits merge `keys` through delta-rs."""

    def __init__(self, path: Path, all_keys: list[Key], keys: list[Key]) -> None:
        from deltalake import write_deltalake

        self._path, self._keys, self._txid = str(path), keys, 1
        write_deltalake(self._path, _rows(all_keys, 1))

    def commit(self) -> None:
        from deltalake import DeltaTable

        self._txid += 1
        rows = _rows(self._keys, self._txid)
        merge = DeltaTable(self._path).merge(rows, _ON, source_alias="s", target_alias="t")
        done = merge.when_matched_update_all().when_not_matched_insert_all().execute()
        assert done["num_target_rows_updated"] == len(self._keys)

    def read(self) -> None:
        """Read the values of the keys."""
        from deltalake import DeltaTable

        wanted = pc.field("word").isin([key[0] for key in self._keys])
        found = DeltaTable(self._path).to_pyarrow_dataset().to_table(filter=wanted).to_pylist()
        assert len(found) == len(self._keys)


class _Spark:
    def __init__(self, spark: Any, path: Path, all_keys: list[Key], keys: list[Key]) -> None:
        from deltalake import write_deltalake

        self._spark, self._path, self._keys, self._txid = spark, str(path), keys, 1
        write_deltalake(self._path, _rows(all_keys, 1))

    def commit(self) -> None:
        self._txid += 1
        self._spark.createDataFrame(_rows(self._keys, self._txid)).createOrReplaceTempView("s")
        then = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        self._spark.sql(f"MERGE INTO delta.`{self._path}` t USING s ON {_ON} {then}")


@contextlib.contextmanager
def spark_merge(path: Path, all_keys: list[Key], keys: list[Key]) -> Iterator[_Spark]:
    """A table of `all_keys`; its commits merge `keys` through Spark, on both cores."""
    from pyspark.sql import SparkSession

    from states.delta import delta_session_conf
    from trident.spark.environment import pin_worker_python

    pin_worker_python()
    settings = {
        "spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "2",
        **delta_session_conf(ROOT / "build" / "ivy"),
    }  # fmt: skip
    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield _Spark(spark, path, all_keys, keys)
    finally:
        spark.stop()


class RedisCluster(Stops):
    """Three primaries; `port` is that of one of them."""

    def __init__(self, work: Path) -> None:
        self._ends = ExitStack()
        folders = (work / f"node{number}" for number in count())
        cluster = self._ends.enter_context(cluster_in(lambda: made(next(folders)), 3))
        self.port = cluster.nodes[0].port

    def stop(self) -> None:
        self._ends.close()


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


def _redis(scheme: str = "redis", path: str = "/0", **more: Any) -> Any:
    return lambda port, _, cache: RedisState.opaque(f"{scheme}://127.0.0.1:{port}{path}", cache=cache, **more)


def _cassandra(**more: Any) -> Any:
    more |= {"keyspace": "bench", "replication": 1}
    return lambda port, _, cache: CassandraState.opaque(["127.0.0.1"], port=port, cache=cache, **more)


def _postgres(**more: Any) -> Any:
    url = "postgresql://trident@127.0.0.1:{}/postgres"
    return lambda port, _, cache: PostgresState.opaque(url.format(port), cache=cache, **more)


MEASURED = {
    "redis-fields": MeasuredStore(_redis(layout="fields"), start_redis, raw_redis),
    "redis": MeasuredStore(_redis(), start_redis, raw_redis),
    "redis-cluster": MeasuredStore(_redis(scheme="redis+cluster", path=""), RedisCluster),
    "memcached": MeasuredStore(
        lambda port, _, cache: MemcachedState.opaque([f"127.0.0.1:{port}"], cache=cache),
        lambda work: start_memcached(work, "-m", 2048, "-M"), raw_memcached,
    ),
    "cassandra": MeasuredStore(_cassandra(), start_cassandra, raw_cassandra),
    "cassandra-columns": MeasuredStore(_cassandra(layout="columns"), start_cassandra, raw_cassandra),
    "postgres": MeasuredStore(_postgres(), start_postgres, raw_postgres),
    "postgres-bytes": MeasuredStore(_postgres(layout="binary"), start_postgres, raw_postgres),
    "delta": MeasuredStore(lambda port, work, cache: DeltaState.opaque(work / "state")),
}  # fmt: skip
