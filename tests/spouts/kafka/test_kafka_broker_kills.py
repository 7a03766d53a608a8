"""Both Kafka spouts count each record once although a broker that leads a partition is killed."""

from __future__ import annotations

import sys
from itertools import product

import pytest

from tests.harness.kafka_servers import KafkaCluster
from tests.spouts.kafka.broker_kills import HEADER, POINTS, RECORDS, Outcome, kill_a_broker

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
