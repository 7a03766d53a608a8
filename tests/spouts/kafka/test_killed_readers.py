"""A driver that dies of SIGKILL while it reads a batch: its successor reads the same records in the same order."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kafka_topics import Record, Topics
from tests.spouts.kafka.killed_reader import LIMIT, noted, read


@pytest.mark.long
def test_a_batch_of_a_driver_that_was_killed_is_read_again_as_it_was(kafka_topics: Topics, tmp_path: Path) -> None:
    topic = kafka_topics.create(2)
    kafka_topics.produce(topic, [Record(b"%d" % n, partition=n % 2) for n in range(90)])
    life: dict[str, Any] = {"bootstrap": kafka_topics.bootstrap, "topic": topic, "log_dir": str(tmp_path / "log")}
    killed = {**life, "notes": str(tmp_path / "first"), "last": 2 * LIMIT + 15}  # within the third batch
    driver = subprocess.run([sys.executable, "-m", "tests.spouts.kafka.killed_reader", json.dumps(killed)], check=False)
    assert driver.returncode == -signal.SIGKILL
    kafka_topics.produce(topic, [Record(b"later", partition=0)] * 50)  # what is there now must not change the batch
    assert read(**life, notes=str(tmp_path / "second")) > 3
    first, second = list(noted(tmp_path / "first")), list(noted(tmp_path / "second"))
    assert second[:15] == first[2 * LIMIT :]
    assert sorted(first[: 2 * LIMIT] + second) == sorted([(0, n) for n in range(45 + 50)] + [(1, n) for n in range(45)])
