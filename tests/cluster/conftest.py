"""Where a cluster is kept, once a folder, once a ZooKeeper, and sessions of its state."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.cluster_states import Opened, Opening
from tests.harness.zookeeper_servers import ZooKeeperEnsemble, start_zookeeper
from trident.cluster.state.cluster_address import open_cluster_state

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


@pytest.fixture
def opening(address: str) -> Iterator[Opening]:
    """Open the state, any number of times; each is another session, which the test's end closes."""
    with contextlib.ExitStack() as stack:

        def open_one(session_timeout_s: float = 10.0) -> Opened:
            state = open_cluster_state(address, session_timeout_s)
            stack.callback(state.close)
            return Opened(state)

        yield open_one


@pytest.fixture
def opened(opening: Opening) -> Opened:
    """One session."""
    return opening()
