"""The test of a job: an undisturbed run, then a run for each kill, whose tables must be equal."""

import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from trident.crashtest.job_run import (
    USUAL,
    FunctionCall,
    JobCopy,
    JobRun,
    KillMoment,
    KillPoint,
    TimeLimits,
    choose,
    copy_folder,
)
from trident.crashtest.table_rows import Comparison, Row, RowDifference, Table
from trident.errors import ConfigError, TridentError
from trident.naming import counted
from trident.servers.local_processes import run_captured


class TrialOutcome(StrEnum):
    """What became of a run that was killed."""

    exact = "exact"  # its table is that of the undisturbed run
    wrong = "wrong"  # it is not
    stopped = "stopped"  # it ends with an error each time that it is started again
    refused = "refused"  # it ends with an error instead of going on with an older checkpoint, which is right
    missed = "missed"  # it ended before it came to the kill


@dataclass(frozen=True)
class Trial:
    """A run that was killed, and started again; `point` is where it should be killed, `where` in words where it was."""

    number: int
    point: KillPoint
    outcome: TrialOutcome
    where: str = ""
    differences: Sequence[RowDifference] = ()
    problem: str = ""


@dataclass(frozen=True)
class CrashReport:
    """What a test has found: the calls and rows of the undisturbed run, and the trials."""

    calls: Sequence[FunctionCall]
    rows: Sequence[Row]
    trials: Sequence[Trial]

    @property
    def is_exact(self) -> bool:
        return not any(trial.outcome in (TrialOutcome.wrong, TrialOutcome.stopped) for trial in self.trials)

    @property
    def kills(self) -> int:
        return sum(trial.outcome is not TrialOutcome.missed for trial in self.trials)


