"""Fixtures of the tests of stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from states._cassandra_session import Connection, borrow, give_back
from tests.servers import Server
from tests.states.cassandra_support import Home
from tests.states.redis_cluster import Cluster, cluster_in


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
def cql(connected: Home) -> Iterator[Connection]:
    connection = borrow(connected.options)
    yield connection
    give_back(connection)


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
