"""Commits in executors end exact whatever is killed, lost, stopped or repeated; without E1, or E2, the same runs go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.harness.servers import Server

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.server]


def campaign(part: str, work: Path, seed: int = 0, **ports: int) -> str:
    """Run a part in a process of its own, which has its own Spark; return what it says at the end."""
    spark = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment = {**os.environ, **spark, "SPARK_WORKER_DIR": str(work), "PYTHONPATH": str(ROOT)}
    stores = [f"--{store}={port}" for store, port in ports.items()]
    program = [
        sys.executable,
        "-m",
        "tests.crash.commit_tasks.kill_campaign",
        f"--part={part}",
        f"--seed={seed}",
        *stores,
    ]
    done = subprocess.run(program, cwd=work, env=environment, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(600)
def test_killed_workers_executors_and_drivers_are_counted_once(redis_server: Server, tmp_path: Path) -> None:
    said = campaign("few", tmp_path, redis=redis_server.port)
    assert "commit tasks: 3 runs, 3 with their fault, 3 exact" in said
    assert ", 1 wrong" in said  # without E1


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("part", ["cluster", "drivers", "rules", "repeated", "speculation"])
def test_the_whole_campaign(
    part: str, seed: int, redis_server: Server, cassandra_server: Server, postgres_server: Server, tmp_path: Path
) -> None:
    ports = {"redis": redis_server.port, "cassandra": cassandra_server.port, "postgres": postgres_server.port}
    campaign(part, tmp_path, seed, **ports)
