"""What every test may use: both engines, and one Spark session for the whole run, which the first that asks starts.

With `pytest -n` each process of the run has its own session and its own servers.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.harness import leftovers, quick, quick_java, workers
from tests.harness.servers import Server, start_cassandra, start_memcached, start_postgres, start_redis, start_s3
from tests.harness.topology_runs import GATES
from trident import TridentTopology
from trident.spark.environment import pin_worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.crash.driver_runs import DriverServer
    from tests.harness.connect_servers import ConnectServer
    from tests.harness.kafka_servers import KafkaCluster
    from tests.harness.kafka_topics import Topics
    from tests.harness.zookeeper_servers import ZooKeeperEnsemble

pin_worker_python()
# Tests start some hundred Python processes, which would each compile PySpark and this project for themselves.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A shell starts what it runs in the background with SIGINT ignored, and programs would inherit that from the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("SPARK_SUBMIT_OPTS", quick_java.QUICK_JVM)
# A first call may start a JVM or compile a plan, so no time limit per example; a failing example can be replayed.
settings.register_profile("full", deadline=None, print_blob=True)
settings.register_profile("trident", settings.get_profile("full"), max_examples=25, derandomize=True)


def pytest_configure(config: pytest.Config) -> None:
    leftovers.watch()
    config.pluginmanager.register(quick.Watch())
    settings.load_profile("full" if config.option.markexpr in ("soak", "not soak") else "trident")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_FailuresAtOnce(config))


class _FailuresAtOnce:
    """Names each failed test when it fails: a run that is cut off has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            reason = str(getattr(getattr(report.longrepr, "reprcrash", None), "message", "")).partition("\n")[0]
            terminal.ensure_newline()
            terminal.write_line(f"FAILED {report.nodeid} ({report.when}, {report.duration:.0f} s): {reason}"[:300])


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    quick.mark_long(items)
    quick.mark_quick(items)
    if hasattr(config, "workerinput"):
        workers.longest_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep Python's cycle collector from looking at the ten thousand tests again and again."""
    gc.disable()
    collected = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return collected


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return (config.option.markexpr == "quick" and quick.has_none(collection_path)) or None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return workers.number_of_workers(is_quick=config.option.markexpr == "quick")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> workers.FilesInTurn:
    return workers.FilesInTurn(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many runs of the crash matrix, and random topologies, there were, in all processes of tests together."""
    ended = [report for report in terminalreporter.stats.get("", []) if report.when == "teardown"]

    def told(what: str) -> list[list[int]]:
        return [value for report in ended for name, value in report.user_properties if name == what]

    if counts := told("crash matrix"):
        runs, exact = map(sum, zip(*counts, strict=True))
        terminalreporter.write_line(f"crash matrix: {runs} runs, {exact} exact")
    if drawn := told("random topologies"):
        seeds = ", ".join(map(str, sorted({seed for _, seed in drawn})))
        terminalreporter.write_line(f"random topologies: {sum(count for count, _ in drawn)} cases, seed {seeds}")


@pytest.fixture(autouse=True)
def _paths() -> Iterator[None]:
    """Leave the process's paths as they are: a topology that is loaded adds its folder to them."""
    path, inherited = [*sys.path], os.environ.get("PYTHONPATH")
    yield
    sys.path[:] = path
    if inherited is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = inherited


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from trident.spark.session import spark_session

    session = spark_session("tests", "local[2]")
    yield session
    session.stop()


@pytest.fixture(params=["in_process", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "spark":
        request.getfixturevalue("spark")
    return name


def _server(start: Callable[[Path], Server], factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start(factory.mktemp("server"))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Redis that keeps nothing over a restart. Who kills it starts it again."""
    yield from _server(start_redis, tmp_path_factory)


@pytest.fixture
def redis_url(redis_server: Server) -> str:
    """The address of it, when it was emptied."""
    import redis

    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
    return f"redis://127.0.0.1:{redis_server.port}/0"


@pytest.fixture
def drivers() -> Iterator[DriverServer]:
    from tests.crash.driver_runs import DriverServer

    with closing(DriverServer()) as drivers:
        yield drivers


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A server of Spark Connect with two cores. Who kills one starts a server of their own."""
    from tests.harness.connect_servers import start_connect

    server = start_connect(tmp_path_factory.mktemp("connect"))
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def connect(connect_server: ConnectServer) -> Iterator[SparkSession]:
    session = connect_server.session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def memcached_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Memcached of 64 MB. Who kills it starts it again."""
    yield from _server(start_memcached, tmp_path_factory)


@pytest.fixture(scope="session")
def cassandra_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Cassandra node. Who kills it starts it again."""
    yield from _server(start_cassandra, tmp_path_factory)


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A PostgreSQL. Who kills it starts it again."""
    yield from _server(start_postgres, tmp_path_factory)


@pytest.fixture(scope="session")
def s3_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _server(start_s3, tmp_path_factory)


@pytest.fixture
def s3_server(s3_session: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """An S3 server with a bucket `logs`, to which the environment leads. Who kills it loses what is in it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{s3_session.address}")
    for name, value in {"REGION": "us-east-1", "ACCESS_KEY_ID": "user", "SECRET_ACCESS_KEY": "secret"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return s3_session


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """A ZooKeeper of one server. Who kills it starts it again."""
    from tests.harness.zookeeper_servers import start_zookeeper

    zookeeper = start_zookeeper(tmp_path_factory.mktemp("zookeeper"))
    try:
        yield zookeeper
    finally:
        zookeeper.stop()


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A Kafka of one broker, which is its controller too. Who kills it starts it again."""
    yield from _kafka(1, tmp_path_factory)


@pytest.fixture(scope="session")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A Kafka of two brokers and two copies of each partition, one of which is enough. Who kills a broker starts it again."""
    yield from _kafka(2, tmp_path_factory)


def _kafka(brokers: int, factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    from tests.harness.kafka_servers import start_kafka

    cluster = start_kafka(factory.mktemp("kafka"), brokers)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def kafka_topics(kafka_server: KafkaCluster) -> Topics:
    """Make, fill and read topics of `kafka_server`; each has a name of its own."""
    from tests.harness.kafka_topics import Topics

    return Topics(kafka_server.bootstrap)


@pytest.fixture
def topology() -> TridentTopology:
    return TridentTopology("t")


@pytest.fixture
def gate(request: pytest.FixtureRequest) -> Iterator[str]:
    """A gate of its own for the test; open at the end, so that nothing waits for ever."""
    name: str = request.node.name
    yield name
    GATES.open(name)
