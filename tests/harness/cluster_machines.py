"""A cluster for tests: Nimbuses and supervisors as processes, each "machine" with a folder and ports of its own."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import psutil

from tests.harness.commands import environment, interruptible, lives, until, write_module
from trident.cluster.client import ClusterClient
from trident.cluster.driver_slot import adopt
from trident.cluster.topology_package import make_package
from trident.cluster_state.cluster_address import folder_of, log_of, open_cluster_state
from trident.cluster_state.cluster_records import WorkerHeartbeat
from trident.cluster_state.storm_cluster_state import StormClusterState
from trident.log.log_address import open_reader
from trident.log.log_interface import TransactionLogReader
from trident.nodes.sqlite_nodes import writers_of

TOKEN = "a-token-of-tests"
MOVED_AFTER_S = 4.0
"""How long a driver may be silent in tests that wait for it to be moved. A busy machine may take longer to start one."""

# In a batch every word of `LINES` is counted once, so the batches that are committed say what every count must be.
COUNTING = """
    import os
    from spouts import FixedBatchSpout
    from states.delta import DeltaState
    from trident import TridentTopology
    from trident.operations import Count, Split

    LINES = [["the cow"], ["the moon"]]
    FOLDER = os.environ.get("COUNTING_FOLDER", "states")

    def made(name, *more):
        topology = TridentTopology(name)
        spout = FixedBatchSpout("line: string", 2, *LINES, *more, cycle=True)
        words = topology.new_stream("lines", spout).each("line", Split(), "word")
        words.group_by("word").persistent_aggregate(
            DeltaState.opaque(f"{FOLDER}/{name}"), Count(), "count", state_name="counts"
        )
        return topology

    topology = made("counting")
    other = made("other")
