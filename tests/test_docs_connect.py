"""The programs of docs/spark-connect.md, on a server of Spark Connect."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.connect_servers import ConnectServer
from tests.test_docs import DOCS, blocks, environment

PAGE = DOCS / "spark-connect.md"
PROGRAMS = blocks(PAGE, "py")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "code", [pytest.param(PROGRAMS[0], id="query"), pytest.param(PROGRAMS[1], id="topology", marks=pytest.mark.long)]
)
def test_a_program_runs(code: str, connect_server: ConnectServer, tmp_path: Path) -> None:
    assert len(PROGRAMS) == 2
    (tmp_path / "books").mkdir()
    (tmp_path / "books/moon.txt").write_text("the cow jumped over the moon\n", encoding="utf-8")
    here = code.replace('"/data', f'"{tmp_path}').replace("sc://localhost:15002", connect_server.url)
    assert "/data" not in here
    (tmp_path / "program.py").write_text(here, encoding="utf-8")
    for _ in range(8):
        done = subprocess.run(
            [sys.executable, "program.py"], cwd=tmp_path, env=environment(), timeout=200, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        if "failed to connect back" not in done.stderr:  # ten seconds were too few for the server's process
            break
    else:
        raise AssertionError("the server is overloaded")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
