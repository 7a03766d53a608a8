"""Runs a case: driver after driver, each but the last made to crash, until the source is exhausted; then judges."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from tests.crash.case import (
    BATCHES,
    EXACT,
    KEYS,
    ROWS,
    SEGMENT_BYTES,
    Case,
    Contents,
    Store,
    committed,
    expected,
    stored,
)
from tests.crash.driver import main, observer, serve
from tests.crash.fuse import OPENING, RECONCILING, Arm, Died, Fuse
from tests.crash.fused_wrappers import crashing_log
from tests.harness.forked import ROOT, command_of
from tests.log.log_homes import PostgresHome, stored_home
from trident.errors import FencedError
from trident.log.log_address import open_reader
from trident.log.log_interface import MemoryLog
from trident.log.log_state import LogState
from trident.run.running import RunningTopology, start
from trident.servers.log_addresses import ZooKeeperAddress

WAIT_S = 60


@dataclass
class Outcome:
    """What came of a case.

    Attributes
    ----------
    found, wanted
        What the states hold, and what a plain dict holds that was fed each committed batch once.
    crashed_after
        The last committed batch at each crash.
    torn
        What a reader at the committed snapshot saw between a crash and the restart, where it was not the state after
        the last committed batch.
    winners
        How many attempts won a batch, over all batches: 1 if nothing ever failed.
    """

    case: Case
    found: Contents = field(default_factory=dict)
    wanted: Contents = field(default_factory=dict)
    crashed_after: list[int] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    winners: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether every key of every state is as if each committed batch had come once."""
        return self.found == self.wanted

    def differences(self) -> list[str]:
        return [
            f"{self.case}: {name}{key} is {self.found[name].get(key)}, not {self.wanted[name].get(key)}"
            for name, keys in KEYS.items()
            for key in keys
            if self.found[name].get(key) != self.wanted[name].get(key)
        ]

    def crash(self, directory: Path, log: LogState) -> None:
        """Look at the wreck: a snapshot read must not see the half batch."""
        self.crashed_after.append(log.txid)
        if self.case.pairing in EXACT and self.case.pairing.state == "opaque":
            seen, right = stored(self.case, directory, log), expected(self.case.seed, committed(log))
            if seen != right:
                self.torn.append(f"after a crash in batch {log.txid + 1}: {seen} instead of {right}")

    def finish(self, directory: Path, log: LogState) -> Outcome:
        """Compare the end with the plain dict."""
        definitions = committed(log)
        numbers = sorted(number for definition in definitions for number in definition["rows"])
        assert numbers == list(range(ROWS)), f"{self.case}: each row must be in exactly one committed batch"
        assert log.txid == BATCHES, f"{self.case}: {log.txid} batches"
        self.found, self.wanted = stored(self.case, directory, log), expected(self.case.seed, definitions)
        self.winners = len(log.winners.ranges)
        return self


def lives_of(case: Case) -> list[list[Arm]]:
    """Return what kills each driver in turn; nothing does the last one."""
    if case.how == "fail":
        return [[case.arm()]]  # it survives
    lives = [[case.arm()]]
    if case.point == "P14":
        lives += [] if case.memory_log else [[Arm(OPENING, 0, case.how)]]
        lives += [[Arm(RECONCILING, 0, case.how)]]
    return [*lives, []]


class DriverServer:
    """A process that forks drivers, each a call of a function with what it is told."""

    def __init__(self, run: Callable[[dict[str, Any]], None] = main) -> None:
        self._process = subprocess.Popen(
            command_of(serve, run),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # no threads in a process that forks
        )

    def start(self, life: dict[str, Any]) -> int:
        return int(self._ask({"start": life})["pid"])

    def wait(self, pid: int) -> dict[str, int]:
        """Wait until a driver ends or stops: `{"ended": exit code or -signal}` or `{"stopped": signal}`."""
        return self._ask({"wait": pid})

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, request: dict[str, Any]) -> dict[str, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, int] = json.loads(self._process.stdout.readline())
        return answer


def life_of(case: Case, directory: Path, number: int, arms: list[Arm], takeover: bool = False) -> dict[str, Any]:
    """Return what a driver process is told."""
    return {
        "case": asdict(case),
        "directory": str(directory),
        "number": number,
        "arms": [asdict(arm) for arm in arms],
        "takeover": takeover,
    }


def run_in_processes(case: Case, directory: Path, server: DriverServer) -> Outcome:
    """Run a case; each driver is a process that dies of, or is stopped by, a real signal."""
    outcome, paused = Outcome(case), 0
    for number, arms in enumerate(lives_of(case), 1):
        pid = server.start(life_of(case, directory, number, arms, takeover=paused > 0))
        end = server.wait(pid)
        if not arms:
            assert (end, ending(directory, number)) == ({"ended": 0}, "done"), f"{case}: {told(directory, number)}"
        elif case.how == "stop":
            assert end == {"stopped": signal.SIGSTOP}, f"{case}: {end} {told(directory, number)}"
            paused = pid
        else:
            assert end == {"ended": -signal.SIGKILL}, f"{case}: {end} {told(directory, number)}"
        if arms:
            outcome.crash(directory, case.log(directory))
    if paused:
        before = fingerprint(case, directory)
        os.kill(paused, signal.SIGCONT)
        assert server.wait(paused) == {"ended": 0}
        assert ending(directory, 1) == "FencedError", f"{case}: {told(directory, 1)}"
        written = {name for name, _ in fingerprint(case, directory).items() ^ before.items()}
        assert not written, f"{case}: the driver that was replaced has written {sorted(written)}"
    return outcome.finish(directory, case.log(directory))