@dataclass
class CrashTest:
    """A test of a job that writes a table by `foreachBatch`. Runs it in copies, each in a folder of its own, which is removed.

    `reset`: a command of the shell, run in the copy before each first run: empties what is not in the copy. Empty: none.
    `copy`: the database of `table`, or the function: says that what it names is a copy, which may be emptied.
    `kills`, `moments`, `seed`: how many runs are killed, when, and what chooses batches, lines and times.
    """

    command: Sequence[str]
    folder: Path
    table: Table
    comparison: Comparison = field(default_factory=Comparison)
    reset: str = ""
    copy: str = ""
    kills: int = 6
    moments: Sequence[KillMoment] = USUAL
    seed: int = 0
    limits: TimeLimits = field(default_factory=TimeLimits)
    most_bytes: int = 1_000_000_000
    on_progress: Callable[[str], None] = lambda text: None
    on_trial: Callable[[Trial], None] = lambda trial: None
    _place: Path = field(init=False)
    _before: list[Row] | None = field(init=False, default=None)
    _rows: list[Row] = field(init=False, default_factory=list)
    _last: dict[int, int] = field(init=False, default_factory=dict)  # the last batch of each query
    _begins_empty: bool = field(init=False, default=False)  # without what earlier runs left

    def run(self) -> CrashReport:
        """Run the test.

        Raises `ConfigError`: the table is not said to be a copy, or the key is not in it.
        Raises `TridentError`: the job cannot be tested, or not so.
        """
        self._check_copy()
        with tempfile.TemporaryDirectory(prefix="trident-crashtest-", ignore_cleanup_errors=True) as place:
            self._place = Path(place).resolve()
            calls, rows = self._run_to_end()
            said = f"undisturbed: {counted(len(calls), 'batch', 'batches')}, {counted(len(rows), 'row')}"
            self.on_progress(f"{said} in {self.table.name}")
            trials = []
            for number, point in enumerate(choose(calls, self.kills, self.moments, self.seed), 1):
                self.on_progress(f"kill {number} of {self.kills}: {point.moment.value}, batch {point.batch}")
                trials.append(self._trial(number, point))
                self.on_trial(trials[-1])
            report = CrashReport(calls, rows, trials)
            if any(trial.outcome is TrialOutcome.wrong for trial in trials):
                self.on_progress("a second undisturbed run, as only a job that writes the same each time can be judged")
                if differences := self.comparison.differences(rows, self._run_to_end()[1]):
                    first = differences[0]
                    raise TridentError(
                        f"two undisturbed runs of the job wrote different tables, so none can be called wrong: {first.key} had "
                        f"{first.expected} in the first and {first.found} in the second. Leave out columns that differ from "
                        "run to run with --ignore COLUMN, or let the job read the same rows each time"
                    )
            return report

    def _check_copy(self) -> None:
        needed = self.table.database
        if needed is None:
            return
        if self.copy != needed or not needed:
            given = f"--copy {self.copy} is another one" if self.copy else "--copy is not given"
            raise ConfigError(
                f"the test empties and fills {needed!r} again and again ({self.table.name}), so it must be a copy that "
                f"nothing else uses, and {given}. If it is one, confirm it with --copy {needed}, and let the job write there"
            )
        if self.table.kind == "postgres" and not self.reset:
            raise ConfigError(
                f"each run begins with the table as it was, and {needed!r} is not in the copy of the folder: give --reset and "
                "a command that empties it, such as psql -c 'TRUNCATE counts'"
            )

    def _run_to_end(self) -> tuple[list[FunctionCall], list[Row]]:
        try:
            return self._run_undisturbed()
        except _HinderedError as hindered:
            if self._begins_empty or self.reset or self.table.kind not in ("path", "sqlite"):
                raise
            self._begins_empty = True
            self.on_progress(
                f"the folder has the checkpoint of an earlier run: each copy begins without it and {self.table.place}"
            )
            try:
                return self._run_undisturbed()
            except TridentError as again:  # what is wrong without them, too, has nothing to do with them
                raise (again if str(hindered).startswith(str(again)) else hindered) from None

    def _run_undisturbed(self) -> tuple[list[FunctionCall], list[Row]]:
        with self._copy() as job:
            before = self._rows_before(job.folder)
            left = _left_by_earlier_runs(job.folder)
            with JobRun(job, measure=True) as run:
                run.wait(self.limits, lambda: False)
            _check_run(run, " ".join(shlex.quote(str(each.relative_to(job.folder))) for each in left))
            rows = self.table.read(job.folder)
            if not self.comparison.differences(before, rows):
                raise TridentError(
                    f"the job ran {counted(len(run.told.calls), 'batch', 'batches')} and wrote nothing into "
                    f"{self.table.name}: name the table that it writes with --table"
                )
            self._before, self._rows, self.limits = before, rows, self.limits.after(run)
            self._last = {call.query: call.batch for call in run.told.calls}
            return run.told.calls, rows

    def _trial(self, number: int, point: KillPoint) -> Trial:
        with self._copy() as job:
            assert self._before is not None, "the undisturbed run is the first one"
            if differences := self.comparison.differences(self._before, self._rows_before(job.folder)):
                first = differences[0]
                raise TridentError(
                    f"{self.table.name} is not as it was before the first run: {first.key} had {first.expected} and has "
                    f"{first.found}. Let --reset bring back what is not in the folder"
                )
            copy = job.folder.with_name("older")
            with JobRun(job, point.as_request(str(copy))) as run:
                run.wait(self.limits, lambda: False)
            where = run.told.killed
            if where is None:
                return Trial(number, point, TrialOutcome.missed, problem=run.problem or "")
            if run.told.killed_in is not None:
                point = replace(point, batch=run.told.killed_in)
            where += _set_back(point, run.told.checkpoints[point.query], copy)
            with JobRun(job) as again:
                again.wait(self.limits, lambda: self._is_done(again, job.folder))
            if again.problem is not None:
                outcome = TrialOutcome.refused if point.moment is KillMoment.older else TrialOutcome.stopped
                return Trial(number, point, outcome, where, problem=again.problem)
            differences = self._differences(job.folder)
            return Trial(number, point, TrialOutcome.wrong if differences else TrialOutcome.exact, where, differences)

    @contextmanager
    def _copy(self) -> Iterator[JobCopy]:
        folder = self._place / "job"
        copy_folder(self.folder, folder, self.most_bytes, self.on_progress)
        try:
            if self.reset:
                done = run_captured(self.reset, shell=True, cwd=folder)
                if done.returncode:
                    said = (done.stderr or done.stdout).strip()
                    raise TridentError(f"--reset failed with exit code {done.returncode}: {said}")
            elif self._begins_empty:
                for left in (*_left_by_earlier_runs(folder), folder / self.table.place):
                    left.unlink() if left.is_file() else shutil.rmtree(left, ignore_errors=True)
            yield JobCopy(self.command, folder, self._place / "tmp")
        finally:
            for each in ("job", "older", "tmp"):
                shutil.rmtree(self._place / each, ignore_errors=True)

    def _rows_before(self, folder: Path) -> list[Row]:
        """Return the rows before the first run; none if a function of the user's cannot say any before there is a table."""
        try:
            return self.table.read(folder)
        except TridentError:
            if self.table.kind == "function":
                return []
            raise

    def _is_done(self, run: JobRun, folder: Path) -> bool:
        """Whether a job that may not end by itself has committed the last batch, and its table is right."""
        commits = [run.told.checkpoints[query] / "commits" / str(last) for query, last in self._last.items()
                   if query in run.told.checkpoints]  # fmt: skip
        if len(commits) < len(self._last) or not all(commit.exists() for commit in commits):
            return False
        return not self._differences(folder)

    def _differences(self, folder: Path) -> list[RowDifference]:
        """Return how a table differs from that of the undisturbed run; what no reader can read any more differs as a whole."""
        try:
            return self.comparison.differences(self._rows, self.table.read(folder))
        except TridentError as error:
            if self.table.database is not None:  # a server may be away
                raise
            return [RowDifference("the whole table", counted(len(self._rows), "row"), str(error))]


