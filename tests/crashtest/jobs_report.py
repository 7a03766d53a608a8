"""All jobs by hand, killed at each moment, as a table: `python -m tests.crashtest.jobs_report`.

Exit code 1 if a right job is called wrong, or a wrong one exact.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.crashtest.jobs_by_hand import RIGHT, SMALL_SPARK, WRONG, crash, server_of
from tests.harness.quick_java import QUICK_JVM
from tests.harness.servers import start_postgres, start_redis
from trident.crashtest import CrashReport, KillMoment, TrialOutcome
from trident.spark.environment import pin_worker_python

__all__ = ["row_of"]


def row_of(what: str, report: CrashReport) -> str:
    """Return a row: the job, its kills, the verdict with the moments that made it wrong."""
    bad = {
        trial.point.moment.value: trial.outcome.value
        for trial in report.trials
        if trial.outcome is not TrialOutcome.exact
    }
    wrong = [moment for moment, outcome in bad.items() if outcome in ("wrong", "stopped")]
    verdict = "exact" if report.is_exact else f"wrong: {', '.join(f'`{moment}`' for moment in wrong)}"
    return f"| {what} | {report.kills} | {verdict} |"


def main(argv: list[str] | None = None) -> int:
    """Run and print, each row when it is there."""
    parser = argparse.ArgumentParser(description="Kill the jobs and print what was found.")
    jobs = RIGHT | WRONG
    parser.add_argument("--job", action="append", choices=jobs, help="only this one; may be repeated")
    parser.add_argument("--moment", action="append", type=KillMoment, help="only then; may be repeated")
    options = parser.parse_args(argv)
    pin_worker_python()
    os.environ.update(PYSPARK_SUBMIT_ARGS=SMALL_SPARK, SPARK_SUBMIT_OPTS=QUICK_JVM)
    surprises = 0
    for name in options.job or jobs:
        begun = time.monotonic()
        with ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trident-jobs-")))
            for place in ("redis", "postgres"):
                (work / place).mkdir()
            if "SHOP_REDIS" in server_of(jobs[name]):
                redis = start_redis(work / "redis")
                stack.callback(redis.stop)
                os.environ["SHOP_REDIS"] = f"redis://{redis.address}/0"
            if "SHOP_POSTGRES" in server_of(jobs[name]):
                postgres = start_postgres(work / "postgres")
                stack.callback(postgres.stop)
                os.environ["SHOP_POSTGRES"] = f"postgresql://trident@{postgres.address}/postgres"
            report = crash(jobs[name], work / "job", sys.executable, options.moment or tuple(KillMoment))
        for variable in ("SHOP_REDIS", "SHOP_POSTGRES"):
            os.environ.pop(variable, None)
        surprises += report.is_exact is not (name in RIGHT)
        sys.stdout.write(f"{row_of(jobs[name].what, report)}\n")
        for trial in report.trials:
            found = "; ".join(f"{each.key}: {each.expected} / {each.found}" for each in trial.differences[:3])
            sys.stderr.write(f"{name}: {trial.outcome.value}: {trial.where} {trial.problem} {found}\n")
        sys.stderr.write(f"{name}: {time.monotonic() - begun:.0f} s\n")
        sys.stdout.flush()
    return min(surprises, 1)


if __name__ == "__main__":
    sys.exit(main())
