"""Resident workers as a further engine: the semantic suite and the random topologies, with equal results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.servers import Server
from tests.runtime.random_topologies import check, with_states
from tests.runtime.test_random_topologies import in_executors
from trident.runtime.start import engine_choice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from tests.runtime.test_semantics import *  # noqa: F403

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def engine(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take resident workers where Spark is asked for."""
    opened = engine_choice._spark_runner

    def resident(program: Any, config: Any, memory_mb: Any) -> Any:
        return opened(program, replace(config, workers="resident"), memory_mb)

    monkeypatch.setattr(engine_choice, "_spark_runner", resident)
    return "spark"


@pytest.mark.parametrize("first", [16, 32])
def test_random_topologies_give_what_plain_python_gives(first: int, engine: str) -> None:
    assert sum(case.compare() for case in check(range(first, first + 16), engine)) > 150


@pytest.mark.parametrize(("first", "pending"), [(0, 1), (100, 3)])
def test_random_topologies_give_the_same_in_executors(
    first: int, pending: int, engine: str, redis_server: Server, tmp_path: Path
) -> None:
    assert in_executors(with_states(first, 3), redis_server, tmp_path, pending) >= 3
