"""What a process of tests has started ends with it, however it ends: a watcher waits for that, and kills what is left.

What was started has the name of the process in its environment, whatever session it is in and whoever has started it. A server
may write over its environment, or be given none, so each is noted besides.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

_NAME = "TESTS_STARTED_BY"
"""The processes of tests that a process was started by, each as `/<pid>-<time of its start>`, outermost first."""


def watch() -> None:
    """Start the watcher of this process, which is one of tests."""
    own = psutil.Process()
    os.environ[_NAME] = f"{os.environ.get(_NAME, '')}/{own.pid}-{own.create_time()}"
    _noted().touch()
    subprocess.Popen(
        [sys.executable, __file__, str(own.pid), os.environ[_NAME], _noted()],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def note(pid: int) -> None:
    """Have the watcher kill the session that this process, just started, leads. Does nothing where no tests run."""
    if _NAME in os.environ:
        with _noted().open("a", encoding="utf-8") as file:
            file.write(f"{pid} {psutil.Process(pid).create_time()}\n")


def _noted() -> Path:
    return Path(tempfile.gettempdir(), f"trident-tests{os.environ[_NAME].replace('/', '-')}")


def _main(pid: int, name: str, noted: Path) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    with contextlib.suppress(psutil.NoSuchProcess):
        tests = psutil.Process(pid)
        while tests.is_running() and tests.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.1)
    lines = [line.split() for line in noted.read_text(encoding="utf-8").splitlines()]
    noted.unlink()
    sessions = {int(leader) for leader, created in lines if _has_no_other(int(leader), float(created))}
    while left := _left(name, sessions):
        for each in left:
            with contextlib.suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(left, timeout=1)


def _has_no_other(leader: int, created: float) -> bool:
    """Whether a number is not that of another process by now; as long as there is its session, it cannot be."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(leader).create_time() == created
    return True


def _left(name: str, sessions: set[int]) -> list[psutil.Process]:
    """Return what runs still: what has the name, what is in one of the sessions, and what these have started."""
    running = {each.pid: each for each in psutil.process_iter() if _is_at_work(each)}
    found = {pid for pid, each in running.items() if _is_of(each, name, sessions)}
    while more := {pid for pid, each in running.items() if pid not in found and _parent(each) in found}:
        found |= more
    return [running[pid] for pid in found]


def _is_at_work(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE and __file__ not in process.cmdline()
    return False


def _is_of(process: psutil.Process, name: str, sessions: set[int]) -> bool:
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        started_by = process.environ().get(_NAME, "")
        return started_by == name or started_by.startswith(f"{name}/") or os.getsid(process.pid) in sessions
    return False


def _parent(process: psutil.Process) -> int | None:
    with contextlib.suppress(psutil.Error):
        return process.ppid()
    return None


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
