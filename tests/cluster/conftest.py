"""Where a cluster is kept, a folder or a server of each kind, and sessions of its state."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import cluster_states
from tests.harness.cluster_states import ON_SERVERS, Opened, Opening, address_on
from tests.harness.zookeeper_servers import ZooKeeperEnsemble, start_zookeeper


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """One for the cluster's tests alone: they kill it, and with the logs of other tests it starts slowly."""
    with start_zookeeper(tmp_path_factory.mktemp("zookeeper")) as ensemble:
        yield ensemble


@pytest.fixture(params=["sqlite", *(pytest.param(each, marks=pytest.mark.server) for each in ON_SERVERS)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "cluster") if request.param == "sqlite" else address_on(request.param, request)


@pytest.fixture
def opening(address: str) -> Iterator[Opening]:
    """Open the state, any number of times; each is another session, which the test's end closes."""
    with contextlib.ExitStack() as stack:

        def open_one(session_timeout_s: float = 10.0) -> Opened:
            return stack.enter_context(cluster_states.opened(address, session_timeout_s))

        yield open_one


@pytest.fixture
def opened(opening: Opening) -> Opened:
    return opening()
