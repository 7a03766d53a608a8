"""The command as its users run it: a process of its own, in a folder of its own."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.harness.forked import run_python
from trident.log.log_reader import LogReader, exists

_TIMEOUT_S = 90.0
_TRIDENT = (sys.executable, "-m", "trident.cli")
# As a user calls it. A Python that was given `-m` ends by SIGINT, not with 130, if Ctrl-C came while it made a dataclass.
_SCRIPT = (sys.executable, str(Path(sys.executable).with_name("trident")))

# Rows that say how many batches were committed: the count of "the" is twice the txid.
COUNTS = """
    from spouts import FixedBatchSpout
    from states.delta import DeltaState
    from trident import TridentTopology
    from trident.operations import Count, Split

    def made(cycle):
        topology = TridentTopology("counts")
        words = topology.new_stream("lines", FixedBatchSpout("line: string", 2, *ROWS, cycle=cycle)).each(
            "line", Split(), "word"
        )
        words.group_by("word").persistent_aggregate(DeltaState.opaque("table"), Count(), "count")
        words.persistent_aggregate(DeltaState.opaque("total"), Count(), "total")
        return topology

    ROWS = [["the cow"], ["the moon"], ["the man"], ["the cow"], ["the moon"], ["the end"]]
    topology = made(cycle=False)
    endless = made(cycle=True)
"""


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment, without what would change the output of a command."""
    kept = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}
    return {**kept, "COLUMNS": "400", "NO_COLOR": "1", **changes}


def trident(*words: str, cwd: Path, timeout_s: float = _TIMEOUT_S, **changes: str) -> subprocess.CompletedProcess[str]:
    return run_python(*_TRIDENT[1:], *words, cwd=cwd, variables=environment(**changes), timeout_s=timeout_s)


_OF_PROGRESS = (": batch ", " trident.run.running: ")


def complaints(problems: str) -> list[str]:
    """Return the lines of a command's standard error that are not of its progress, or of how slow that is."""
    return [line for line in problems.splitlines() if not any(part in line for part in _OF_PROGRESS)]


def write_module(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")


class Background:
    """A command that runs, in a session of its own as a shell would give it a process group of its own."""

    def __init__(
        self, words: tuple[str, ...], cwd: Path, program: tuple[str, ...] = _SCRIPT,
        variables: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        with interruptible():
            self.process = subprocess.Popen(
                [*program, *words],
                cwd=cwd,
                env=environment() if variables is None else variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )

    def signal(self, signum: int) -> None:
        """Send a signal to the whole process group, as a terminal does."""
        os.killpg(self.process.pid, signum)

    def says(self, pattern: str) -> str:
        """Read its output until it has a text; returns that."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(pattern, line):
                return found[0]
        raise AssertionError(f"it has ended and never said {pattern}")

    def end(self) -> tuple[int, str, str]:
        out, problems = self.process.communicate(timeout=_TIMEOUT_S)
        return self.process.returncode, out, problems

    def descendants(self) -> list[psutil.Process]:
        """Return all processes that it started, and theirs, in whatever session they are."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def session(self) -> list[int]:
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return found


def lives(process: psutil.Process) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def interruptible() -> Iterator[None]:
    """Let what is started here heed SIGINT: of a suite that a shell runs in the background it would inherit not to."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def started(
    *words: str, cwd: Path, program: tuple[str, ...] = _SCRIPT, variables: Mapping[str, str] | None = None
) -> Iterator[Background]:
    """Run a command in the background; what is left of its session at the end is killed."""
    background = Background(words, cwd, program, variables)
    try:
        yield background
    finally:
        for pid in background.session():
            os.kill(pid, signal.SIGKILL)
        background.process.communicate()


def last_txid(log_dir: Path) -> int:
    return LogReader(log_dir).refresh().txid if exists(log_dir) else 0


def until(true: Callable[[], object], what: str = "what is waited for") -> None:
    """Look again and again until something is so; fail if it never is."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not true():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.01)
