"""The program of the section on Spark Connect in docs/deploying.md, on a server of Spark Connect."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.connect_servers import ConnectServer
from tests.test_docs import DOCS, blocks, environment

PAGE = DOCS / "deploying.md"
(PROGRAM,) = blocks(PAGE, "py")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_the_program_runs(connect_server: ConnectServer, tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books/moon.txt").write_text("the cow jumped over the moon\n", encoding="utf-8")
    here = PROGRAM.replace('"/data', f'"{tmp_path}').replace("sc://localhost:15002", connect_server.url)
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
    assert done.stdout.splitlines() == re.findall(r"^ *print\(.*\)  # (.*)$", PROGRAM, re.MULTILINE)
