"""The process of a driver, and all that it starts: started here, or adopted from a supervisor that died."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import psutil

from trident.cluster.machine.machine_folder import DriverOrder
from trident.cluster_errors import ClusterError

RUN_VARIABLE = "TRIDENT_DRIVER_RUN"
_SAME_S = 0.02  # the time of a process's begin is read in ticks of 10 ms


class DriverProcess:
    """A driver with a session of its own, which Ctrl-C and the death of its supervisor do not reach.

    `order`: the file that it was started with.
    `adopted`: whether an earlier supervisor started it.
    """

    def __init__(self, order: DriverOrder, process: psutil.Process, child: subprocess.Popen[bytes] | None) -> None:
        self.order, self.adopted = order, child is None
        self._process, self._child = process, child
        self._swept = False

    @property
    def pid(self) -> int:
        """The process."""
        return self.order.pid

    def has_ended(self) -> bool:
        """Whether it has ended; then what it had started is killed."""
        if self._swept:
            return True
        if not self._is_gone():
            return False
        for each in self._left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        if self._child is not None:
            self._child.wait()
        self._swept = True
        return True

    @property
    def how(self) -> str:
        """How it ended, as far as its parent can know."""
        code = None if self._child is None else self._child.returncode
        if code is None:
            return "it ended while no supervisor was there" if self._swept else "it runs"
        return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"

    def end(self) -> None:
        """Ask it to end: after the commit that is under way, or what is pending."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and all that it started."""
        for each in [self.pid, *self._left()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    def _is_gone(self) -> bool:
        if self._child is not None:
            # The process is not reaped before what it started is found: its number is not given to another one meanwhile.
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return not _is_running(self._process)

    def _left(self) -> Iterator[int]:
        """Iterate over the processes of its session, and those that carry its name."""
        for each in psutil.process_iter():
            if each.pid == self.pid or each.pid == os.getpid():
                continue
            with contextlib.suppress(psutil.Error, OSError):
                of_session = os.getsid(each.pid) == self.pid and each.create_time() >= self.order.created_secs - _SAME_S
                if of_session or each.environ().get(RUN_VARIABLE) == self.order.run:
                    yield each.pid


def start_driver(order: DriverOrder, order_file: Path, output: Path, environment: Mapping[str, str]) -> DriverProcess:
    """Start a driver; its order names the process before this returns.

    Relative paths of its states and files are below the working directory of the supervisor, as with `trident run`.

    Raises `ClusterError`: the process could not be started.
    """
    command = [sys.executable, "-m", "trident.cluster.driver.driver_main", str(order_file)]
    order.write(order_file)
    try:
        with output.open("wb") as printed:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**environment, RUN_VARIABLE: order.run},
            )
    except OSError as error:
        raise ClusterError(f"the driver of {order.storm_id} could not be started: {error}") from error
    process = psutil.Process(child.pid)
    known = replace(order, pid=child.pid, created_secs=process.create_time())
    known.write(order_file)
    return DriverProcess(known, process, child)


def adopt(order_file: Path) -> DriverProcess | None:
    """Return the driver that an earlier supervisor started, None if it does not run any more."""
    order = DriverOrder.read(order_file)
    if order is None:
        return None
    try:
        process = psutil.Process(order.pid) if order.pid else _find(order)
        if process is None:
            return None
        if abs(process.create_time() - order.created_secs) > _SAME_S:
            if order.pid:
                return None  # the number belongs to another process now
            order = replace(order, pid=process.pid, created_secs=process.create_time())
    except psutil.NoSuchProcess:
        return None
    return DriverProcess(order, process, None) if _is_running(process) else None


def _find(order: DriverOrder) -> psutil.Process | None:
    """Return the process of an order whose supervisor died before it could note the process."""
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.environ().get(RUN_VARIABLE) == order.run and "trident.cluster.driver.driver_main" in each.cmdline():
                return each
    return None


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
