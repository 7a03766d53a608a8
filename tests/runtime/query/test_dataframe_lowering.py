"""The lowering to DataFrames as a third engine: the semantic suite and the random topologies, with equal results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.runtime.random_topologies import check
from trident.runtime.engine.dataframe_runner import DataFrameRunner
from trident.runtime.start import engine_choice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from tests.runtime.test_semantics import *  # noqa: F403

pytestmark = pytest.mark.long


@pytest.fixture
def engine(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take the lowering to DataFrames where Spark is asked for."""

    def opened(program: Any, config: Any, memory_mb: Any) -> DataFrameRunner:
        return DataFrameRunner(program, config.parallelism or 2, spark)

    monkeypatch.setattr(engine_choice, "_spark_runner", opened)
    return "spark"


@pytest.mark.parametrize("first", [0, 16])
def test_random_topologies_give_what_plain_python_gives(first: int, engine: str) -> None:
    assert sum(case.compare() for case in check(range(first, first + 16), engine)) > 150
