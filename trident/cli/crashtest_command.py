"""`trident crashtest`: its options, its progress, and the verdict on a job."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from trident.cli.arguments import AsJson, Debug, argument, local_folder, option
from trident.cli.console import print_json, problems, reporting, say, show, unwinding_on_signals
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

WRONG = 3
"""The exit code of a job whose table a kill has made wrong."""

_EXAMPLE = (
    "Example: `trident crashtest --table 'sqlite:///counts.db?table=counts' --key word -- python job.py`, or for a server "
    "`… --table 'postgresql://db/shop_copy?table=totals' --copy shop_copy --reset 'psql -c …' -- python job.py`"
)
_MOST_ROWS = 20  # of a trial, on a screen

Command = Annotated[list[str], argument("The job: `python job.py` and its arguments.", "-- COMMAND")]
TableName = Annotated[
    str,
    option(
        "What the job writes: a path (Parquet, CSV, JSON, Delta), sqlite:///FILE?table=NAME, "
        "postgresql://HOST/DATABASE?table=NAME (or ?query=SELECT), or MODULE:FUNCTION, which returns rows.",
        "TABLE",
        "--table",
    ),
]
Key = Annotated[
    list[str] | None, option("A column of the key. Repeatable. Default: whole rows are compared.", "COLUMN")
]
Ignore = Annotated[list[str] | None, option("A column that differs from run to run. Repeatable.", "COLUMN")]
Reset = Annotated[
    str, option("A shell command, run in the copy before each run: empties what earlier runs left.", "COMMAND")
]
Copy = Annotated[
    str,
    option(
        "The database of --table, or its MODULE:FUNCTION: confirms that it is a copy which may be overwritten.", "NAME"
    ),
]
Folder = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        exists=True,
        file_okay=False,
        callback=local_folder,
        help="The job's folder; each run has a copy of it as its working directory.",
        show_default="the current one",
    ),
]
Kills = Annotated[int, typer.Option(metavar="N", min=1, help="How often it is killed.")]
Moments = Annotated[
    list[KillMoment] | None,
    typer.Option(
        metavar="MOMENT",
        help="When it is killed: after, line, time, before, committed, uncommitted or older. Repeatable.",
        show_default="all but older",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Chooses batches, lines and times.")]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=1, help="How long a run may take, from one start to its end.")
]
Idle = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=1, help="Stop a job that does not end after so long without a batch."),
]
MaxCopy = Annotated[int, typer.Option(metavar="MB", min=1, help="How large the folder may be.")]


def add_crashtest_command(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("crashtest", epilog=_EXAMPLE)(crashtest_command)


def crashtest_command(
    command: Command,
    table_name: TableName,
    key: Key = None,
    ignore: Ignore = None,
    reset: Reset = "",
    copy: Copy = "",
    folder: Folder = Path(),
    kills: Kills = len(USUAL),
    moment: Moments = None,
    seed: Seed = 0,
    timeout: Timeout = 300.0,
    idle: Idle = 30.0,
    max_copy_mb: MaxCopy = 1000,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Kill a plain Spark job at every bad moment, and compare what it wrote with an undisturbed run.

    The job is any PySpark program with foreachBatch and a checkpoint; it is not changed. It is killed (SIGKILL) before
    its function does anything (before), inside it (line, time), after it returned but before Spark noted the batch
    (after), after Spark noted it (committed), and with that note lost (uncommitted) or with an older checkpoint (older).

    Exit codes: 0 exact, 1 failed, 2 wrong usage, 3 wrong: a kill changed the table, or the job does not start again;
    130 ended by Ctrl-C, 143 ended by SIGTERM.
    """
    with reporting(debug), unwinding_on_signals():
        begun = time.monotonic()
        try:
            report = CrashTest(
                _found(command),
                folder.absolute(),
                table_named(table_name),
                Comparison(key or (), ignore or ()),
                reset,
                copy,
                kills,
                moment or USUAL,
                seed,
                TimeLimits(timeout, idle),
                max_copy_mb * 1_000_000,
                lambda text: say(text, console=problems()),
                _tell_trial,
            ).run()
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from None
        print_report = _print_json if as_json else _print
        print_report(report, time.monotonic() - begun)
    raise typer.Exit(WRONG if not report.is_exact else int(report.kills == 0))


def _found(command: list[str]) -> list[str]:
    """Return the command with the path of its program: a relative one does not lead there from a copy of the folder."""
    program = shutil.which(command[0])
    if program is None:
        raise ConfigError(f"there is no program {command[0]!r} that could be run. Give the job's command after --")
    return [str(Path(program).absolute()), *command[1:]]


def _tell_trial(trial: Trial) -> None:
    style = {TrialOutcome.exact: "green", TrialOutcome.refused: "green", TrialOutcome.missed: "yellow"}.get(
        trial.outcome, "bold red"
    )
    say(f"  {_sentence(trial)}", style, problems())


def _sentence(trial: Trial) -> str:
    match trial.outcome:
        case TrialOutcome.exact:
            return f"exact: {trial.where}"
        case TrialOutcome.wrong:
            return f"WRONG, {counted(len(trial.differences), 'key')}: {trial.where}"
        case TrialOutcome.stopped:
            return f"DOES NOT START AGAIN: {trial.where}; then: {trial.problem}"
        case TrialOutcome.refused:
            return f"refused, which is right: {trial.where}; then: {trial.problem}"
    return f"the job ended before it could be killed there {trial.problem}".rstrip()


def _print(report: CrashReport, seconds: float) -> None:
    wrong = [trial for trial in report.trials if trial.outcome is TrialOutcome.wrong]
    if wrong:
        show((cells for trial in wrong for cells in _rows(trial)), "kill", "key", "expected", "found")
        for trial in wrong:
            say(f"kill {trial.number}: batch {trial.point.batch}: {trial.where}")
    say(verdict(report, seconds), "bold green" if report.is_exact and report.kills else "bold red")


def verdict(report: CrashReport, seconds: float) -> str:
    """Return what a test has found, in a sentence."""
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
            "differences": [dataclasses.asdict(each) for each in trial.differences],
        }
        for trial in report.trials
    ]
    head = {"exact": report.is_exact, "kills": report.kills, "batches": len(report.calls), "rows": len(report.rows)}
    print_json({**head, "seconds": round(seconds, 1), "trials": trials})
