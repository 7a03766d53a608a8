"""The contracts of a store, run on Memcached."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from states.memcached import MemcachedState
from tests.harness.servers import Server, start_memcached
from trident.testing import BackingMapContract, FencedMapContract, Limits, MapStateContract

pytestmark = pytest.mark.server

# A writer that is replaced between its look at the sentinel and the arrival of a chunk writes that chunk: see
# states/memcached/map.py for why that is harmless.
LIMITS = Limits(durable=True, repartitions=True, fences="written", removes=True, resets=True)


@pytest.fixture(scope="module")
def roomy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Memcached that takes values of more than 1 MB: its own limit depends on the length of the key."""
    server = start_memcached(tmp_path_factory.mktemp("memcached"), "-M", "-I", "8m")
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _server(request: pytest.FixtureRequest, roomy_server: Server) -> None:
    request.instance.factory = MemcachedState.opaque(roomy_server.address)


class TestBackingMap(BackingMapContract):
    limits = LIMITS


class TestFencedMap(FencedMapContract):
    limits = LIMITS


class TestMapState(MapStateContract):
    limits = LIMITS