class _HinderedError(TridentError):
    """What earlier runs left in the folder keeps the job from its work in a copy of it."""


def _left_by_earlier_runs(folder: Path) -> list[Path]:
    checkpoints = {each.parent for each in folder.rglob("offsets") if (each.parent / "metadata").is_file()}
    logs = {each.parent for each in folder.rglob(f"{'[0-9]' * 8}-{'[0-9]' * 4}.log")}
    return sorted((checkpoints | logs) - {folder})


def _check_run(run: JobRun, left: str) -> None:
    """Raise if the undisturbed run has not shown what is needed; `left`: what earlier runs left, as words of a shell."""
    if run.problem is not None:
        kind = _HinderedError if left else TridentError
        hint = (
            ". The folder has the checkpoint of an earlier run, which knows its files by their paths there, not in the copy. "
            f'Give --reset "rm -rf {left} …", with the table that the job writes in place of the dots'
            if left
            else ""
        )
        raise kind(f"the job failed before any kill, with {run.problem}{hint}")
    if not run.told.is_pyspark:
        raise TridentError(
            "the job has not imported PySpark where it can be seen: it must be a Python program that heeds PYTHONPATH (no -I, "
            "-E or -S), as in: trident crashtest … -- python job.py"
        )
    if not run.told.checkpoints:
        raise TridentError(
            "the job started no query with a function for foreachBatch, so there is nothing to kill it in. A query that "
            "writes by .format(…) alone has the guarantee of its sink"
        )
    if not run.told.calls:
        raise (_HinderedError if left else TridentError)(
            "the job's function was never called: its checkpoint in the folder is at the end of the input, or there is no "
            f'input. Give --reset "rm -rf {left or "checkpoint"} …", with the table that the job writes in place of the dots'
        )


def _set_back(point: KillPoint, checkpoint: Path, copy: Path) -> str:
    if point.moment is KillMoment.older:
        shutil.rmtree(checkpoint)
        shutil.copytree(copy, checkpoint)
        return f"; the checkpoint was replaced by a copy made in batch {point.batch - 1}"
    if point.moment is KillMoment.uncommitted:
        # Spark may have planned the next batch meanwhile; a crash before the commit file would have left no such plan.
        for folder, first in (("commits", point.batch), ("offsets", point.batch + 1)):
            for file in (checkpoint / folder).iterdir():
                name = file.name.removeprefix(".").removesuffix(".crc")
                if name.isdigit() and int(name) >= first:
                    file.unlink()
        return ", which then was lost"
    return ""