"""


class DaemonProcess:
    """A daemon of the command line, and its log."""

    def __init__(self, words: list[str], log: Path, **variables: str) -> None:
        self.words, self.log, self._variables = words, log, variables
        self.start()

    def start(self) -> None:
        with interruptible(), self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trident.cli", *self.words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(TRIDENT_TOKEN=TOKEN, **self._variables),
                cwd=self.log.parent,
                start_new_session=True,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def end(self) -> int:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        return self.process.wait(90)

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


class Machine(DaemonProcess):
    """A supervisor with its drivers."""

    def __init__(self, words: list[str], folder: Path, log: Path, **variables: str) -> None:
        self.folder, self._address = folder, words[words.index("--cluster") + 1]
        super().__init__([*words, "--folder", str(folder)], log, **variables)

    @property
    def id(self) -> str:
        return (self.folder / "supervisor-id").read_text(encoding="utf-8").strip()

    def drivers(self) -> list[psutil.Process]:
        found = []
        for each in sorted((self.folder / "slots").glob("*.json")):
            driver = None if each.name.endswith(".end.json") else adopt(each)
            with contextlib.suppress(psutil.NoSuchProcess):
                if driver is not None and lives(process := psutil.Process(driver.pid)):
                    found.append(process)
        return found

    def lose(self) -> None:
        """Lose the machine: all of its processes at once."""
        drivers = self.drivers()
        for each in [psutil.Process(self.process.pid), *drivers]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.suspend()  # so that none of them sees another one die
        self._kill_all(drivers)

    def freeze(self) -> list[psutil.Process]:
        """Stop all of its processes with SIGSTOP; returns them, for `resume`."""
        stopped = [psutil.Process(self.process.pid), *self.drivers()]
        freeze(stopped, self._address)
        return stopped

    def _kill_all(self, drivers: list[psutil.Process]) -> None:
        for each in drivers:
            for below in [*each.children(recursive=True), each]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    below.kill()
        self.kill()

    def clear(self) -> None:
        """Kill everything that is left of it."""
        if self.process.poll() is None:
            self.lose()
        for each in self.drivers():
            for below in [*each.children(recursive=True), each]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    below.kill()


class MachineCluster:
    """A cluster on one address. A context manager: leaving it kills every process of it.

    `address`: of the cluster's state.
    `driver_timeout_s`: after which a silent driver is moved.
    `variables`: more of the environment of all processes.
    """

    def __init__(
        self, folder: Path, address: str, driver_timeout_s: float = 20.0, max_deaths: int = 20, **variables: str
    ) -> None:
        self.folder, self.address = folder, address
        self._timeout, self._max_deaths = driver_timeout_s, max_deaths
        self.nimbuses: list[DaemonProcess] = []
        self.machines: list[Machine] = []
        self.state = StormClusterState(open_cluster_state(address, 3.0))
        self.client = ClusterClient(address, TOKEN)
        self._variables = {"COUNTING_FOLDER": str(folder / "states"), **variables}
        self._readers: dict[str, TransactionLogReader] = {}
        write_module(folder, "counting", COUNTING)

    def nimbus(self) -> DaemonProcess:
        number = len(self.nimbuses) + 1
        words = ["nimbus", "--cluster", self.address, "--port", "0", "--code", str(self.folder / "code")]
        words += [
            "--driver-timeout", str(self._timeout), "--session-timeout", "3", "--max-deaths", str(self._max_deaths),
        ]  # fmt: skip
        self.nimbuses.append(DaemonProcess(words, self.folder / f"nimbus{number}.log", **self._variables))
        return self.nimbuses[-1]

    def machine(self, slots: int = 2, address: str | None = None) -> Machine:
        """Start another supervisor; `address`: it reaches the cluster there."""
        number = len(self.machines) + 1
        words = ["supervisor", "--cluster", address or self.address, "--slots", str(slots), "--session-timeout", "3"]
        place, log = self.folder / f"machine{number}", self.folder / f"machine{number}.log"
        self.machines.append(Machine(words, place, log, **self._variables))
        return self.machines[-1]

    def up(self, machines: int = 1, nimbuses: int = 1) -> None:
        """Start Nimbuses and machines; return when all of them are known."""
        for _ in range(nimbuses):
            self.nimbus()
        for _ in range(machines):
            self.machine()
        until(lambda: self.state.leader() is not None, "a Nimbus leads")
        until(lambda: len(self.state.supervisors()) == machines, "the supervisors are known")
        until(lambda: len(self.state.nimbuses()) == nimbuses, "all Nimbuses are known")

    def leader(self) -> DaemonProcess:
        """Return the Nimbus that leads; wait for one."""
        until(lambda: self._leader() is not None, "a Nimbus leads")
        found = self._leader()
        assert found is not None
        return found

    def _leader(self) -> DaemonProcess | None:
        found = self.state.leader()
        pid = None if found is None else found["pid"]
        return next((each for each in self.nimbuses if each.process.pid == pid and each.process.poll() is None), None)

    def log_address(self, name: str) -> str:
        """Return where the cluster has a topology's log."""
        return log_of(self.address, name, self.folder)

    def log(self, name: str) -> TransactionLogReader:
        """Return the reader of a topology's log, wherever a cluster of this kind has it. For one thread."""
        if name not in self._readers:
            self._readers[name] = open_reader(self.log_address(name))
        return self._readers[name]

    def submit(self, name: str = "counting", target: str = "counting.py:topology", **conf: str) -> str:
        """Submit a topology that runs in process, slowly; returns its id."""
        package = make_package(str(self.folder / target))
        return self.client.submit(package, name, {"engine": "in_process", "batch_emit_interval_ms": "20", **conf})

    def beat(self, storm_id: str) -> WorkerHeartbeat | None:
        """Return the heartbeat of the driver that a topology is assigned to."""
        assignment = self.state.assignment_info(storm_id)
        if assignment is None:
            return None
        beat = self.state.get_worker_heartbeat(storm_id, *assignment.slot)
        return beat if beat is not None and beat.start_time_secs == assignment.start_time_secs else None

    def machine_of(self, storm_id: str) -> Machine:
        assignment = self.state.assignment_info(storm_id)
        assert assignment is not None, "it is not assigned"
        return next(each for each in self.machines if each.id == assignment.slot.node)

    def driver_of(self, storm_id: str) -> psutil.Process:
        """Return the process that runs a topology; wait for its first heartbeat."""
        until(lambda: self.beat(storm_id) is not None, f"the driver of {storm_id} has sent a heartbeat")
        beat = self.beat(storm_id)
        assert beat is not None, "it was moved just now"
        return psutil.Process(beat.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for nimbus in self.nimbuses:
            if nimbus.process.poll() is None:
                nimbus.kill()
        for machine in self.machines:
            machine.clear()
        for reader in self._readers.values():
            reader.close()
        self.client.close()
        self.state.disconnect()
        if raised[0] is not None:
            for log in sorted(self.folder.glob("*.log")):
                print(f"==== {log.name}\n{log.read_text(errors='replace')[-3000:]}")  # noqa: T201  for a failed test

    def left(self) -> Iterator[psutil.Process]:
        """Iterate over the drivers that still run."""
        for machine in self.machines:
            yield from machine.drivers()


def freeze(processes: Sequence[psutil.Process], address: str) -> None:
    """Stop processes with SIGSTOP, and not in the middle of a write to the embedded state of a cluster, which is at `address`.

    One that is stopped there holds SQLite's lock until it goes on: every other one waits. On machines of their own, which have
    a ZooKeeper, there is no such file.
    """
    while True:
        for each in processes:
            each.suspend()
        for each in processes:
            _await_stop(each)
        folder = folder_of(address)
        if folder is None or not writers_of(folder / "cluster.db") & {each.pid for each in processes}:
            return
        for each in processes:
            each.resume()
        time.sleep(0.01)  # so that the write may end


def _await_stop(process: psutil.Process) -> None:
    deadline = time.monotonic() + 10
    while process.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        time.sleep(0.001)
