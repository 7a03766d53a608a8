"""The contracts of a transaction log, in one process and between processes, on logs in files and in a real ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coordination.log_contract import LogContract, OwnerContract
from tests.coordination.log_homes import FileHome, ZooKeeperHome
from tests.coordination.log_processes import ProcessContract


class Files:
    @pytest.fixture
    def home(self, tmp_path: Path) -> FileHome:
        return FileHome(tmp_path / "a" / "log")


class TestFiles(Files, LogContract):
    pass


class TestOwnerOfFiles(Files, OwnerContract):
    pass


class TestProcessesWithFiles(Files, ProcessContract):
    pass


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
