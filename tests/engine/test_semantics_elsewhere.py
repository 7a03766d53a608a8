"""Spark Connect, resident workers and the lowering to DataFrames as further engines: the semantic suite, random topologies."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.harness.servers import Server
from tests.run.random_topologies import check, with_states
from tests.run.test_lifecycles import test_every_kind_is_prepared_and_counts_on_both_engines  # noqa: F401
from tests.run.test_random_topologies import in_executors
from tests.run.test_semantics import *  # noqa: F403
from trident.engine.dataframe_runner import DataFrameRunner
from trident.run import engine_choice, placements

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def resident(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take resident workers where Spark is asked for."""
    opened = engine_choice._spark_runner
    monkeypatch.setattr(
        engine_choice,
        "_spark_runner",
        lambda program, config, memory_mb: opened(program, replace(config, workers="resident"), memory_mb),
    )


@pytest.fixture
def lowered(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the lowering to DataFrames where Spark is asked for."""

    def opened(program: Any, config: Any, memory_mb: Any) -> DataFrameRunner:
        return DataFrameRunner(program, config.parallelism or 2, spark)

    monkeypatch.setattr(engine_choice, "_spark_runner", opened)


@pytest.fixture(params=["connect", "resident", "lowered"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take another engine where Spark is asked for."""
    session = request.getfixturevalue(request.param)
    if request.param == "connect":
        for module in (engine_choice, placements):
            monkeypatch.setattr(module, "server_of", lambda master, conf: "")
        monkeypatch.setattr(engine_choice, "connect_session", lambda server, conf: (session, False))
    return "spark"


@pytest.mark.parametrize("first", [0, 16])
def test_random_topologies_give_what_plain_python_gives(first: int, engine: str) -> None:
    assert sum(case.compare() for case in check(range(first, first + 16), engine)) > 150


@pytest.mark.parametrize(("first", "pending"), [(0, 1), (100, 3)])
@pytest.mark.usefixtures("resident")
def test_random_topologies_give_the_same_in_executors(
    first: int, pending: int, redis_server: Server, tmp_path: Path
) -> None:
    assert in_executors(with_states(first, 3), redis_server, tmp_path, pending) >= 3
