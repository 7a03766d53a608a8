"""Where a cluster is kept: once a folder, once a ZooKeeper."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.harness.zookeeper_servers import ZooKeeperEnsemble

_roots = itertools.count(1)


@pytest.fixture(params=["sqlite", pytest.param("zookeeper", marks=pytest.mark.server)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of a cluster that no other test has."""
    if request.param == "sqlite":
        return str(tmp_path / "cluster")
    ensemble: ZooKeeperEnsemble = request.getfixturevalue("zookeeper_server")
    return f"zookeeper://{ensemble.hosts}/cluster{next(_roots)}"
