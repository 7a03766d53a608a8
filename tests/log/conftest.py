"""Fixtures of the tests of the log."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

from tests.harness.servers import Server
from tests.harness.zookeeper_servers import ZooKeeperEnsemble
from tests.log.log_homes import Home, ObjectHome, PostgresHome, ZooKeeperHome
from tests.log.log_samples import TOPOLOGY, commit
from trident.log.file_log import FileLog
from trident.log.log_state import LogState

_numbers = count(1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a" / "log"


@pytest.fixture
def three(path: Path) -> list[LogState]:
    """A log of three batches in one segment; the state after 0, 1, 2 and 3 of them."""
    log = FileLog.open(path, TOPOLOGY)
    states = [deepcopy(log.state)]
    for txid in range(1, 4):
        log.append(commit(txid, payload={"to": txid}))
        states.append(deepcopy(log.state))
    log.close()
    return states


@pytest.fixture(scope="module")
def zookeeper_client(zookeeper_server: ZooKeeperEnsemble) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper_server.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def zookeeper_home(zookeeper_server: ZooKeeperEnsemble, zookeeper_client: KazooClient) -> Iterator[ZooKeeperHome]:
    path = f"/trident/log-{next(_numbers)}"
    yield ZooKeeperHome(zookeeper_server.hosts, path, zookeeper_client)
    with suppress(NoAuthError, NoNodeError):
        zookeeper_client.delete(path, recursive=True)  # it keeps everything in memory


@pytest.fixture
def postgres_home(postgres_server: Server) -> PostgresHome:
    return PostgresHome(f"postgresql://trident@{postgres_server.address}/postgres?topology=log-{next(_numbers)}")


@pytest.fixture
def object_home(s3_server: Server) -> ObjectHome:
    return ObjectHome(f"s3://logs/trident/log-{next(_numbers)}")


@pytest.fixture
def log(home: Home) -> Iterator[Any]:
    with closing(home.open()) as log:
        yield log


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread
