"""The contract of a transaction log, on a log in a real ZooKeeper."""

from __future__ import annotations

import pytest

from tests.coordination.log_contract import LogContract, OwnerContract
from tests.coordination.log_homes import ZooKeeperHome
from tests.coordination.log_processes import ProcessContract


class InZooKeeper:
    @pytest.fixture
    def home(self, zookeeper_home: ZooKeeperHome) -> ZooKeeperHome:
        return zookeeper_home


class TestZooKeeperLog(InZooKeeper, LogContract):
    pass


class TestOwnerOfZooKeeperLog(InZooKeeper, OwnerContract):
    pass


class TestProcessesWithZooKeeperLog(InZooKeeper, ProcessContract):
    pass
