"""The comparison at the top of the README is true: after a kill `foreachBatch` counts twice, and a topology does not."""

import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import ROOT, blocks, environment

pytestmark = pytest.mark.slow

README = ROOT / "README.md"
LINE = "the cow jumped over the moon\n"
_KILL = "__import__('os').kill(__import__('os').getpid(), 9)"
_KILLED_AFTER_THE_COMMIT = f"""
import runpy
from trident.state import OpaqueMap

commit = OpaqueMap.commit


def commit_and_die(self, txid):
    commit(self, txid)
    {_KILL}


OpaqueMap.commit = commit_and_die
topology = runpy.run_path("word_count.py")["topology"]
with topology.start(engine="in_process") as running:
    running.process_all_available()
"""
_STARTED_AGAIN = """
import runpy

program = runpy.run_path("word_count.py")
with program["topology"].start(engine="in_process") as running:
    running.process_all_available()
    print(running.state(program["word_counts"]).multi_get(["the", "cow"]))
"""


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=140, check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "moon.txt").write_text(LINE, encoding="utf-8")
    return tmp_path


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)  # two starts of Spark
def test_the_foreach_batch_program_counts_twice_after_a_kill(folder: Path) -> None:
    (program,) = blocks(README, "py")
    killed, places = re.subn(r"# If the job is killed here.*", _KILL, program)
    assert places == 1
    assert run(killed, folder).returncode == -signal.SIGKILL
    again = run(program, folder)
    assert again.returncode == 0, again.stderr
    with sqlite3.connect(folder / "counts.db") as db:
        assert dict(db.execute("SELECT word, n FROM counts WHERE word IN ('the', 'cow')")) == {"the": 4, "cow": 2}


def test_the_topology_counts_once_after_a_kill(folder: Path) -> None:
    (folder / "word_count.py").write_text(blocks(README, "python")[0], encoding="utf-8")
    assert run(_KILLED_AFTER_THE_COMMIT, folder).returncode == -signal.SIGKILL
    again = run(_STARTED_AGAIN, folder)
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines() == ["[2, 1]"]
