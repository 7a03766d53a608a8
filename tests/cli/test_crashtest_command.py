"""`trident crashtest` as its users run it, on jobs whose PySpark is a stub."""

import json
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.crashtest.stub_spark import COUNTS, JOBS, write_job
from tests.harness.commands import environment, started, trident, until
from trident.cli.crashtest_command import verdict
from trident.crashtest import CrashReport, KillMoment, Trial, TrialOutcome
from trident.crashtest.job_run import KillPoint

pytestmark = [pytest.mark.slow]

JOB = ("--", sys.executable, "job.py")
AFTER = ("--table", COUNTS, "--key", "word", "--moment", "after", "--kills", "1")


def test_a_wrong_job_is_shown_key_by_key(tmp_path: Path) -> None:
    write_job(tmp_path, JOBS["counter"])
    done = trident("crashtest", *AFTER, "--seed", "1", *JOB, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    head, *rows = [line.split() for line in done.stdout.splitlines()]
    assert head == ["kill", "key", "expected", "found"]
    assert rows[0][0] == "1"
    assert int(rows[0][3].removeprefix("n=")) > int(rows[0][2].removeprefix("n="))
    assert "add() had returned, Spark had not written commits/" in done.stdout
    assert "undisturbed: 4 batches, 4 rows in counts in counts.db" in done.stderr
    assert done.stdout.splitlines()[-1].startswith("WRONG after 1 of 1 kill")


def test_a_right_job_is_exact(tmp_path: Path) -> None:
    write_job(tmp_path, JOBS["guarded"])
    done = trident("crashtest", *AFTER, *JOB, cwd=tmp_path)
    assert (done.returncode, done.stdout.split(" in ")[0]) == (0, "exact after 1 kill"), done.stderr


def test_the_report_as_json(tmp_path: Path) -> None:
    write_job(tmp_path, JOBS["counter"])
    found = json.loads(trident("crashtest", *AFTER, "--json", *JOB, cwd=tmp_path).stdout)
    assert (found["exact"], found["kills"], found["batches"], found["rows"]) == (False, 1, 4, 4)
    (trial,) = found["trials"]
    assert (trial["moment"], trial["outcome"]) == ("after", "wrong")
    assert {"key", "expected", "found"} == set(trial["differences"][0])


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ("exact exact missed", "exact after 2 kills in 9 s: 1 row as in an undisturbed run"),
        ("exact refused", "exact after 2 kills in 9 s: 1 row as in an undisturbed run; it refused to go on after 1"),
        ("exact wrong stopped", "WRONG after 2 of 3 kills in 9 s"),
        ("missed", "not shown: the job was never killed, because it ended first; another --seed may hit other batches"),
    ],
)
def test_the_verdict(found: str, text: str) -> None:
    point = KillPoint(KillMoment.after, 0, 0)
    trials = [Trial(number, point, TrialOutcome(each)) for number, each in enumerate(found.split(), 1)]
    assert verdict(CrashReport([], [{"word": "cow"}], trials), 9.1) == text


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("--table", "/data/words", *JOB), 2, "is not a path below the folder"),
        (("--table", "postgresql://db/shop?table=t", *JOB), 2, "If it is one, confirm it with --copy shop,"),
        (("--table", "words", "--", "no-such-program"), 2, "there is no program 'no-such-program'"),
        (("--table", COUNTS, "--key", "wort", "--kills", "1", *JOB), 2, "--key wort is not a column of the table"),
        (("--table", "words", *JOB), 1, "error: the job ran 4 batches and wrote nothing into words"),
        ((*AFTER, "--max-copy-mb", "1", "--folder", "large", *JOB), 1, "which has more than 1 MB"),
    ],
)
def test_what_cannot_be_tested_is_one_message(words: tuple[str, ...], code: int, part: str, tmp_path: Path) -> None:
    write_job(tmp_path, JOBS["counter"])
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "file").write_bytes(bytes(1_000_001))
    done = trident("crashtest", *words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert part in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("signum", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_no_process_of_the_job_outlives_the_test(signum: int, code: int, tmp_path: Path) -> None:
    write_job(tmp_path / "job", JOBS["endless counter"])
    (tmp_path / "copies").mkdir()
    words = ("crashtest", "--table", COUNTS, "--idle", "60", "--", sys.executable, "job.py", str(tmp_path))
    variables = environment(TMPDIR=str(tmp_path / "copies"))
    with started(*words, cwd=tmp_path / "job", variables=variables) as test:

        def jobs() -> list[int]:
            return [each.pid for each in psutil.process_iter(["cmdline"])
                    if each.pid != test.process.pid and (each.info["cmdline"] or [""])[-1] == str(tmp_path)]  # fmt: skip

        until(jobs, "the job runs")
        (job,) = jobs()
        test.process.send_signal(signum)
        test.process.wait(30)
        assert test.process.returncode == code
        until(lambda: not psutil.pid_exists(job), "the job has ended")
    assert signum == signal.SIGKILL or not list((tmp_path / "copies").iterdir())
