"""Starts benchmarks as drivers of their own, and gives back what they print.

What a driver and the processes that it started use, by role: memory, watched from outside; processor time.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil
import pyspark

from tests.harness.servers import ROOT, start_redis

LOCAL_CLUSTER = "local-cluster[2,1,2048]"
_LOOK_S = 0.1


class DriverFailed(Exception):
    """A driver ended with an error; the text is the last that it printed."""


class _Driver:
    """A process; a context manager that ends it."""

    def __init__(self, module: str, arguments: list[str]) -> None:
        # The folder of this tree comes first on the path of the driver and of its workers, before the installed one.
        paths = {
            "PYTHONPATH": str(ROOT),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by __exit__
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT, env={**os.environ, **paths}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        with self.process:
            if self.process.poll() is None:
                self.process.terminate()
        self._errors.close()

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def answer(self, said: str = "") -> Any:
        """Say something, wait for the end, and return what it printed last."""
        out, _ = self.process.communicate(said)
        if self.process.returncode:
            self._errors.seek(0)
            lines = [line for line in self._errors.read().splitlines() if line and not line[0].isspace()]
            raise DriverFailed(f"exit code {self.process.returncode}: {' '.join(lines[-2:])[:800]}")
        return json.loads(out.strip().splitlines()[-1])


def wordcount(**options: Any) -> dict[str, Any]:
    """Run `tests.benchmarks.wordcount`."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]
    with _Driver("tests.benchmarks.wordcount", arguments) as driver:
        figures: dict[str, Any] = driver.answer()
    return figures


def scale_run(**task: Any) -> dict[str, Any]:
    """Run a topology of computed keys; its figures, with the MB that each kind of process used when idle and at most."""
    with tempfile.TemporaryDirectory(prefix="trident-scale-log-") as log:
        task["settings"] = {"log_dir": log, **task["settings"]}
        with _Driver("tests.benchmarks._scale_run", [json.dumps(task)]) as driver, Memory(driver.process.pid) as memory:
            if driver.says() != "idle":
                driver.answer()
            idle = memory.begin()
            figures = driver.answer("go\n")
    return {**figures, "idle_mb": _rounded(idle), "peak_mb": _rounded(memory.peaks)}


def _rounded(by_role: dict[str, float]) -> dict[str, int]:
    return {role: round(mb) for role, mb in sorted(by_role.items())}


@contextmanager
def on_redis() -> Iterator[str]:
    """Start a Redis and give its address; it is stopped afterwards."""
    with tempfile.TemporaryDirectory(prefix="trident-scale-") as folder, start_redis(Path(folder)) as server:
        yield f"redis://{server.address}/0"


class Memory:
    """Watches a driver's process and all below it; a context manager.

    `peaks`: MB by role, of the largest process that had the role: `driver_python`, `driver_jvm`, `executor_python`,
    `executor_jvm`, and the name of any other program.
    """

    def __init__(self, pid: int) -> None:
        self._driver = psutil.Process(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self.peaks: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._thread.join()

    def begin(self) -> dict[str, float]:
        """Forget the peaks so far; return what the processes use now."""
        now: dict[str, float] = {}
        for role, process in _roles(self._driver):
            with contextlib.suppress(psutil.Error, OSError):
                now[role] = max(now.get(role, 0.0), process.memory_info().rss / (1 << 20))
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # the peak is the present size
        self.peaks = dict(now)
        return now

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            for role, process in _roles(self._driver):
                with contextlib.suppress(psutil.Error, OSError):
                    self.peaks[role] = max(self.peaks.get(role, 0.0), _peak_mb(process.pid))


def processor_seconds(pid: int) -> dict[str, float]:
    """Return the seconds of processor time of a driver and of what runs below it by role, see `Memory.peaks`."""
    seconds: dict[str, float] = {}
    for role, process in _roles(psutil.Process(pid)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds[role] = seconds.get(role, 0.0) + times.user + times.system
    return seconds


def _roles(driver: psutil.Process) -> list[tuple[str, psutil.Process]]:
    found = [("driver_python", driver)]
    with contextlib.suppress(psutil.Error):
        for process in driver.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found.append((_role(driver, process), process))
    return found


def _role(driver: psutil.Process, process: psutil.Process) -> str:
    name = process.name()
    if name == "java":
        return "driver_jvm" if process.ppid() == driver.pid else "executor_jvm"
    return "executor_python" if name.startswith("python") else name


def _peak_mb(pid: int) -> float:
    """Return the largest resident size that a process ever had, as the kernel keeps it."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = status.partition("VmHWM:")[2].split(None, 1)
    return int(found[0]) / 1024 if found else 0.0  # a process that has just ended has none
