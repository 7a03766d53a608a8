"""One slot of a supervisor: the driver process there, the one that should be, and the way from one to the other."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import NamedTuple

import psutil

from trident.cluster.code_store import CodeCache, UnpackedCode
from trident.cluster.machine_folder import DriverEnd, DriverOrder, MachineFolder, read_log
from trident.cluster_state.cluster_records import Assignment, DriverDeath, ErrorInfo
from trident.errors import BadPackage, ClusterError, RequirementsFailed
from trident.redaction import redacted

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0
_NEVER = float("inf")  # until something else is wanted: Nimbus marks the topology as failed, or its code is changed
_MOST_SAID = 2000
_GRACE_S = 60.0  # how long a driver may take to end before it is killed
RUN_VARIABLE = "TRIDENT_DRIVER_RUN"
_MAIN = "trident.cluster.driver_main"  # a driver of a former version has trident.cluster.driver.driver_main


class Wanted(NamedTuple):
    """What should run in a slot."""

    storm_id: str
    assignment: Assignment

    def is_of(self, order: DriverOrder) -> bool:
        mine = (self.storm_id, self.assignment.start_time_secs, self.assignment.generation)
        return mine == (order.storm_id, order.start_time_secs, order.generation)


class DriverSlot:
    """A slot, for the supervisor's thread alone; `reports` gets deaths, and what keeps a driver from its start."""

    def __init__(
        self,
        port: int,
        folder: MachineFolder,
        cluster_address: str,
        host: str,
        code: CodeCache,
        fetching: Executor,
        reports: list[tuple[str, DriverDeath | ErrorInfo]],
    ) -> None:
        self.port = port
        self._folder, self._address, self._host = folder, cluster_address, host
        self._code, self._fetching, self._reports = code, fetching, reports
        self.driver: DriverProcess | None = adopt(folder.order_file(port))
        self._ends_by: float | None = None
        self._pause_s, self._not_before = 0.0, 0.0
        self._last: Wanted | None = None
        self._hindrance = ""  # what was reported last
        self._fetched: Future[UnpackedCode] | None = None
        if (driver := self.driver) is not None:
            logger.info("slot %d: adopted the driver of %s, process %d", port, driver.order.storm_id, driver.pid)

    @property
    def is_busy(self) -> bool:
        return self.driver is not None

    def look(self, now: float, now_secs: float) -> None:
        driver, was_ordered = self.driver, self._ends_by is not None
        if driver is None or not driver.has_ended():
            if driver is not None and self._ends_by is not None and now > self._ends_by:
                logger.warning("slot %d: the driver of %s does not end; it is killed", self.port, driver.order.storm_id)
                driver.kill()
            return
        self.driver, self._ends_by = None, None
        end = DriverEnd.read(Path(driver.order.end_file))
        if was_ordered:
            return
        if end is not None and end.told:  # the cluster ordered it; if it is still wanted here, that is about to change
            self._pause(now, 0.0)
            return
        death = self._death(driver, end, now_secs)
        logger.warning("slot %d: the driver of %s died: %s", self.port, driver.order.storm_id, death.reason)
        self._note(now, driver.order.storm_id, death)

    def want(self, now: float, wanted: Wanted | None) -> None:
        if wanted != self._last:
            # Another assignment is another try: how the last one went does not hold it up.
            self._last, self._fetched = wanted, None
            self._pause_s, self._not_before, self._hindrance = 0.0, 0.0, ""
        if self.driver is not None:
            if wanted is None or not wanted.is_of(self.driver.order):
                self.end(now)
            return
        if wanted is not None and now >= self._not_before:
            self._start(now, wanted)

    def end(self, now: float) -> None:
        """Let the driver end; it is killed when its grace is over."""
        if self.driver is not None and self._ends_by is None:
            logger.info("slot %d: asking the driver of %s to end", self.port, self.driver.order.storm_id)
            self._ends_by = now + _GRACE_S
            self.driver.end()

    def _start(self, now: float, wanted: Wanted) -> None:
        if self._fetched is None:
            # Not in this thread, which looks after the other drivers: requirements may take half an hour.
            self._fetched = self._fetching.submit(self._code.prepare, wanted.assignment.code_hash)
        if not self._fetched.done():
            return
        try:
            ready = self._fetched.result()
            # Else what the driver before has said would be taken for the end of this one.
            self._folder.end_file(self.port).unlink(missing_ok=True)
            before = os.environ.get("PYTHONPATH")
            paths = os.pathsep.join([*ready.python_path, *([before] if before else [])])
            self.driver = start_driver(
                self._order(wanted, ready),
                self._folder.order_file(self.port),
                self._folder.output_file(wanted.storm_id),
                {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"},
            )
            logger.info("slot %d: started %s, process %d", self.port, wanted.storm_id, self.driver.pid)
        except (BadPackage, RequirementsFailed) as error:
            # Perhaps an index does not answer, or this machine alone has another Python: another time, or machine, may do.
            fatal, start = isinstance(error, BadPackage), wanted.assignment.start_time_secs
            where = self._folder.id, self.port, wanted.assignment.generation
            self._note(now, wanted.storm_id, DriverDeath(start, *where, start, 0.0, fatal, str(error)))
        # It says nothing of the topology: another start may do, so no death is noted.
        except (ClusterError, OSError) as error:
            self._pause(now, 0.0)
            text = f"{wanted.storm_id} cannot be started yet: {error}"
            logger.warning("slot %d: %s", self.port, text)
            if text != self._hindrance:
                self._hindrance = text
                self._reports.append((wanted.storm_id, ErrorInfo(time.time(), text, socket.gethostname(), self.port)))
        self._fetched = None

    def _order(self, wanted: Wanted, ready: UnpackedCode) -> DriverOrder:
        assigned, folder = wanted.assignment, self._folder
        slot = self._address, wanted.storm_id, folder.id, self.port, self._host
        of = assigned.start_time_secs, assigned.generation, assigned.code_hash
        files = str(ready.folder), str(folder.log_file(wanted.storm_id)), str(folder.end_file(self.port))
        return DriverOrder(*slot, *of, *files, secrets.token_hex(8))

    def _pause(self, now: float, ran_secs: float) -> None:
        """Wait before the next start: longer each time, from the begin again after a driver that ran well."""
        self._pause_s = _FIRST_PAUSE_S if ran_secs > _LONGEST_PAUSE_S else min(self._pause_s * 2, _LONGEST_PAUSE_S)
        self._not_before = now + self._pause_s
        self._pause_s = max(self._pause_s, _FIRST_PAUSE_S)

    def _death(self, ended: DriverProcess, end: DriverEnd | None, now_secs: float) -> DriverDeath:
        order = ended.order
        if end is None:  # it could not say why
            said = ""
            with contextlib.suppress(OSError):  # its death counts all the same
                # Whole lines, unless one is longer, of what is redacted, as half a secret is not known as one.
                printed = redacted(read_log(self._folder.output_file(order.storm_id), None)["text"]).strip()
                said = printed[-_MOST_SAID:]
                said = said if said == printed else said.partition("\n")[2] or said
            reason = ended.how + (f"; it said last: {said}" if said else "")
            end = DriverEnd(False, False, max(0.0, now_secs - ended.created_secs), reason)
        where, start = (order.node, order.port, order.generation), order.start_time_secs
        return DriverDeath(now_secs, *where, start, end.ran_secs, end.fatal, end.reason)

    def _note(self, now: float, storm_id: str, death: DriverDeath) -> None:
        # Another start is later, or makes no sense.
        if death.fatal:
            self._not_before = _NEVER
        else:
            self._pause(now, death.ran_secs)
        self._reports.append((storm_id, death))


def start_driver(order: DriverOrder, order_file: Path, output: Path, environment: Mapping[str, str]) -> DriverProcess:
    """Start a driver; relative paths are below the supervisor's working directory, as with `trident run`."""
    command = [sys.executable, "-m", _MAIN, str(order_file)]
    order.write(order_file)
    try:
        with output.open("wb") as printed:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                # So neither Ctrl-C nor the death of the supervisor reaches it, and what it starts is found.
                start_new_session=True,
                env={**environment, RUN_VARIABLE: order.run},
            )
    except OSError as error:
        raise ClusterError(f"the driver of {order.storm_id} could not be started: {error}") from error
    return DriverProcess(order, psutil.Process(child.pid), child)


