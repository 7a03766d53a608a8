"""Drivers and brokers that are killed at random moments: what was counted is what the topic itself says."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import pytest

from tests.harness.kafka_servers import KafkaCluster
from tests.harness.kafka_topics import Topics
from tests.harness.servers import Server
from tests.spouts.kafka.broker_kills import HEADER, POINTS, RECORDS, Outcome, kill_a_broker
from tests.spouts.kafka.ledger_audit import Audit, audit, fill


def run(
    topics: Topics, redis: Server, folder: Path, promise: str, records: int, batch: int, kills: int, longest_s: float, seed: int
) -> Audit:  # fmt: skip
    topic = fill(topics, records, seed)
    life = {
        "name": f"ledger-{topic}", "bootstrap": topics.bootstrap, "topic": topic, "copy": topics.create(4), "batch": batch,
        "redis": f"redis://{redis.address}", "log_dir": str(folder / "log"), "promise": promise, "engine": "in_process",
    }  # fmt: skip
    return audit(topics, life, kills, longest_s, seed)


@pytest.mark.long
def test_a_ledger_is_exact_although_its_driver_is_killed(
    kafka_topics: Topics, redis_server: Server, tmp_path: Path
) -> None:
    found = run(kafka_topics, redis_server, tmp_path, "transactional", 20_000, 200, 2, 0.3, seed=1)
    assert found.kills == 2
    assert found.is_exact, found
    assert found.copied == 20_000


@pytest.mark.soak
@pytest.mark.parametrize("promise", ["transactional", "opaque"])
def test_a_ledger_of_a_million_entries_is_exact(
    promise: str, kafka_topics: Topics, redis_server: Server, tmp_path: Path
) -> None:
    found = run(kafka_topics, redis_server, tmp_path, promise, 1_000_000, 5_000, 20, 3.0, seed=2)
    sys.stdout.write(f"\n{found}\n")
    assert found.is_exact
    assert found.kills


PROMISES = ("transactional", "opaque")


@pytest.mark.long
def test_an_opaque_spout_goes_on_without_the_killed_broker_and_is_exact_in_the_end(kafka_cluster: KafkaCluster) -> None:
    outcome = kill_a_broker(kafka_cluster, "opaque", "processing", copies=1, seed=1)
    assert outcome.exact, outcome
    assert outcome.records == RECORDS


@pytest.mark.soak
def test_a_topology_is_exact_over_twenty_kills(kafka_cluster: KafkaCluster) -> None:
    sys.stdout.write(f"\n{HEADER}\n")
    outcomes: list[Outcome] = []
    for seed in range(3):
        for promise, point, copies in product(PROMISES, POINTS, (2, 1)):
            if len(outcomes) < 20:
                outcomes.append(kill_a_broker(kafka_cluster, promise, point, copies, seed))
                sys.stdout.write(f"{outcomes[-1]}\n")
                sys.stdout.flush()
    assert all(outcome.exact for outcome in outcomes)
    assert all(outcome.meanwhile for outcome in outcomes if outcome.promise == "opaque" and outcome.copies == 1)
