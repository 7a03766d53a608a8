"""A command imports nothing heavy that it does not need: its users wait for that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trident.coordination.transaction_log import FileLog

ENGINES = ("pyspark", "py4j", "pyarrow", "pandas", "numpy")
SERVERS = ("starlette", "uvicorn", "httpx", "psutil", "kazoo", "obstore", "redis", "psycopg", "confluent_kafka")
FRAMEWORK = ("trident.topology", "trident.stream", "trident.state", "trident.coordination", "trident.runtime")
PROGRAM = """
import sys
from trident.cli.app import app

heavy = sys.argv.pop(1).split(",")
try:
    app(prog_name="trident")
finally:
    sys.stderr.write(repr(sorted(name for name in heavy if name in sys.modules)))
"""


def loaded(heavy: tuple[str, ...], *words: str, cwd: Path) -> str:
    """Run a command in a new process; return which of the modules it has imported."""
    command = [sys.executable, "-c", PROGRAM, ",".join(heavy), *words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=True)
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--help", "get --help", "dead-letters list --help", "crashtest --help", "--version"])
def test_help_imports_neither_an_engine_nor_the_framework(words: str, tmp_path: Path) -> None:
    assert loaded((*ENGINES, *SERVERS, *FRAMEWORK, "deltalake"), *words.split(), cwd=tmp_path) == "[]"


@pytest.mark.slow
def test_a_look_into_a_log_imports_neither_an_engine_nor_a_client_of_a_server(tmp_path: Path) -> None:
    FileLog.open(tmp_path / "log", "t").close()
    assert loaded((*ENGINES, *SERVERS, "trident.topology"), "log", "log", cwd=tmp_path) == "[]"
