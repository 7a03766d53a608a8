"""The event of a batch that Spark's executors commit: where it was committed, and what its tasks counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from states.redis import RedisState
from tests.harness.servers import Server
from tests.observe.watching import Kept, started, word_topology
from trident.counts import KeyCounts

WORDS = " ".join(f"word{number % 1500}" for number in range(3000))


@pytest.fixture
def url(redis_server: Server) -> str:
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
    return f"redis://127.0.0.1:{redis_server.port}/0"


def run(url: str, folder: Path, placement: str, pending: int) -> Kept:
    kept = Kept()
    topology = word_topology(f"{placement}{pending}", 1500, WORDS, RedisState.opaque(url))
    conf: dict[str, Any] = {"state_placement": placement, "max_spout_pending": pending, "log_dir": folder / placement}
    with started(topology, kept, engine="spark", parallelism=2, **conf) as running:
        running.process_all_available()
    return kept


@pytest.mark.sample(1)
@pytest.mark.parametrize("pending", [1, 3])  # one job for processing and commit, or one for each
def test_tasks_that_commit_report_what_they_read_and_wrote(spark: Any, url: str, tmp_path: Path, pending: int) -> None:
    driver, executors = (run(url, tmp_path, placement, pending) for placement in ("driver", "executors"))
    for kept, placement in ((driver, "driver"), (executors, "executors")):
        assert [batch.placements for batch in kept.batches] == [{"count": placement}] * 2
        assert [batch.key_counts for batch in kept.batches] == [{"count": KeyCounts(1500, 0, 1500)}] * 2
        assert [batch.keys_updated for batch in kept.batches] == [{"count": 1500}] * 2
    # Each word goes to the driver, or to the executor that has its key.
    assert min(batch.bytes_collected for batch in driver.batches) > 1500 * 4
    assert max(batch.bytes_collected for batch in executors.batches) < 1500 * 4
    assert [batch.bytes_shuffled for batch in driver.batches] == [0, 0]
    assert min(batch.bytes_shuffled for batch in executors.batches) > 1500 * 4
