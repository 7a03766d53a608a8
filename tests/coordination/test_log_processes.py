"""The contract of a log between processes, on a log in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coordination.log_homes import FileHome
from tests.coordination.log_processes import ProcessContract


class TestProcessesWithFiles(ProcessContract):
    @pytest.fixture
    def home(self, tmp_path: Path) -> FileHome:
        return FileHome(tmp_path / "log")
