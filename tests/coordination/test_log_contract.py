"""The contracts of a transaction log, in one process and between processes, on a log in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coordination.log_contract import LogContract, OwnerContract
from tests.coordination.log_homes import FileHome
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
