"""The contracts of a store, run on Redis: on one server, and on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from states.redis import RedisState
from tests.harness.servers import Server, free_ports, start_redis
from trident.testing import BackingMapContract, FencedMapContract, MapStateContract

pytestmark = pytest.mark.server


@pytest.fixture
def strings(request: pytest.FixtureRequest, redis_server: Server) -> None:
    request.instance.factory = RedisState.opaque(f"redis://{redis_server.address}")


@pytest.fixture(scope="module")
def cluster_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A cluster of one node, which checks slots as every cluster does."""
    (bus,) = free_ports(1)
    work: Path = tmp_path_factory.mktemp("cluster")
    server = start_redis(
        work, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-require-full-coverage", "no"
    )
    try:
        import redis

        with redis.Redis(port=server.port) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            while client.cluster("INFO")["cluster_state"] != "ok":
                pass
        yield server
    finally:
        server.stop()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, cluster_node: Server) -> None:
    request.instance.factory = RedisState.opaque(f"redis+cluster://{cluster_node.address}", cluster_buckets=4)


@pytest.mark.usefixtures("strings")
class TestBackingMap(BackingMapContract):
    pass


@pytest.mark.usefixtures("strings")
class TestFencedMap(FencedMapContract):
    pass


@pytest.mark.usefixtures("strings")
class TestMapState(MapStateContract):
    pass


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
class TestClusterBackingMap(BackingMapContract):
    pass


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
class TestClusterFencedMap(FencedMapContract):
    pass
