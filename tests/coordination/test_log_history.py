"""The history of logs in all their homes; its setting; what a start and an append read and write for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coordination.history_contract import HistoryContract
from tests.coordination.log_homes import FileHome, ObjectHome, PostgresHome, ZooKeeperHome


class TestInFiles(HistoryContract):
    @pytest.fixture
    def home(self, tmp_path: Path) -> FileHome:
        return FileHome(tmp_path / "log")


class TestInZooKeeper(HistoryContract):
    @pytest.fixture
    def home(self, zookeeper_home: ZooKeeperHome) -> ZooKeeperHome:
        return zookeeper_home


class TestInPostgres(HistoryContract):
    @pytest.fixture
    def home(self, postgres_home: PostgresHome) -> PostgresHome:
        return postgres_home


class TestInObjectStore(HistoryContract):
    @pytest.fixture
    def home(self, object_home: ObjectHome) -> ObjectHome:
        return object_home
