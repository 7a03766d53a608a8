"""Jobs on a real Spark: right ones give no false alarm, and the kills that break wrong ones are found."""

import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.crashtest.jobs_by_hand import RIGHT, SMALL_SPARK, WRONG, Job, crash, server_of
from tests.crashtest.stub_spark import crashed
from trident.crashtest import CrashReport, KillMoment, TimeLimits, TrialOutcome

ROOT = Path(__file__).parent.parent.parent
EACH = pytest.param(tuple(KillMoment), id="each moment", marks=pytest.mark.long)
AFTER = pytest.param((KillMoment.after,), id="after", marks=pytest.mark.long)
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

QUERY = """

    spark = SparkSession.builder.getOrCreate()
    words = spark.readStream.option("maxFilesPerTrigger", 1).text("books").selectExpr("explode(split(value, ' ')) AS word")
    writer = words.writeStream.foreachBatch(add).option("checkpointLocation", "checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
"""
KEPT = "from pyspark.sql import SparkSession\nfrom counted import add\n"


@pytest.fixture(autouse=True)
def _small_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", SMALL_SPARK)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


def page(name: str, start: str) -> str:
    """Return the program of a page that begins with a text."""
    blocks = re.findall(r"^```py\n(.*?)^```$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if block.startswith(start)]
    return str(found)


def crash_on_books(folder: Path, job: str, moments: tuple[KillMoment, ...], *named: str, copy: str = "") -> CrashReport:
    (folder / "books").mkdir()
    for number in range(2):
        (folder / "books" / f"{number}.txt").write_text("the cow jumped over the moon\n", encoding="utf-8")
    (folder / "job.py").write_text(job, encoding="utf-8")
    return crashed(folder, *named, limits=TimeLimits(), moments=moments, kills=len(moments), seed=1, copy=copy)


@pytest.mark.long
def test_the_job_of_the_readme_counts_twice(tmp_path: Path) -> None:
    (trial,) = crash_on_books(tmp_path, page("README.md", "import sqlite3"), (KillMoment.after,)).trials
    assert trial.where == "add() had returned, Spark had not written commits/0"
    assert [(each.key, each.expected, each.found) for each in trial.differences][-1] == ("the", "n=6", "n=12")


@pytest.mark.parametrize("moments", [AFTER, EACH])
def test_the_same_job_with_exactly_once_does_not(moments: tuple[KillMoment, ...], tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(page("docs/proving.md", "# counted.py"), encoding="utf-8")
    table = "counted:rows"
    report = crash_on_books(tmp_path, KEPT + textwrap.dedent(QUERY), moments, table, "", copy=table)
    found = {trial.point.moment: trial.outcome for trial in report.trials}
    assert found.pop(KillMoment.older, TrialOutcome.refused) is TrialOutcome.refused
    assert set(found.values()) == {TrialOutcome.exact}


Crash = Callable[[Job, Sequence[KillMoment]], CrashReport]


@pytest.fixture
def crash_by_hand(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Crash:
    """Crash a job, which is told where its servers are."""

    def run(job: Job, moments: Sequence[KillMoment]) -> CrashReport:
        for variable in server_of(job):
            fixture, url = {
                "SHOP_REDIS": ("redis_server", "redis://{}/0"),
                "SHOP_POSTGRES": ("postgres_server", "postgresql://trident@{}/postgres"),
            }[variable]
            monkeypatch.setenv(variable, url.format(request.getfixturevalue(fixture).address))
        return crash(job, tmp_path / "job", sys.executable, moments)

    return run


@pytest.mark.long
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_job_gives_no_false_alarm(name: str, crash_by_hand: Crash) -> None:
    report = crash_by_hand(RIGHT[name], tuple(KillMoment))
    assert [trial for trial in report.trials if trial.outcome in (TrialOutcome.wrong, TrialOutcome.stopped)] == []
    assert report.kills >= len(KillMoment) - 2, "a short function may be over before a time comes"


@pytest.mark.long
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_job_is_found_with_key_and_kill(name: str, crash_by_hand: Crash) -> None:
    moments = [KillMoment.after, KillMoment.uncommitted]
    report = crash_by_hand(WRONG[name], moments)
    wrong = [trial for trial in report.trials if trial.outcome is TrialOutcome.wrong]
    assert wrong
    differing = [each for trial in wrong for each in trial.differences]
    assert all(trial.where for trial in wrong)
    assert all(each.key and each.expected != each.found for each in differing)
    assert {trial.point.moment for trial in wrong} == ({KillMoment.line} if WRONG[name].by_line else {*moments})
