"""Topologies on a server of Spark Connect, which may lack Trident: `topology.start()` there, its errors, what it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from spouts import DataFrameSpout, FixedBatchSpout, StructuredStreamingSpout
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.harness.commands import environment
from tests.harness.connect_servers import ConnectServer, start_connect
from tests.harness.servers import Server, free_ports
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import keep
from tests.run.test_on_connect import ConnectJob
from trident import TridentTopology
from trident.errors import BatchFailedError, ConfigError, EnvironmentProblem, TopologyError
from trident.operations import Count, Split
from trident.spark.connect import check_lasting, connect_problem, server_of
from trident.stream import TridentState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
LINES = [["the cow"], ["the moon"], ["the man", "the cow"]]
OVER = {"the": 4, "cow": 2, "moon": 1, "man": 1}
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def counting(state: Any, more: Any = None) -> tuple[TridentTopology, TridentState]:
    topology = TridentTopology("words")
    lines = topology.new_stream(
        "lines", FixedBatchSpout("line: string", 2, *([line] for [*each] in LINES for line in each))
    )
    words = lines.each("line", Split(), "word")
    if more is not None:
        words = words.each("word", more, "n: bigint")
    return topology, words.group_by("word").persistent_aggregate(state, Count(), "count")


@pytest.fixture(scope="module")
def bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A server whose Python has no Trident."""
    server = start_connect(tmp_path_factory.mktemp("bare"), python_path=None)
    try:
        yield server
    finally:
        server.kill()


@pytest.mark.long
def test_a_topology_counts_on_a_server_that_has_no_trident(bare_server: ConnectServer, tmp_path: Path) -> None:
    topology, counts = counting(sqlite_state(str(tmp_path / "db")))
    for _ in range(2):  # the second one goes on
        with topology.start(engine="spark", master=bare_server.url, log_dir=str(tmp_path / "log")) as running:
            running.process_all_available()
            assert dict(zip(OVER, running.state(counts).multi_get(list(OVER)), strict=True)) == OVER


@pytest.mark.long
def test_foreach_batch_says_that_the_server_has_no_trident(bare_server: ConnectServer, tmp_path: Path) -> None:
    job = ConnectJob(bare_server.session(), tmp_path)
    job.add("the")
    with pytest.raises(PySparkException, match="has no module 'trident': install trident-spark") as raised:
        job.start(job.function()).awaitTermination()
    assert "on the server of Spark Connect" in str(raised.value)
    job.spark.stop()


_PROGRAM = """
import sys
from pyspark.sql import SparkSession
from states.redis import RedisState
from tests.engine.test_connect import counting

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
topology, counts = counting(RedisState.opaque(sys.argv[2]))
with topology.start(auto_bytes=0, max_spout_pending=2, log_dir=sys.argv[3]) as running:
    running.process_all_available()
    print(running.last_progress["engine"], running.state(counts).multi_get(["the", "cow"]))
    print(sorted(running.state(counts).to_dataframe(spark).where("count > 1").collect()))
print(spark.range(3).count())
"""


@pytest.mark.long
def test_a_program_with_a_session_of_spark_connect_needs_nothing_else(
    connect_server: ConnectServer, redis_server: Server, tmp_path: Path
) -> None:
    words = [connect_server.url, f"redis://127.0.0.1:{redis_server.port}/3", str(tmp_path / "log")]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words], env=environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    told = "spark [4, 2]\n[Row(word='cow', count=2), Row(word='the', count=4)]\n3\n"
    assert done.stdout == told, done.stderr[-3000:]


@pytest.mark.long
def test_rows_of_a_dataframe_of_a_server(connect_server: ConnectServer, connect: SparkSession, tmp_path: Path) -> None:
    topology = TridentTopology("rows")
    kept = keep(topology.new_stream("rows", DataFrameSpout(connect.range(50), str(tmp_path / "rows"))))
    with topology.start(engine="spark", master=connect_server.url) as running:
        running.process_all_available()
    assert sorted(kept.rows) == [(number,) for number in range(50)]


