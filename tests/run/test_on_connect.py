"""The functions for `foreachBatch` on Spark Connect: they run in a process of the server, and each process may be killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from states.memory import MemoryMapState
from tests.harness.commands import environment
from tests.harness.connect_servers import ConnectServer, start_connect, started
from tests.harness.sqlite_map import sqlite_state
from tests.run.dying_job import POINTS, DyingFunction
from tests.run.test_checkpoints import Job
from trident import exactly_once, open_state
from trident.errors import EnvironmentProblem
from trident.operations import Count, Last, Sum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.timeout(300)]


class ConnectJob(Job):
    """A query on Spark Connect over files of three words each, with its function."""

    def state(self) -> Any:
        return sqlite_state(str(self.folder / "db"))

    def check(self) -> None:
        """Run what is left; each file counts once."""
        self.start(self.function()).awaitTermination()
        with open_state(self.function().topology, "n", log_dir=str(self.folder / "log")) as counts:
            assert counts.multi_get(["the", "cow"]) == [2 * self.files, self.files]
            # A query that another one stops after it has listed a file, and before it has planned a batch of it, leaves
            # that file to the batch of the next one.
            assert 1 <= counts.txid <= self.files


@pytest.fixture
def job(connect: SparkSession, tmp_path: Path) -> ConnectJob:
    return ConnectJob(connect, tmp_path)


@pytest.mark.long
def test_totals_of_a_query_are_not_added_up(connect: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1").write_text("the\ncow\nthe\n", encoding="utf-8")
    lines = connect.readStream.format("text").load(str(tmp_path / "in"))
    ones, counts = lines.selectExpr("value", "1L AS count"), lines.groupBy("value").count()

    def run(name: str, rows: Any, mode: str, aggregate: Any) -> dict[str, Any]:
        function = exactly_once(
            "totals", sqlite_state(str(tmp_path / name)), group_by="value", aggregate=aggregate, of="count", value="n",
            schema="value: string, count: bigint", log_dir=str(tmp_path / "log" / name),
        )  # fmt: skip
        writer = rows.writeStream.outputMode(mode).foreachBatch(function).trigger(availableNow=True)
        started(writer.option("checkpointLocation", str(tmp_path / "at" / name)).start).awaitTermination()
        with open_state(function.topology, "n", log_dir=str(tmp_path / "log" / name)) as state:
            return dict(zip(["the", "cow"], state.multi_get(["the", "cow"]), strict=True))

    class Nothing:
        def __call__(self, df: Any, batch: int) -> None:
            df.collect()

    writer = counts.writeStream.outputMode("complete").foreachBatch(Nothing())
    other = started(
        writer.option("checkpointLocation", str(tmp_path / "other")).start
    )  # whose rows no function of ours gets
    for mode in ("update", "complete"):
        with pytest.raises(StreamingQueryException, match=f"in output mode '{mode}': such a row may be a total"):
            run(mode, counts, mode, Sum())
    assert run("update", counts, "update", Last()) == {"the": 2, "cow": 1}
    assert run("plain", ones, "update", Sum()) == run("append", ones, "append", Sum()) == {"the": 2, "cow": 1}
    other.stop()


@pytest.mark.long
@pytest.mark.parametrize(
    "points",
    [pytest.param(("half of the put", "after"), id="some"), pytest.param(POINTS, id="all", marks=pytest.mark.long)],
)
def test_each_row_counts_once_wherever_the_function_is_killed(points: tuple[str, ...], job: ConnectJob) -> None:
    for batch, point in enumerate(points):
        job.add("the", "cow", "the")
        query = job.start(DyingFunction(job.function(), point, batch))
        with pytest.raises(StreamingQueryException):
            query.awaitTermination()
    job.check()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.RETRIES_EXCEEDED")
@pytest.mark.parametrize("point", ["before", "half of the put", "recorded", "after"])
def test_each_row_counts_once_wherever_the_server_is_killed(point: str, tmp_path: Path) -> None:
    server = start_connect(tmp_path / "server")
    try:
        job = ConnectJob(server.session(), tmp_path)
        job.add("the", "cow", "the")
        job.add("the", "cow", "the")
        query = job.start(DyingFunction(job.function(), point, 1, server=True))
        with pytest.raises(PySparkException):
            query.awaitTermination()
        server.kill()
        server.start()
        job.spark = server.session()
        job.check()
        job.spark.stop()
    finally:
        server.kill()


_CLIENT = """
import os, signal, sys
from pathlib import Path
from tests.run.test_on_connect import ConnectJob
from pyspark.sql import SparkSession

job = ConnectJob.__new__(ConnectJob)
job.spark, job.folder = SparkSession.builder.remote(sys.argv[1]).getOrCreate(), Path(sys.argv[2])
job.start(job.function())
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_a_query_outlives_its_client_and_another_client_goes_on(connect_server: ConnectServer, job: ConnectJob) -> None:
    for _ in range(6):
        job.add("the", "cow", "the")
    words = [sys.executable, "-c", _CLIENT, connect_server.url, str(job.folder)]
    done = subprocess.run(
        words, env=environment(PYTHONPATH=str(ROOT)), timeout=120, capture_output=True, text=True, check=False
    )
    assert done.returncode == -9, done.stderr[-3000:]
    job.add("the", "cow", "the")
    job.check()


@pytest.mark.long
def test_a_checkpoint_that_was_deleted_is_found_at_the_first_batch(job: ConnectJob) -> None:
    """The number is the same, 0: only the id of the query tells, which the session knows while it runs one query."""
    job.add("the", "cow", "the")
    job.check()
    query = job.start(job.function(), "another")
    with pytest.raises(StreamingQueryException, match="CheckpointMismatchError.*another query|two queries use one"):
        query.awaitTermination()


@pytest.mark.long
def test_a_session_that_has_ended_is_named(connect_server: ConnectServer) -> None:
    session = connect_server.session()
    shops = session.createDataFrame([("oslo",)], "shop string")
    with exactly_once("ended", MemoryMapState.opaque(), group_by="shop", aggregate=Count(), value="n") as function:
        function(shops, 0)
        session.client.release_session()
        for rows in (shops, shops.select("shop")):
            with pytest.raises(EnvironmentProblem, match="the session of Spark Connect has ended.*get a new session"):
                function(rows, 1)
    session.stop()
