"""Where a cluster is kept: once a folder, once a ZooKeeper."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.zookeeper_servers import ZooKeeperEnsemble, start_zookeeper

_roots = itertools.count(1)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """One for the cluster's tests alone: they kill it, and with the logs of other tests it starts slowly."""
    ensemble = start_zookeeper(tmp_path_factory.mktemp("zookeeper"))
    try:
        yield ensemble
    finally:
        ensemble.stop()


@pytest.fixture(params=["sqlite", pytest.param("zookeeper", marks=pytest.mark.server)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of a cluster that no other test has."""
    if request.param == "sqlite":
        return str(tmp_path / "cluster")
    ensemble: ZooKeeperEnsemble = request.getfixturevalue("zookeeper_server")
    return f"zookeeper://{ensemble.hosts}/cluster{next(_roots)}"
