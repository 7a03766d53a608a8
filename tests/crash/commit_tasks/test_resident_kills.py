"""Resident workers that are killed, or stopped and woken, while they commit: each row is counted once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.commit_tasks.cluster_runs import run_case, run_doomed
from tests.crash.commit_tasks.kill_campaign import CHANGING, Cases
from tests.harness.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("point", "how", "pending"),
    [
        ("chunk", "worker", 3), ("begun", "worker", 1), ("put", "worker", 1), ("committed", "worker", 3),
        ("before", "worker", 1), ("begun", "raise", 3),
        pytest.param("chunk", "pause", 1, marks=pytest.mark.long), pytest.param("chunk", "pause", 3, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_what_a_worker_that_is_gone_committed_is_counted_once(
    point: str, how: str, pending: int, spark: SparkSession, redis_server: Server, tmp_path: Path
) -> None:
    cases = Cases(tmp_path, {"redis": redis_server.port}, 0, [], 1, 1)
    cases.workers = "resident"
    outcome = run_case(cases.of("redis", CHANGING, point, how, pending))
    assert outcome.happened
    assert outcome.is_exact, str(outcome)
    assert outcome.failures >= 1
    assert how != "pause" or outcome.put in ("FencedError", "StaleTransactionError"), str(outcome)


@pytest.mark.long
@pytest.mark.parametrize(("point", "pending"), [("chunk", 3), ("record", 1)])
def test_the_workers_of_a_driver_that_is_killed_end_and_write_nothing_that_counts(
    point: str, pending: int, spark: SparkSession, redis_server: Server, tmp_path: Path
) -> None:
    cases = Cases(tmp_path, {"redis": redis_server.port}, 0, [], 1, 1)
    cases.workers = "resident"
    (outcome,) = run_doomed([cases.of("redis", CHANGING, point, "driver", pending)], "local[2]")
    assert outcome.happened
    assert outcome.is_exact, str(outcome)
