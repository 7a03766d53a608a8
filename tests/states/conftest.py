"""Fixtures of the tests of stores."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from states.cassandra.cluster_session import CassandraConnection, borrow, give_back
from tests.harness.servers import Server, start_memcached, start_redis
from tests.states.cassandra.cassandra_states import Home
from tests.states.redis.redis_cluster import Cluster, cluster_in


@pytest.fixture(scope="module")
def always_columns() -> Iterator[None]:
    """Few keys are committed by columns too, and removed ones deleted soon."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trident.state.map_commits.REMOVAL_LAG", 2)
        patched.setattr("trident.state.number_table._FEW_KEYS", 0)
        patched.setattr("trident.state.encoding.serializers._FEWEST_IN_ARRAYS", 0)
        patched.setattr("trident.state.number_table._FEW_TEXTS", 0)
        yield


@pytest.fixture(scope="module")
def connected(cassandra_server: Server) -> Iterator[Home]:
    home = Home(cassandra_server)
    home.map(home.conf())  # holds the connection, so that no test has to make it again
    yield home
    home.close()


@pytest.fixture
def home(connected: Home) -> Iterator[Home]:
    own = Home(connected.server)
    yield own
    own.close()


@pytest.fixture
def cql(connected: Home) -> Iterator[CassandraConnection]:
    connection = borrow(connected.options)
    yield connection
    give_back(connection)


@pytest.fixture
def client(redis_server: Server) -> Iterator[Any]:
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
        yield client


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in(lambda: tmp_path_factory.mktemp("node"), 3) as cluster:
        yield cluster


@pytest.fixture
def cluster(redis_cluster: Cluster) -> Cluster:
    """Three primaries, empty. Who moves slots moves them back."""
    for client in redis_cluster.clients:
        client.flushall()
    return redis_cluster


def _started(start: Callable[..., Server], folder: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start_one(*arguments: object) -> Server:
        work = folder / str(len(servers))
        work.mkdir()
        servers.append(start(work, *arguments))
        return servers[-1]

    yield start_one
    for server in servers:
        server.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a Redis of the test's own, with these arguments."""
    yield from _started(start_redis, tmp_path)


@pytest.fixture
def start_own_memcached(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a Memcached of the test's own, with these arguments."""
    yield from _started(start_memcached, tmp_path)