@pytest.mark.long
def test_a_failure_of_the_users_code_is_told_as_by_any_spark(connect_server: ConnectServer) -> None:
    topology, _ = counting(MemoryMapState.opaque(), lambda word: 1 // (word != "moon"))
    settings: dict[str, Any] = {"engine": "spark", "master": connect_server.url, "retry_backoff_ms": 1}
    with pytest.raises(BatchFailedError, match="ZeroDivisionError") as raised, topology.start(**settings) as running:
        running.process_all_available()
    assert raised.value.txid == 1


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.RETRIES_EXCEEDED")
def test_a_server_that_goes_away_ends_the_topology_by_name(tmp_path: Path) -> None:
    server = start_connect(tmp_path / "server")
    try:
        ended = tmp_path / "ended"

        def kill_at_moon(word: str) -> int:
            if word == "moon" and not ended.exists():
                import os
                import signal

                ended.touch()
                os.kill(int(pid), signal.SIGKILL)
            return 1

        pid = server.pid
        topology, counts = counting(sqlite_state(str(tmp_path / "db")), kill_at_moon)
        settings: dict[str, Any] = {"engine": "spark", "log_dir": str(tmp_path / "log"), "max_spout_pending": 1}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pyspark.sql.connect.client.retries.DefaultPolicy.__init__.__defaults__", _SOON)
            away = pytest.raises(BatchFailedError, match="server of Spark Connect does not answer any more. Start it")
            with away, topology.start(master=server.url, **settings) as running:
                running.process_all_available()
        server.kill()
        server.start()
        with topology.start(master=server.url, **settings) as running:
            running.process_all_available()
            assert dict(zip(OVER, running.state(counts).multi_get(list(OVER)), strict=True)) == OVER
    finally:
        server.kill()


_SOON = (3, 4.0, 50, 200, 50, 2000, True, 1000)  # of the arguments of a policy, which otherwise tries for ten minutes


def test_no_server_at_the_address_is_said_at_once_without_its_token() -> None:
    (port,) = free_ports(1)
    topology, _ = counting(MemoryMapState.opaque())
    with pytest.raises(
        EnvironmentProblem, match=f"no server of Spark Connect answers at sc://127.0.0.1:{port} "
    ) as raised:
        topology.start(engine="spark", master=f"sc://127.0.0.1:{port}/;token=secret")
    assert "secret" not in str(raised.value)
    assert raised.value.can_heal


def test_a_setting_that_the_server_has_fixed_is_named(connect_server: ConnectServer) -> None:
    topology, _ = counting(MemoryMapState.opaque())
    with pytest.raises(ConfigError, match="spark.executor.memory cannot be set for a session of Spark Connect"):
        topology.start(engine="spark", master=connect_server.url, spark_conf={"spark.executor.memory": "2g"})


def test_a_client_commits_its_states(connect_server: ConnectServer, redis_server: Server, tmp_path: Path) -> None:
    topology, _ = counting(RedisState.opaque(f"redis://127.0.0.1:{redis_server.port}/4"))
    with pytest.raises(ConfigError, match="cannot be committed in executors: Spark Connect cannot keep"):
        topology.start(master=connect_server.url, state_placement="executors", log_dir=str(tmp_path))


def test_a_streaming_spout_is_refused_where_it_is_declared(connect: SparkSession, tmp_path: Path) -> None:
    rates = connect.readStream.format("rate").load()
    with pytest.raises(TopologyError, match=r"topology\.foreach_batch"):
        StructuredStreamingSpout(rates, tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("[INVALID_HANDLE.SESSION_CHANGED] The handle x is invalid", "the session of Spark Connect has ended"),
        ("INVALID_HANDLE.SESSION_NOT_FOUND", "the session of Spark Connect has ended"),
        (
            "status = StatusCode.RESOURCE_EXHAUSTED details = Sent message larger than max (200 vs. 134)",
            "of 200 bytes is",
        ),
        (
            "StatusCode.RESOURCE_EXHAUSTED: gRPC message exceeds maximum size 134217728: 140000000",
            "larger than a message",
        ),
        ("<_InactiveRpcError: StatusCode.UNAVAILABLE", "does not answer any more"),
        ("ZeroDivisionError: division by zero", "None"),  # of none of these
    ],
)
def test_what_spark_connect_says_is_told_with_what_to_do(said: str, told: str) -> None:
    assert told in str(connect_problem(said))


def test_a_log_on_the_disk_of_a_serverless_machine_is_refused() -> None:
    serverless = {"DATABRICKS_RUNTIME_VERSION": "client.4.1"}
    for folder in ("trident-log/words", "/tmp/log"):
        with pytest.raises(ConfigError, match="on the disk of a serverless machine, and gone with it"):
            check_lasting(folder, serverless)
        check_lasting(folder, {"DATABRICKS_RUNTIME_VERSION": "17.3"})
        check_lasting(folder, {})
    for folder in ("zookeeper://zk:2181/log", "/Volumes/main/default/log"):
        check_lasting(folder, serverless)


@pytest.mark.long
def test_which_server_a_program_asks_for(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    assert server_of("sc://host:1", {}) == "sc://host:1"
    assert server_of(None, {"spark.remote": "sc://host"}) == "sc://host"
    assert server_of(None, {}) is None
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    assert server_of(None, {}) is None, "a classic session runs"
    assert server_of("local[2]", {}) is None
    with monkeypatch.context() as patch:
        patch.setattr("pyspark.SparkContext._active_spark_context", None)
        assert server_of(None, {}) == "sc://host"
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    assert server_of(None, {}) == "", "the active session"
