"""Who holds the file of a cluster's state is named."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.harness.commands import until
from trident.cluster.state.sqlite_nodes import holders_text, writers_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not tell who holds files"),
]

_HOLD = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
"""


def test_a_process_that_holds_the_file_is_named_and_whether_it_is_stopped(tmp_path: Path) -> None:
    file = tmp_path / "cluster.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (x)")
        assert holders_text(file) == ""
        command = [sys.executable, "-c", _HOLD, str(file)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            assert writers_of(file) == {holder.pid}
            assert holders_text(file) == f" Process {holder.pid} holds it."
            os.kill(holder.pid, signal.SIGSTOP)
            until(lambda: psutil.Process(holder.pid).status() == psutil.STATUS_STOPPED, "it is stopped")
            assert f"kill -CONT {holder.pid}" in holders_text(file)
            holder.kill()
        until(lambda: writers_of(file) == set(), "nobody holds it")
