"""A forked program is as one that Python was started for: its words, its variables, its names, its end."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.harness.commands import until
from tests.harness.forked import run_python

pytestmark = pytest.mark.slow

_LIMIT_S = 60.0
_PROGRAM = """
import atexit, os, sys
atexit.register(print, "at the end")
print(sys.argv, os.environ["MINE"], __name__, sorted(name for name in globals() if name[:2] != "__"))
import beside
print(beside.__name__, os.getcwd() == sys.path[0], sys.stdin.read() == "")
print("a problem", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


def forked(folder: Path, *words: str, timeout_s: float = _LIMIT_S) -> subprocess.CompletedProcess[str]:
    return run_python(*words, cwd=folder, variables={**os.environ, "MINE": "set"}, timeout_s=timeout_s)


@pytest.mark.parametrize("started", [["program.py"], ["-m", "program"]], ids=["file", "module"])
def test_a_program_finds_what_it_finds_when_python_is_started_for_it(tmp_path: Path, started: list[str]) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM, encoding="utf-8")
    (tmp_path / "beside.py").touch()
    found = forked(tmp_path, *started, "3")
    itself = subprocess.run(
        [sys.executable, *started, "3"], cwd=tmp_path, env={**os.environ, "MINE": "set"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stdout, found.stderr) == (itself.returncode, itself.stdout, itself.stderr)
    assert (found.returncode, found.stderr) == (3, "a problem\n")
    assert found.stdout.endswith("at the end\n")


def test_an_exception_and_a_signal_end_a_program_as_they_end_any(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("raise KeyError('no such')", encoding="utf-8")
    (tmp_path / "killed.py").write_text("import os\nos.kill(os.getpid(), 9)", encoding="utf-8")
    raised = forked(tmp_path, "raises.py")
    assert (raised.returncode, raised.stderr.splitlines()[-1]) == (1, "KeyError: 'no such'")
    assert forked(tmp_path, "killed.py").returncode == -9


@pytest.mark.long
def test_a_program_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    text = "import os, pathlib, signal\npathlib.Path('pid').write_text(str(os.getpid()))\nsignal.pause()"
    (tmp_path / "stuck.py").write_text(text, encoding="utf-8")
    with pytest.raises(subprocess.TimeoutExpired):
        forked(tmp_path, "stuck.py", timeout_s=5)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not psutil.pid_exists(pid), "it has ended")


@pytest.mark.long
def test_what_python_reads_at_its_start_is_that_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['zmq'] = None", encoding="utf-8")
    (tmp_path / "program.py").write_text("import zmq", encoding="utf-8")
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = run_python("program.py", cwd=tmp_path, variables=variables, timeout_s=_LIMIT_S)
    assert "import of zmq halted" in found.stderr
