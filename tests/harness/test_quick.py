"""A test that starts a JVM or a server and is not marked so fails; other tests are quick."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JVM = "from trident.spark.session import spark_session; spark_session('t')"
TESTS = f"""
import subprocess, sys
import pytest
from tests.harness.servers import start_redis

def test_jvm():
    with pytest.raises(Exception):
        {JVM}

def test_jvm_of_a_child():
    subprocess.run([sys.executable, "-c", "import subprocess; subprocess.run(['java', '-version'])"], check=True)

def test_server(tmp_path):
    start_redis(tmp_path)

def test_fixture(redis_server):
    assert redis_server.port

@pytest.mark.server
def test_mark(tmp_path):
    start_redis(tmp_path).stop()

@pytest.fixture
def with_spark(spark):
    pass

def test_through_a_fixture(with_spark):
    pass

def test_nothing():
    pass
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_quick_test_starts_neither_a_jvm_nor_a_server(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "tests.conftest", "-v", tmp_path]
    done = subprocess.run(
        [*map(str, command), "-m", "quick or server"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    verdicts = {
        line.split()[0].split("::")[1]: line.split()[1]
        for line in done.stdout.splitlines()
        if "::" in line.split(" ")[0]
    }
    assert verdicts == {
        "test_jvm": "FAILED",
        "test_jvm_of_a_child": "FAILED",
        "test_server": "FAILED",
        "test_fixture": "PASSED",
        "test_mark": "PASSED",
        "test_nothing": "PASSED",
    }, done.stdout
    assert done.stdout.count("mark it with spark: java") >= 2  # the summary may repeat it
    assert "test_it.py::test_server starts redis-server; mark it with server" in done.stdout
