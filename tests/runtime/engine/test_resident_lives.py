"""Random options against each other on resident workers that are killed now and then: each row is counted once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.spout import rows_of
from tests.harness.servers import Server
from tests.runtime.engine import resident_lives
from tests.runtime.engine.resident_lives import ResidentLife

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", range(1, 25))
def test_whatever_the_options_each_row_is_counted_once(
    seed: int, spark: SparkSession, redis_server: Server, tmp_path: Path
) -> None:
    life = ResidentLife.drawn(seed)
    wrong, _ = life.wrong(tmp_path, redis_server.port)
    assert not wrong, f"{life}: {wrong}"


def test_an_oracle_that_expects_other_rows_finds_them(
    spark: SparkSession, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = ResidentLife(seed=0, batch_size=3)
    monkeypatch.setattr(resident_lives, "rows_of", lambda seed, count: rows_of(seed, count + 1))
    wrong, failures = life.wrong(tmp_path, redis_server.port)
    assert [each.partition(":")[0] for each in wrong] == ["words", "shelves"]
    assert failures == 0
