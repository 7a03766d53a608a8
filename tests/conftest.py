"""What every test may use: both engines, and one Spark session for the whole run, which the first that asks starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.servers import Server, start_cassandra, start_memcached, start_redis
from trident.runtime.engine.environment import pin_worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pin_worker_python()
# Every Spark of the tests runs for seconds only: it starts in half the time if its code is compiled once, and simply.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# A first call may start a JVM or compile a plan, so no time limit per example; a failing example can be replayed.
settings.register_profile("trident", deadline=None, print_blob=True)
settings.load_profile("trident")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from trident.runtime.engine.session import spark_session

    session = spark_session("tests", "local[2]")
    yield session
    session.stop()


@pytest.fixture(params=["in_process", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest) -> str:
    """Run the test once with each engine."""
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


@pytest.fixture(scope="session")
def memcached_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Memcached of 64 MB. Who kills it starts it again."""
    yield from _server(start_memcached, tmp_path_factory)


@pytest.fixture(scope="session")
def cassandra_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Cassandra node. Who kills it starts it again."""
    yield from _server(start_cassandra, tmp_path_factory)
