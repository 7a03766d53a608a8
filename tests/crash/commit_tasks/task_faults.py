"""What goes wrong in a commit task, where and how: once, in the worker process that comes there first."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

from trident.errors import BackendError

__all__ = ["POINTS", "Fault", "executors_of"]

POINTS = {
    "before": "before begin_commit",
    "begun": "after begin_commit",
    "chunk": "between two chunks of a put",
    "put": "before commit",
    "committed": "after commit",
}
"""Instants of a commit task, in order. The driver adds `processed` (before the job that commits) and `record`."""

_WAIT_S = 120.0
_LOOK_S = 0.02
_SLOW_S = 6.0


@dataclass(frozen=True)
class Fault:
    """What happens once at a point of the commit of a batch.

    Attributes
    ----------
    point
        One of `POINTS`, or `processed` or `record`, which are the driver's.
    how
        `worker`, `executor`: this process, or its executor's JVM, is killed. `neighbour`: the other executor is killed, and
        this task goes on. `pause`: this process stops (SIGSTOP) until it is woken. `raise`: the store answers with an error.
        `driver`: this process waits until the file `go` is there; the driver is killed meanwhile. `slow`: the first
        partition takes its time, in each attempt, so that Spark begins a copy of its task. "": nothing happens.
    state, txid
        The state and the batch.
    folder
        Where the files are that tell other processes what has happened.
    """

    point: str = ""
    how: str = ""
    state: str = ""
    txid: int = 2
    folder: str = ""

    def reach(self, point: str, state: str, txid: int) -> None:
        """Come by a point in a worker."""
        if (point, state, txid) != (self.point, self.state, self.txid) or not self.how:
            return
        if self.how == "slow":
            time.sleep(_SLOW_S)
        elif self.note("reached", str(os.getpid())):
            self._happen()

    def _happen(self) -> None:
        if self.how == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.how == "executor":
            _own_executor().kill()
            signal.pause()
        elif self.how == "neighbour":
            own = _own_executor()
            for other in executors_of(own.cmdline()):
                if other != own:
                    other.kill()
        elif self.how == "pause":
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        elif self.how == "raise":
            raise BackendError("no answer")
        elif self.how == "driver":
            if threading.current_thread() is threading.main_thread():  # a resident worker commits in another one
                for ignored in (
                    signal.SIGHUP,
                    signal.SIGTERM,
                ):  # on another machine it would not learn of its driver's end
                    signal.signal(ignored, signal.SIG_IGN)
            self._wait_for("go")

    def put(self, put: object) -> None:
        """Note what became of the put of a process that slept in it."""
        if self.how == "pause" and self.said("reached") == str(os.getpid()):
            self.note("woken", str(put))

    def note(self, name: str, text: str = "") -> bool:
        """Write a file whole, unless it is there; return whether it was written."""
        whole = Path(self.folder, f"{name}.{os.getpid()}")
        whole.write_text(text)
        try:
            os.link(whole, Path(self.folder, name))
        except FileExistsError:
            return False
        finally:
            whole.unlink()
        return True

    def said(self, name: str) -> str | None:
        """Return what such a file says, None if it is not there."""
        path = Path(self.folder, name)
        return path.read_text() if path.exists() else None

    def _wait_for(self, name: str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while self.said(name) is None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)


def _own_executor() -> psutil.Process:
    return next(one for one in psutil.Process().parents() if one.name() == "java")


def executors_of(driver: Collection[str]) -> list[psutil.Process]:
    """Return the executors of a driver on this machine, whoever started them.

    Parameters
    ----------
    driver
        Holds the driver's address as Spark writes it; the command line of each of its executors does.
    """
    address = next(word for word in driver if word.startswith("spark://CoarseGrainedScheduler@"))
    # The command line of a zombie is None.
    return [one for one in psutil.process_iter(["cmdline"]) if address in (one.info["cmdline"] or [])]
