"""One run of the job under test, in a copy of its folder, and the points at which runs are killed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from trident.crashtest import injected
from trident.errors import TridentError
from trident.servers.local_processes import kill_job, scratch_environment

LEFT_OUT = (".git", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache")
"""Folders that no job reads or writes."""

_MOST_FILES = 100_000
_SAY_EACH = 100 * 1_000_000
_PATIENCE = 4  # times what the undisturbed run took
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception): .*", re.MULTILINE)


class KillMoment(StrEnum):
    """A bad moment for a kill. `after` is chosen first: what the function wrote is there, and Spark does not know it."""

    after = "after"
    line = "line"
    time = "time"
    before = "before"
    committed = "committed"
    uncommitted = "uncommitted"
    older = "older"


USUAL = tuple(moment for moment in KillMoment if moment is not KillMoment.older)
"""What a crash can bring about; a checkpoint is older only if it was restored from a copy."""


@dataclass(frozen=True)
class FunctionCall:
    """What an undisturbed call of the job's function was; `lines`: of the job's own code, in order, as `job.py:14`."""

    query: int
    batch: int
    seconds: float
    lines: tuple[str, ...] = ()
    name: str = "function"


@dataclass(frozen=True)
class KillPoint:
    """Where a run dies: before a `line` that the call runs, from 0 on, or `after_s` seconds of a call that takes `of_s`."""

    moment: KillMoment
    query: int
    batch: int
    line: int | None = None
    after_s: float | None = None
    of_s: float | None = None

    def as_request(self, copy_to: str) -> dict[str, Any]:
        """Return it as the job is told; an older checkpoint is what `copy_to` gets one batch earlier."""
        copy_batch = self.batch - 1 if self.moment is KillMoment.older else None
        return {**dataclasses.asdict(self), "copy_to": copy_to, "copy_batch": copy_batch}


def choose(calls: Sequence[FunctionCall], kills: int, moments: Sequence[KillMoment], seed: int) -> list[KillPoint]:
    """Choose points for `kills`: the moments in turn, each in a batch, at a line and at a time by chance.

    No point, and no line, comes twice, as long as there are others; there are fewer only if no call has one of the moments.
    """
    chance = random.Random(seed)
    points: list[KillPoint] = []
    lines: set[str] = set()
    for moment in islice(cycle(moment for moment in KillMoment if moment in moments), kills):
        found = [point for _ in range(20) if (point := _point(moment, calls, chance)) is not None]
        fresh = [point for point in found if point not in points]
        points += ([point for point in fresh if _line(point, calls) not in lines] or fresh or found)[:1]
        lines.update(filter(None, [_line(point, calls) for point in points[-1:]]))
    return points


def _line(point: KillPoint, calls: Sequence[FunctionCall]) -> str | None:
    lines = next(call.lines for call in calls if (call.query, call.batch) == (point.query, point.batch))
    return None if point.line is None else lines[point.line]


def _point(moment: KillMoment, calls: Sequence[FunctionCall], chance: random.Random) -> KillPoint | None:
    call = chance.choice(calls)
    if moment is KillMoment.older:  # a copy of its checkpoint is made in the batch before
        later = [each for each in calls if any((each.query, each.batch - 1) == (one.query, one.batch) for one in calls)]
        return KillPoint(moment, (one := chance.choice(later)).query, one.batch) if later else None
    if moment is KillMoment.line and len(set(call.lines)) > 1:
        # Lines that run often, in a loop, are as likely as those that run once.
        place = chance.choice(sorted({*call.lines[1:]}))
        at = chance.choice([number for number, each in enumerate(call.lines) if each == place and number])
        return KillPoint(moment, call.query, call.batch, line=at)
    if moment in (KillMoment.line, KillMoment.time):  # a function of a library has no lines of the job's
        after_s = round(chance.uniform(0.05, 0.95) * call.seconds, 3)
        return KillPoint(KillMoment.time, call.query, call.batch, after_s=after_s, of_s=round(call.seconds, 3))
    return KillPoint(moment, call.query, call.batch)


def copy_folder(folder: Path, copy: Path, most_bytes: int, on_progress: Callable[[str], None]) -> None:
    """Copy a folder. What a link leads to is copied too, so that nothing of the copy leads back to the original."""
    copied, files = 0, 0

    def copy_file(source: str, target: str) -> None:
        nonlocal copied, files
        size = Path(source).stat().st_size
        if copied // _SAY_EACH < (copied + size) // _SAY_EACH:
            on_progress(f"copying {folder}: {(copied + size) / 1e6:,.0f} MB so far")
        copied, files = copied + size, files + 1
        if copied > most_bytes or files > _MOST_FILES:
            raise TridentError(
                f"each run needs a copy of {folder}, which has more than {most_bytes / 1e6:,.0f} MB or {_MOST_FILES:,} files. "
                "Put the job and a small input into a folder of their own and name it with --folder, or allow more with "
                "--max-copy-mb"
            )
        shutil.copy2(source, target)

    def left_out(place: str, names: list[str]) -> list[str]:
        special = [name for name in names if _is_special(Path(place, name))]
        return [*special, *(name for name in names if name in LEFT_OUT)]

    shutil.copytree(folder, copy, ignore=left_out, copy_function=copy_file, ignore_dangling_symlinks=True)


def _is_special(path: Path) -> bool:
    """Whether it is neither a file nor a folder (a socket, a pipe), or a link back to a folder that it is in."""
    if path.is_symlink() and path.is_dir():
        return Path(os.path.realpath(path)) in path.parent.resolve().parents or path.resolve() == path.parent.resolve()
    return path.exists() and not path.is_file() and not path.is_dir()


@dataclass(frozen=True)
class TimeLimits:
    """How long a run may take, and after how long without a batch a job that does not end by itself is stopped; in seconds."""

    timeout_s: float = 300.0
    idle_s: float = 30.0

    def after(self, run: JobRun) -> TimeLimits:
        """Return the limits of later runs: a slow machine is no error, and a job that ended by itself will do so again."""
        idle_s = math.inf if run.ended else max(self.idle_s, _PATIENCE * run.longest_wait_s)
        return TimeLimits(max(self.timeout_s, _PATIENCE * run.seconds), idle_s)


@dataclass(frozen=True)
class JobCopy:
    """The command, the copy that it runs in, and a folder for what it tells and for what Spark leaves behind."""

    command: Sequence[str]
    folder: Path
    scratch: Path

    def environment(self, asked: Mapping[str, Any]) -> dict[str, str]:
        first = str(Path(next(iter(injected.__path__))).absolute())
        path = os.pathsep.join([first, *filter(None, [os.environ.get("PYTHONPATH")])])
        told = {"PYTHONPATH": path, "TRIDENT_CRASHTEST": json.dumps(asked)}
        return {**os.environ, **scratch_environment(self.scratch), **told}


@dataclass
class Told:
    """What a run has told; `killed_in`: the batch, where it may be a later one than it was asked for."""

    calls: list[FunctionCall] = field(default_factory=list)
    checkpoints: dict[int, Path] = field(default_factory=dict)
    running: int = 0
    is_pyspark: bool = False
    killed: str | None = None
    killed_in: int | None = None
    refused: str | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "loaded":
                self.is_pyspark = True
            case "started":
                self.checkpoints[event["query"]] = Path(event["checkpoint"])
            case "begin":
                self.running += 1
            case "end":
                self.running -= 1
                lines, batch = tuple(event["lines"]), event["batch"]
                self.calls.append(FunctionCall(event["query"], batch, event["seconds"], lines, event["name"]))
            case "failed":
                self.running -= 1
            case "kill":
                self.killed, self.killed_in = event["where"], event["batch"]
            case "refused":
                self.refused = event["why"]


class JobRun:
    """A run of the job. Leaving the context ends every process of it, however it is left.

    If this process is killed itself, the job ends too: it reads from a pipe whose other end is here.

    `kill`: where it dies, as `KillPoint.as_request` says it; None: nowhere. `measure`: it tells which lines its function runs.
    `problem`: what it said last, if it ended with an error. `ended`: whether it has ended by itself, without one.
    `longest_wait_s`: the longest time in which no batch ran, from the start of its query on.
    """

    def __init__(self, job: JobCopy, kill: Mapping[str, Any] | None = None, measure: bool = False) -> None:
        self.told = Told()
        self.problem: str | None = None
        self.ended = False
        self.seconds = self.longest_wait_s = 0.0
        job.scratch.mkdir(parents=True, exist_ok=True)
        events = job.scratch / "events"
        events.write_bytes(b"")
        self._events = events.open("rb")
        self._output = (job.scratch / "output").open("w+b")
        read, self._write = os.pipe()
        asked = {"events": str(events), "folder": str(job.folder), "parent": [read, os.fstat(read).st_ino]}
        try:
            self._process = subprocess.Popen(
                job.command,
                cwd=job.folder,
                env=job.environment({**asked, "measure": measure, "kill": kill}),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(read,),
            )
        except OSError as error:
            os.close(self._write)
            raise TridentError(f"the job cannot be started: {error}. Name its program after --") from error
        finally:
            os.close(read)

    def __enter__(self) -> JobRun:
        return self

    def __exit__(self, *error: object) -> None:
        kill_job(self._process)  # Spark's Python workers have a process group of their own
        os.close(self._write)
        self._events.close()
        self._output.close()

    def wait(self, limits: TimeLimits, is_done: Callable[[], bool]) -> None:
        """Wait until the job has ended, was killed where it should be, or `is_done`; `TridentError` if it cannot be tested."""
        begun = heard = time.monotonic()
        while True:
            code = self._process.poll()  # before the events: what it told before it ended must not be missed
            waited, now = self._waits, time.monotonic()
            if self._listen():
                self.longest_wait_s = max(self.longest_wait_s, now - heard if waited else 0.0)
                heard = now
            self.seconds = now - begun
            if self.told.refused is not None:
                raise TridentError(f"the job cannot be tested: {self.told.refused}")
            if self.told.killed is not None:
                return
            if code is not None:
                self.ended = code == 0
                self.problem = None if self.ended else f"exit code {code}: {self._cause()}"
                return
            # The first batch is planned slowly.
            idle_s = limits.idle_s if self.told.calls else _PATIENCE * limits.idle_s
            if self._waits and (now > heard + idle_s or is_done()):
                return
            if now > begun + limits.timeout_s:
                self.problem = f"no end within {limits.timeout_s:g} s (--timeout): {self._last_lines()}"
                return
            time.sleep(0.02)

    @property
    def _waits(self) -> bool:
        return bool(self.told.checkpoints) and not self.told.running

    def _listen(self) -> bool:
        heard = False
        while (line := self._events.readline()).endswith(b"\n"):
            self.told.take(json.loads(line))
            heard = True
        self._events.seek(-len(line), os.SEEK_CUR)
        return heard

    def _cause(self) -> str:
        found = _EXCEPTION.findall(self._said())
        return found[-1][:600] if found else self._last_lines()

    def _last_lines(self) -> str:
        return "\n".join([line for line in self._said().splitlines() if line.strip()][-15:]) or "it said nothing"

    def _said(self) -> str:
        return Path(self._output.name).read_text(encoding="utf-8", errors="replace")