def adopt(order_file: Path) -> DriverProcess | None:
    """Return the driver that an earlier supervisor started; None if it does not run any more: what it left is killed."""
    order, left = DriverOrder.read(order_file), list[int]()
    if order is None:
        return None
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            # By its name: a number may be another process's by now, and a full disk, or a kill, may come before it is noted.
            if each.environ().get(RUN_VARIABLE) != order.run:
                continue
            # What the driver has forked has its command too, but does not lead the session; what it has started leads others.
            if os.getsid(each.pid) == each.pid and any(word.endswith(".driver_main") for word in each.cmdline()):
                return DriverProcess(order, each, None)
            left.append(each.pid)
    _kill(left)
    return None


def _kill(pids: Iterable[int]) -> None:
    for each in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


class DriverProcess:
    """The process of a driver; `adopted`: an earlier supervisor has started it."""

    def __init__(self, order: DriverOrder, process: psutil.Process, child: subprocess.Popen[bytes] | None) -> None:
        self.order, self.adopted = order, child is None
        self._process, self._child = process, child
        self._swept = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def created_secs(self) -> float:
        return self._process.create_time()

    def has_ended(self) -> bool:
        """Whether it has ended; then what it had started is killed."""
        if self._swept:
            return True
        if not self._is_gone():
            return False
        # What it had started may hold files and ports that the next driver needs.
        _kill(self._remaining_pids())
        if self._child is not None:
            self._child.wait()
        self._swept = True
        return True

    @property
    def how(self) -> str:
        code = None if self._child is None else self._child.returncode
        if code is None:
            return "it ended while no supervisor was there" if self._swept else "it runs"
        return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"

    def end(self) -> None:
        # After the commit that is under way, or what is pending.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        _kill([self.pid, *self._remaining_pids()])

    def _is_gone(self) -> bool:
        if self._child is not None:
            # The process is not reaped before what it started is found: its number is not given to another one meanwhile.
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            return not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE
        return True

    def _remaining_pids(self) -> Iterator[int]:
        """Iterate over the processes of its session, and those that carry its name."""
        for each in psutil.process_iter():
            if each.pid == self.pid or each.pid == os.getpid():
                continue
            with contextlib.suppress(psutil.Error, OSError):
                of_session = os.getsid(each.pid) == self.pid and each.create_time() >= self.created_secs
                if of_session or each.environ().get(RUN_VARIABLE) == self.order.run:
                    yield each.pid
