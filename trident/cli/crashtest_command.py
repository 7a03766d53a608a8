"""`trident crashtest`: its options, its progress, and the verdict on a job."""

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from trident.cli.commands import AsJson, argument, command, local_folder, option
from trident.cli.console import print_json, problems, say, show, unwinding_on_signals, wrong_use
from trident.crashtest import (
    USUAL,
    Comparison,
    CrashReport,
    CrashTest,
    KillMoment,
    TimeLimits,
    Trial,
    TrialOutcome,
    table_named,
)
from trident.errors import ConfigError
from trident.naming import counted

WRONG = 3  # the exit code of a job whose table a kill has made wrong
_MOST_ROWS = 20  # of a trial, on a screen

app = typer.Typer()


@dataclass(frozen=True)
class CrashOptions:
    """What a crash test is asked for.

    `table_name`: What the job writes: a path (Parquet, CSV, JSON, Delta), sqlite:///FILE?table=NAME,
    postgresql://HOST/DATABASE?table=NAME (or ?query=SELECT), or MODULE:FUNCTION, which returns rows.
    `key`: A column of the key. Repeatable. Default: whole rows are compared.
    `reset`: A shell command, run in the copy before each run: empties what earlier runs left.
    `copy`: The database of --table, or its MODULE:FUNCTION: confirms that it is a copy which may be overwritten.
    `folder`: The job's folder; each run has a copy of it as its working directory.
    `idle`: Stop a job that does not end after so long without a batch.
    `moment`: When it is killed: after, line, time, before, committed, uncommitted or older. Repeatable.
    """

    job: Annotated[list[str], argument("The job: `python job.py` and its arguments.", "-- COMMAND")]
    table_name: Annotated[str, option("", "TABLE", "--table")]
    key: Annotated[list[str] | None, option("", "COLUMN")] = None
    ignore: Annotated[list[str] | None, option("A column that differs from run to run. Repeatable.", "COLUMN")] = None
    reset: Annotated[str, option("", "COMMAND", show_default=False)] = ""
    copy: Annotated[str, option("", "NAME", show_default=False)] = ""
    folder: Annotated[
        Path, option("", "DIR", show_default="the current one", exists=True, file_okay=False, callback=local_folder)
    ] = Path()
    kills: Annotated[int, option("How often it is killed.", "N", min=1)] = len(USUAL)
    moment: Annotated[list[KillMoment] | None, option("", "MOMENT", show_default="all but older")] = None
    seed: Annotated[int, typer.Option(metavar="N", help="Chooses batches, lines and times.")] = 0
    timeout: Annotated[float, option("How long a run may take, from one start to its end.", "SECONDS", min=1)] = 300.0
    idle: Annotated[float, option("", "SECONDS", min=1)] = 30.0
    max_copy_mb: Annotated[int, typer.Option(metavar="MB", min=1, help="How large the folder may be.")] = 1000


@command(
    app,
    "crashtest",
    "`trident crashtest --table 'sqlite:///counts.db?table=counts' --key word -- python job.py`, or for a server "
    "`… --table 'postgresql://db/shop_copy?table=totals' --copy shop_copy --reset 'psql -c …' -- python job.py`",
)
def crashtest_command(of: CrashOptions, as_json: AsJson = False) -> int:
    """Kill a plain Spark job at every bad moment, and compare what it wrote with an undisturbed run.

    The job is any PySpark program with foreachBatch and a checkpoint; it is not changed. It is killed (SIGKILL) before
    its function does anything (before), inside it (line, time), after it returned but before Spark noted the batch
    (after), after Spark noted it (committed), and with that note lost (uncommitted) or with an older checkpoint (older).

    Exit codes: 0 exact, 1 failed, 2 wrong usage, 3 wrong: a kill changed the table, or the job does not start again;
    130 ended by Ctrl-C, 143 ended by SIGTERM.
    """
    begun = time.monotonic()
    with unwinding_on_signals(), wrong_use(ConfigError):
        program = shutil.which(of.job[0])
        if program is None:
            raise ConfigError(f"there is no program {of.job[0]!r} that could be run. Give the job's command after --")
        # A relative path of the program does not lead there from a copy of the folder.
        report = CrashTest(
            [str(Path(program).absolute()), *of.job[1:]],
            of.folder.absolute(),
            table_named(of.table_name),
            Comparison(of.key or (), of.ignore or ()),
            of.reset,
            of.copy,
            of.kills,
            of.moment or USUAL,
            of.seed,
            TimeLimits(of.timeout, of.idle),
            of.max_copy_mb * 1_000_000,
            lambda text: say(text, console=problems()),
            _tell_trial,
        ).run()
    print_report = _print_json if as_json else _print
    print_report(report, time.monotonic() - begun)
    return WRONG if not report.is_exact else int(report.kills == 0)


_SAID = {
    TrialOutcome.exact: ("green", "exact: {where}"),
    TrialOutcome.wrong: ("bold red", "WRONG, {keys}: {where}"),
    TrialOutcome.stopped: ("bold red", "DOES NOT START AGAIN: {where}; then: {problem}"),
    TrialOutcome.refused: ("green", "refused, which is right: {where}; then: {problem}"),
    TrialOutcome.missed: ("yellow", "the job ended before it could be killed there {problem}"),
}


def _tell_trial(trial: Trial) -> None:
    style, text = _SAID[trial.outcome]
    keys = counted(len(trial.differences), "key")
    say(f"  {text.format(where=trial.where, keys=keys, problem=trial.problem)}".rstrip(), style, problems())


def _print(report: CrashReport, seconds: float) -> None:
    wrong = [trial for trial in report.trials if trial.outcome is TrialOutcome.wrong]
    if wrong:
        show((cells for trial in wrong for cells in _rows(trial)), "kill", "key", "expected", "found")
        for trial in wrong:
            say(f"kill {trial.number}: batch {trial.point.batch}: {trial.where}")
    say(verdict(report, seconds), "bold green" if report.is_exact and report.kills else "bold red")


def verdict(report: CrashReport, seconds: float) -> str:
    found = Counter(trial.outcome for trial in report.trials)
    kills = f"{counted(report.kills, 'kill')} in {seconds:,.0f} s"
    if report.kills == 0:
        return "not shown: the job was never killed, because it ended first; another --seed may hit other batches"
    if not report.is_exact:
        return f"WRONG after {found[TrialOutcome.wrong] + found[TrialOutcome.stopped]} of {kills}"
    refused = f"; it refused to go on after {found[TrialOutcome.refused]}" if found[TrialOutcome.refused] else ""
    return f"exact after {kills}: {counted(len(report.rows), 'row')} as in an undisturbed run{refused}"


def _rows(trial: Trial) -> Iterator[tuple[str, str, str, str]]:
    for each in trial.differences[:_MOST_ROWS]:
        yield str(trial.number), each.key, each.expected, each.found
    if len(trial.differences) > _MOST_ROWS:
        yield str(trial.number), f"… and {len(trial.differences) - _MOST_ROWS:,} more (--json has all)", "", ""


def _print_json(report: CrashReport, seconds: float) -> None:
    trials = [
        {
            "kill": trial.number,
            "moment": trial.point.moment.value,
            "batch": trial.point.batch,
            "where": trial.where,
            "outcome": trial.outcome.value,
            "problem": trial.problem,
            "differences": [asdict(each) for each in trial.differences],
        }
        for trial in report.trials
    ]
    head = {"exact": report.is_exact, "kills": report.kills, "batches": len(report.calls), "rows": len(report.rows)}
    print_json({**head, "seconds": round(seconds, 1), "trials": trials})
