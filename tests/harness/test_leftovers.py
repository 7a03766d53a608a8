"""What tests have started ends with their process, however that ends, and whatever session it is in."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# One that lives on without whoever started it, in a session of its own.
ORPHAN = "import subprocess; print(subprocess.Popen(['sleep', '600'], stdout=-3, start_new_session=True).pid)"
TESTS = f"""
import os, signal, subprocess, sys
from pathlib import Path

def test_it(redis_server):
    orphan = subprocess.run([sys.executable, "-c", {ORPHAN!r}], stdout=subprocess.PIPE, check=True).stdout
    child = subprocess.Popen(["sleep", "600"])
    Path(__file__).with_name("said").write_text(f"{{os.getpid()}} {{redis_server.pid}} {{child.pid}} {{int(orphan)}}")
    signal.pause()
"""


@pytest.mark.server
@pytest.mark.sample(2)
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda signum: signum.name)
@pytest.mark.parametrize("whom", ["worker", "controller", "group"])
def test_what_tests_have_started_ends_with_them(tmp_path: Path, signum: signal.Signals, whom: str) -> None:
    with session(tmp_path) as (controller, worker, *started):
        if whom == "group":  # as Ctrl-C does
            os.killpg(controller, signum)
        else:
            os.kill(worker if whom == "worker" else controller, signum)
        for pid in started:
            assert select.select([pid], [], [], 60)[0], "a process runs on"


@contextmanager
def session(folder: Path) -> Iterator[list[int]]:
    """Run a test that waits; gives the processes of its session: its controller, its worker, and what it has started."""
    os.mkfifo(folder / "said")
    (folder / "test_it.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "tests.conftest", "-n", "1", folder]
    running = subprocess.Popen([*map(str, command)], cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        pids = [running.pid, *map(int, (folder / "said").read_text().split())]
        handles = [os.pidfd_open(pid) for pid in pids]
        yield [running.pid, pids[1], *handles[2:]]
        for handle in handles:
            os.close(handle)
    finally:
        running.kill()
        running.wait()
