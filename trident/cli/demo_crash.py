"""`trident demo --crash`: the job in a process of its own, killed in the middle of commits and started again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trident.cli.console import unwinding_on_signals
from trident.cli.demo_folder import DemoFolder
from trident.coordination.log_state import LogState
from trident.coordination.transaction_log import LogReader, exists
from trident.errors import TridentError
from trident.servers.local_processes import kill_session

_LOOK_S = 0.005
_LONGEST_SOCKET_FOLDER = 60  # Spark refuses more characters: the path of a socket is of a limited length


@dataclass(frozen=True)
class Kill:
    """A SIGKILL: after which batch's record, and how far the store was by then."""

    number: int
    recorded: int
    stored: int | None

    def __str__(self) -> str:
        batch = self.recorded + 1
        if self.stored is not None and self.stored >= batch:
            where = f"batch {self.stored} was in the store but not in the log: its counts are undone and written again"
        else:
            where = "the batch under way had not reached the store: it is processed again"
        return f"kill {self.number}: SIGKILL after the record of batch {self.recorded}; {where}"


class DemoJob:
    """A run of the demo's topology in a session of its own, so that a kill takes Spark with it.

    Leaving the context ends every process of the session, however it is left. If this process is killed itself, the job
    ends too: it reads from a pipe whose other end is here.
    """

    def __init__(self, folder: DemoFolder, engine: str, scratch: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "trident.cli.with_parent",
            "run",
            str(folder.module.absolute()) + ":topology",
            "--once",
        ]
        command += ["--log-dir", str(folder.log_dir), "--conf", f"engine={engine}"]
        # All that a killed Spark leaves behind is in one folder then.
        short = len(str(scratch)) <= _LONGEST_SOCKET_FOLDER
        sockets = f"dir={scratch}" if short else "enabled=false"
        command += ["--conf", f"spark.python.unix.domain.socket.{sockets}"]
        command += ["--conf", f"spark.driver.extraJavaOptions=-Djava.io.tmpdir={scratch}"]
        environment = {**os.environ, "TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
        self._output = (scratch / "output").open("w+b")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )

    def __enter__(self) -> DemoJob:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._output.close()
        assert self._process.stdin is not None
        self._process.stdin.close()

    @property
    def pid(self) -> int:
        """The process id, which is the session's as well."""
        return self._process.pid

    def ended(self) -> bool:
        """Whether the job has come to its end by itself; raises what it said if that was an error."""
        code = self._process.poll()
        if code is None:
            return False
        if code != 0:
            self._output.seek(0)
            said = self._output.read().decode(errors="replace").strip()
            raise TridentError(f"the job ended with exit code {code}; it said:\n{said}")
        return True

    def kill(self) -> None:
        """SIGKILL every process of the session and wait until they are gone."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        # Spark's Python workers have a process group of their own, but the same session.
        kill_session(self.pid)
        # Not Popen.wait(): a signal that ended Popen.poll() at the wrong moment has left its lock locked for ever.
        with contextlib.suppress(ChildProcessError):  # it was waited for before
            os.waitpid(self.pid, 0)


def run_with_kills(
    folder: DemoFolder,
    engine: str,
    kills: int,
    batches: int,
    on_kill: Callable[[Kill], None],
    on_progress: Callable[[LogState], None],
    stored: Callable[[], int | None],
) -> list[Kill]:
    """Run the demo's topology to its end and kill it up to `kills` times on the way.

    `batches`: about how many batches there are; spreads the kills.
    `on_kill`, `on_progress`: told of each kill, and several times a second of what the log says.
    `stored`: reads the last batch that is in the store.
    """
    made: list[Kill] = []
    chance = random.Random()
    with (
        unwinding_on_signals(),
        tempfile.TemporaryDirectory(prefix="trident-demo-", ignore_cleanup_errors=True) as scratch,
    ):
        while True:
            with DemoJob(folder, engine, Path(scratch)) as job:
                look = _Look(folder, on_progress)
                wanted = chance.randint(1, max(1, min(3, (batches - look.txid) // (kills - len(made) + 1))))
                if len(made) == kills or not _moment(job, look, look.txid + wanted, len(made) % 2 == 0, chance):
                    while not job.ended():
                        look.again()
                        time.sleep(_LOOK_S)
                    look.again()
                    return made
            look.again()
            made.append(Kill(len(made) + 1, look.txid, stored()))
            on_kill(made[-1])


class _Look:
    """What the log says, looked at again and again."""

    def __init__(self, folder: DemoFolder, on_progress: Callable[[LogState], None]) -> None:
        self.folder = folder
        self._on_progress = on_progress
        self._reader = LogReader(folder.log_dir)
        self.txid = 0
        self.again()

    def again(self) -> int:
        if exists(self.folder.log_dir):
            state = self._reader.refresh()
            self.txid = state.txid
            self._on_progress(state)
        return self.txid


def _moment(job: DemoJob, look: _Look, txid: int, in_commit: bool, chance: random.Random) -> bool:
    """Wait until batch `txid` is recorded and then for the moment to kill; False if the job came to its end before.

    The moment is the one at which the store commits the next batch (`in_commit`), or any within a batch's time.
    """
    start, begun = look.txid, time.monotonic()
    while look.again() < txid:
        if job.ended():
            return False
        if look.txid == start:
            begun = time.monotonic()  # nothing is committed yet
        time.sleep(_LOOK_S)
    if in_commit:
        newest = _newest(look.folder.delta_log)
        while _newest(look.folder.delta_log) == newest:
            if job.ended():
                return False
        return True
    each = (time.monotonic() - begun) / (txid - start)
    deadline = time.monotonic() + chance.uniform(0, min(each, 2.0))
    while time.monotonic() < deadline:
        if job.ended():
            return False
        time.sleep(_LOOK_S)
    return True


def _newest(delta_log: Path) -> str:
    names = (entry.name for entry in os.scandir(delta_log))
    return max((name for name in names if name.endswith(".json")), default="")
