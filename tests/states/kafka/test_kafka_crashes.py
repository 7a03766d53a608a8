"""A driver that writes to a topic dies at each point of a commit: its successor writes each record once, in order."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.kafka_topics import Topics
from tests.harness.topology_runs import run_all
from tests.states.kafka.sink_driver import BATCH, POINTS, ROWS, topology

pytestmark = pytest.mark.server
TXID = 3


@pytest.fixture
def topic(kafka_topics: Topics) -> str:
    return kafka_topics.create()


def values(topics: Topics, topic: str, committed: bool = True) -> list[int]:
    return [int(one.value or b"") for one in topics.read(topic, committed)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("point", POINTS)
def test_each_record_is_seen_once_and_in_order(point: str, kafka_topics: Topics, topic: str, tmp_path: Path) -> None:
    life = {
        "bootstrap": kafka_topics.bootstrap, "topic": topic, "log_dir": str(tmp_path / "log"), "point": point, "txid": TXID,
    }  # fmt: skip
    driver = subprocess.run([sys.executable, "-m", "tests.states.kafka.sink_driver", json.dumps(life)], check=False)
    assert driver.returncode == -signal.SIGKILL
    written = TXID * BATCH if point in ("after Kafka's commit", "recorded") else (TXID - 1) * BATCH
    assert values(kafka_topics, topic) == list(range(written))
    run_all(topology(kafka_topics.bootstrap, topic), "in_process", log_dir=life["log_dir"])
    assert values(kafka_topics, topic) == list(range(ROWS))
    aborted = {"half written": BATCH // 2, "before the sentinel": BATCH, "before Kafka's commit": BATCH}.get(point, 0)
    assert len(values(kafka_topics, topic, committed=False)) == ROWS + aborted
