"""The README's job and the same job with three other lines, killed at every point of a batch."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.commands import environment
from tests.harness.sqlite_map import sqlite_state
from tests.runtime.query.dying_job import POINTS
from trident import QueryBatches, TridentTopology, open_state
from trident.operations import Count

ROOT = Path(__file__).parent.parent.parent.parent
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

LINE = "the cow jumped over the moon\n"
IN_A_LINE = {"cow": 1, "jumped": 1, "moon": 1, "over": 1, "the": 2}


def problem() -> str:
    """Return the job of the README, which counts twice."""
    (job, *_) = (ROOT / "README.md").read_text(encoding="utf-8").split("```py\n")[1].split("```")
    return job


def kept() -> str:
    """Return the same query with the function that the README puts in place of `add`, and a store that dies in the middle."""
    (change, *_) = (ROOT / "README.md").read_text(encoding="utf-8").split("```diff\n")[1].split("```")
    lines = [line[1:] for line in change.splitlines() if line.startswith("+")]
    function = "\n".join(lines).replace('DeltaState("counts")', 'sqlite_state("counts.db")')
    imports, _, query = problem().split("\n\n\n")
    store = "from tests.harness.sqlite_map import sqlite_state"
    assert "sqlite_state(" in function
    return "\n".join([imports, store, function, query])


def run(folder: Path, *words: str) -> int:
    """Run a life of the job and return its exit code."""
    command = [sys.executable, "-m", "tests.runtime.query.dying_job", "job.py", *words]
    variables = environment(PYTHONPATH=str(ROOT), PYSPARK_SUBMIT_ARGS="--master local[2] pyspark-shell")
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-6000:]
    return done.returncode


def live(folder: Path, job: str, points: tuple[str, ...]) -> int:
    """Let a job die at one point after the other, each time in the batch of a file that was added; return how many batches.

    The job itself adds a file with the same line before the first batch.
    """
    (folder / "books").mkdir()
    (folder / "job.py").write_text(job, encoding="utf-8")
    for batch, point in enumerate(points):
        (folder / f"books/{batch}.txt").write_text(LINE, encoding="utf-8")
        assert run(folder, point, str(batch)) == -signal.SIGKILL, f"it did not come to {point!r}"
    assert run(folder) == 0
    return len(points)


@pytest.mark.long
@pytest.mark.parametrize(
    "points",
    [
        pytest.param(("half of the put", "recorded"), id="some"),
        pytest.param(POINTS, id="all", marks=pytest.mark.long),
    ],
)
def test_the_kept_query_is_exact_wherever_it_is_killed(
    points: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = live(tmp_path, kept(), points)
    monkeypatch.chdir(tmp_path)
    topology = TridentTopology("words")
    words = topology.new_stream("query", QueryBatches("word: string"))
    counts = words.group_by("word").persistent_aggregate(sqlite_state("counts.db"), Count(), "n", state_name="n")
    with open_state(topology, counts) as state:  # from another process than those that wrote it
        assert dict(zip(IN_A_LINE, state.multi_get(list(IN_A_LINE)), strict=True)) == {
            word: n * (batches + 1) for word, n in IN_A_LINE.items()
        }
        assert state.txid == batches


@pytest.mark.long  # tests/crashtest/test_real_jobs.py shows it, too
def test_the_job_of_the_readme_counts_twice_in_the_same_schedule(tmp_path: Path) -> None:
    live(tmp_path, problem(), ("after",))
    with sqlite3.connect(tmp_path / "counts.db") as db:
        found = dict(db.execute("SELECT word, n FROM counts"))
    assert found["the"] == 2 * 2 * IN_A_LINE["the"], "a batch that was killed after its transaction counts once more"
