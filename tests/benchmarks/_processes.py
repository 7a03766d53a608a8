"""What a driver and the processes that it started use, by role: memory, watched from outside; processor time."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from types import TracebackType

import psutil

_LOOK_S = 0.1


class Memory:
    """Watches a driver's process and all below it; a context manager.

    Attributes
    ----------
    peaks
        MB by role, of the largest process that had the role: `driver_python`, `driver_jvm`, `executor_python`, `executor_jvm`,
        and the name of any other program.
    """

    def __init__(self, pid: int) -> None:
        self._driver = psutil.Process(pid)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self.peaks: dict[str, float] = {}

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
