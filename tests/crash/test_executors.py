"""Spark executors that are killed in the middle of a run: Spark runs their tasks again, and the counts stay exact."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_killed_executors_cost_no_tuple_and_double_none(tmp_path: Path) -> None:
    spark = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment = {**os.environ, **spark, "SPARK_WORKER_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-m", "tests.crash.executors"]
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