def run_killed_at_random(case: Case, directory: Path, server: DriverServer, rng: random.Random) -> Outcome:
    """Run a case whose drivers are killed by a clock; each has a little more time than the one before."""
    outcome, number = Outcome(case), 0
    while True:
        number += 1
        life = {**life_of(case, directory, number, []), "kill_after_s": rng.uniform(0.05, 0.1 + 0.05 * number)}
        end = server.wait(server.start(life))
        if end == {"ended": 0}:
            assert ending(directory, number) == "done", f"{case}: {told(directory, number)}"
            if not outcome.crashed_after:  # each was killed before it had a log, or none was
                (directory / "again").mkdir()
                return run_killed_at_random(case, directory / "again", server, rng)
            return outcome.finish(directory, case.log(directory))
        assert end == {"ended": -signal.SIGKILL}, f"{case}: {end}"
        if _is_begun(case, directory):
            outcome.crash(directory, case.log(directory))


def ending(directory: Path, number: int) -> str:
    return (directory / f"life-{number}.end").read_text()


def told(directory: Path, number: int) -> str:
    """Return the trace of what ended a driver, if anything did."""
    path = directory / f"life-{number}.txt"
    return path.read_text() if path.exists() else "no error"


def fingerprint(case: Case, directory: Path) -> dict[str, str]:
    """Return what the logs say, the topology's own and those of the tables: names, and a digest of what counts."""
    files = list(directory.glob("*/_trident/changes/_delta_log/[0-9]*.json"))
    if case.log_at:
        log = _nodes(case, directory)
    else:
        paths = list((directory / "log").iterdir())
        files.append(max(path for path in paths if path.suffix == ".log"))  # what stands before it no longer matters
        log = dict.fromkeys((path.name for path in paths), "is there")
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files} | log


def _nodes(case: Case, directory: Path) -> dict[str, str]:
    """Return what a log on a server consists of; the nodes of a ZooKeeper that say who is alive are not written by the log."""
    if not case.log_at.startswith("zookeeper:"):
        home = stored_home(case.log_dir(directory))
        contents = home.contents()
        # Objects that the head does not name do not count; a driver may write one before it learns that it was replaced.
        rows: list[Any] = sorted(contents.items()) if isinstance(home, PostgresHome) else [contents["head"]]
        if case.in_postgres:
            assert isinstance(home, PostgresHome)
            rows += [row for name in KEYS for row in home.ask(f'SELECT * FROM "{case.table(directory, name)}"')]
        return {str(number): hashlib.sha256(repr(each).encode()).hexdigest() for number, each in enumerate(rows)}
    address = ZooKeeperAddress.of(case.log_dir(directory))
    client = KazooClient(address.hosts)
    client.start()
    found, paths = dict[str, str](), [address.path]
    while paths:
        path = paths.pop()
        if not path.endswith("/alive"):
            found[path] = hashlib.sha256(client.get(path)[0]).hexdigest()
            paths += [f"{path}/{child}" for child in client.get_children(path)]
    client.stop()
    client.close()
    return found


def _is_begun(case: Case, directory: Path) -> bool:
    with closing(open_reader(case.log_dir(directory))) as reader:
        return reader.is_there()


def run_here(case: Case, directory: Path) -> Outcome:
    """Run a case in this process: a driver dies by an exception that nothing handles, or a thread of it is paused."""
    outcome, memory_log, zombie = Outcome(case), MemoryLog("crash"), None
    for number, arms in enumerate(lives_of(case), 1):
        fuse = Fuse(arms)
        running = _start(case, directory, number, fuse, memory_log, zombie is not None)
        if case.how == "park" and arms:
            assert running is not None
            assert fuse.parked.wait(WAIT_S), f"{case}: never came to its point; {running.status}"
            zombie = fuse, running
        elif running is not None:
            _let_run(running)
        assert len(fuse.reached) == len(arms), f"{case}: never came to {arms}"
        if arms and case.how != "fail":
            outcome.crash(directory, _log(case, directory, memory_log))
    if zombie is not None:
        _wake(case, directory, *zombie)
    outcome.finish(directory, _log(case, directory, memory_log))
    Store.forget(directory)
    return outcome


def _start(
    case: Case, directory: Path, number: int, fuse: Fuse, memory_log: MemoryLog, takeover: bool
) -> RunningTopology | None:
    graph, config = case.topology(directory, number, fuse).graph(), case.config(directory, takeover=takeover)
    try:
        with crashing_log(fuse, SEGMENT_BYTES):
            return start(graph, config, memory_log if case.memory_log else None, observer(fuse))
    except Died:
        return None


def _let_run(running: RunningTopology) -> None:
    try:
        running.process_all_available()
    except Died:
        pass
    finally:
        running.stop()


def _log(case: Case, directory: Path, memory_log: MemoryLog) -> LogState:
    return memory_log.state if case.memory_log else case.log(directory)


def _wake(case: Case, directory: Path, fuse: Fuse, running: RunningTopology) -> None:
    """The driver that was replaced goes on where it was paused: it must notice, stop, and have changed nothing."""
    before = _everything(case, directory)
    fuse.woken.set()
    try:
        ended = running.await_termination(WAIT_S)
        raise AssertionError(f"{case}: the driver that was replaced {'stopped' if ended else 'goes on'}")
    except FencedError:
        pass
    assert _everything(case, directory) == before, f"{case}: the driver that was replaced has written"


def _everything(case: Case, directory: Path) -> Any:
    files = {} if case.memory_log else fingerprint(case, directory)
    return files, Store.contents(directory)
