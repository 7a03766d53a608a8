"""The contracts of a store, run on PostgreSQL."""

from __future__ import annotations

import pytest

from states.postgres import PostgresState
from tests.harness.servers import Server
from tests.stores.catalog import STORES
from trident.testing import BackingMapContract, FencedMapContract, MapStateContract, SnapshottableContract


@pytest.fixture(autouse=True)
def _open(request: pytest.FixtureRequest, postgres_server: Server) -> None:
    request.instance.factory = PostgresState.opaque(f"postgresql://trident@{postgres_server.address}/postgres")
    request.instance.limits = STORES["postgres"].limits


class TestBackingMap(BackingMapContract):
    pass


class TestFencedMap(FencedMapContract):
    pass


class TestMapState(MapStateContract):
    pass


class TestSnapshottable(SnapshottableContract):
    pass
