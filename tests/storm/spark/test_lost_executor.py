"""Executors of a cluster that die."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.commands import environment

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.long
def test_nothing_is_lost_when_an_executor_is_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.storm.spark.lost_executor"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "back after" in done.stdout
