"""Commits in executors end exact whatever is killed, lost, stopped or repeated; without E1, or E2, the same runs go wrong."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.harness.servers import Server

ROOT = Path(__file__).parents[3]
# The limit is the usual one; a mark makes the file one of the first to be begun (`tests/harness/workers.py`).
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(120)]


class Campaign:
    """A part in a process of its own, which has its own Spark; what it says can be read while it runs."""

    def __init__(self, part: str, work: Path, seed: int = 0, more: Any = (), **ports: int) -> None:
        spark = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment = {**os.environ, **spark, "SPARK_WORKER_DIR": str(work), "PYTHONPATH": str(ROOT)}
        stores = [f"--{store}={port}" for store, port in ports.items()]
        program = [sys.executable, "-m", "tests.crash.commit_tasks.kill_campaign", f"--part={part}", f"--seed={seed}"]
        self.errors, self.lines = work / "errors", list[str]()
        with self.errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*program, *more, *stores], cwd=work, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def says(self, what: Callable[[str], bool]) -> str:
        """Return the first line that is so, once it is there."""
        assert self._process.stdout is not None
        found = next(filter(what, self.lines), None)
        while found is None:
            line = self._process.stdout.readline()
            assert line, "".join(self.lines) + self.errors.read_text()[-3000:]
            sys.stdout.write(line)
            self.lines.append(line)
            found = line if what(line) else None
        return found

    def ends(self) -> int:
        assert self._process.stdout is not None
        self.lines += self._process.stdout
        sys.stdout.write("".join(self.lines))
        return self._process.wait()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _of(fault: str) -> Callable[[str], bool]:
    return lambda line: f" {fault} " in line


@pytest.fixture(scope="module")
def few(redis_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """The cases that tell most, one after the other on one cluster; each test waits for its own."""
    with closing(Campaign("few", tmp_path_factory.mktemp("few"), redis=redis_server.port)) as running:
        yield running


@pytest.mark.long
@pytest.mark.parametrize("fault", ["worker@begun", "neighbour@before"])
def test_what_a_killed_worker_or_executor_committed_is_counted_once(few: Campaign, fault: str) -> None:
    said = few.says(lambda line: f" {fault} " in line)
    assert ": exact, " in said
    assert "did not happen" not in said


@pytest.mark.long
def test_without_the_rule_on_second_runs_a_killed_executor_makes_the_state_wrong(few: Campaign) -> None:
    wrong = few.says(lambda line: " without E1: " in line and ": exact, " not in line)
    assert "lots sum up to " in wrong or "executors committed other rows" in wrong, wrong


@pytest.mark.long
def test_what_a_killed_driver_committed_is_counted_once(few: Campaign) -> None:
    assert ": exact, " in few.says(lambda line: " driver@record " in line)
    assert "3 runs, 3 with their fault, 3 exact" in few.says(lambda line: line.startswith("commit tasks: "))
    assert few.ends() == 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_residents_of_a_killed_executor_committed_is_counted_once(redis_server: Server, tmp_path: Path) -> None:
    only = ["--only", "executor@begun", "neighbour", "--pairings=1"]
    with closing(Campaign("resident", tmp_path, more=only, redis=redis_server.port)) as running:
        for fault in ("executor@begun", "neighbour@before"):
            said = running.says(_of(fault))
            assert ": exact, " in said
            assert "resident workers" in said
            assert "did not happen" not in said
        assert running.ends() == 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("part", ["cluster", "drivers", "resident", "rules", "repeated", "speculation"])
def test_the_whole_campaign(
    part: str, seed: int, redis_server: Server, cassandra_server: Server, postgres_server: Server, tmp_path: Path
) -> None:
    ports = {"redis": redis_server.port, "cassandra": cassandra_server.port, "postgres": postgres_server.port}
    with closing(Campaign(part, tmp_path, seed, **ports)) as running:
        assert running.ends() == 0, running.errors.read_text()[-3000:]


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", ["cluster", "drivers", "resident", "repeated"])
def test_the_campaign_of_tables_that_the_driver_publishes(part: str, tmp_path: Path) -> None:
    with closing(Campaign(part, tmp_path, delta=0)) as running:
        assert running.ends() == 0, running.errors.read_text()[-3000:]
