"""Jobs of the pages on Spark: the README's counts twice, and with `exactly_once` it does not."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import pytest

from trident.crashtest import Comparison, CrashReport, CrashTest, KillMoment, TrialOutcome, table_named

ROOT = Path(__file__).parent.parent.parent
EACH = pytest.param(tuple(KillMoment), id="each moment", marks=pytest.mark.long)
AFTER = pytest.param((KillMoment.after,), id="after", marks=pytest.mark.long)
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

QUERY = """

    spark = SparkSession.builder.getOrCreate()
    words = spark.readStream.option("maxFilesPerTrigger", 1).text("books").selectExpr("explode(split(value, ' ')) AS word")
    writer = words.writeStream.foreachBatch(add).option("checkpointLocation", "checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
"""
KEPT = "from pyspark.sql import SparkSession\nfrom counted import add\n"


def page(name: str, start: str) -> str:
    """Return the program of a page that begins with a text."""
    blocks = re.findall(r"^```py\n(.*?)^```$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if block.startswith(start)]
    return str(found)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small = "--conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=1"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--master local[2] {small} pyspark-shell")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    (tmp_path / "books").mkdir()
    for number in range(2):
        (tmp_path / "books" / f"{number}.txt").write_text("the cow jumped over the moon\n", encoding="utf-8")
    return tmp_path


def crashed(folder: Path, job: str, table: str, moments: tuple[KillMoment, ...], key: str = "word") -> CrashReport:
    (folder / "job.py").write_text(job, encoding="utf-8")
    named = table_named(table)
    comparison = Comparison([key] if key else [])
    command = [sys.executable, "job.py"]
    return CrashTest(command, folder, named, comparison, "", named.database or "", len(moments), moments, seed=1).run()


def outcomes(report: CrashReport) -> dict[KillMoment, TrialOutcome]:
    return {trial.point.moment: trial.outcome for trial in report.trials}


@pytest.mark.long
def test_the_job_of_the_readme_counts_twice(folder: Path) -> None:
    job = page("README.md", "import sqlite3")
    report = crashed(folder, job, "sqlite:///counts.db?table=counts", (KillMoment.after,))
    (trial,) = report.trials
    assert trial.where == "add() had returned, Spark had not written commits/0"
    assert [(each.key, each.expected, each.found) for each in trial.differences][-1] == ("the", "n=6", "n=12")


@pytest.mark.parametrize("moments", [AFTER, EACH])
def test_the_same_job_with_exactly_once_does_not(moments: tuple[KillMoment, ...], folder: Path) -> None:
    (folder / "counted.py").write_text(page("docs/proving.md", "# counted.py"), encoding="utf-8")
    found = outcomes(crashed(folder, KEPT + textwrap.dedent(QUERY), "counted:rows", moments, ""))
    assert found.pop(KillMoment.older, TrialOutcome.refused) is TrialOutcome.refused
    assert set(found.values()) == {TrialOutcome.exact}
