"""What every test may use: one Spark session for the whole run, started by the first test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from trident.runtime.environment import pin_worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pin_worker_python()
# A first call may start a JVM or compile a plan, so no time limit per example; a failing example can be replayed.
settings.register_profile("trident", deadline=None, print_blob=True)
settings.load_profile("trident")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from trident.runtime.session import spark_session

    session = spark_session("tests", "local[2]")
    yield session
    session.stop()
