"""Brokers that die: the transactional spout waits and gives the same records, the opaque one goes on with what is there."""

from __future__ import annotations

import logging
import pickle
import time

import pytest

from spouts.kafka import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from states.memory import MemoryMapState
from tests.harness.kafka_servers import KafkaCluster, KafkaNode
from tests.harness.kafka_topics import Record, Topics
from tests.spouts.kafka.kafka_batches import Batches, batches, spans
from trident import TridentTopology
from trident.errors import ReplayMismatchError, SourceAwayError
from trident.operations import Count


@pytest.fixture
def spread(kafka_cluster: KafkaCluster) -> str:
    """Return a topic of which each broker has one partition, without a copy, filled with 100 records each."""
    topics = Topics(kafka_cluster.bootstrap)
    topic = topics.create(2, copies=1)
    topics.produce(topic, [Record(b"%d" % n, partition=n % 2) for n in range(200)])
    return topic


def killed(cluster: KafkaCluster, topic: str, partition: int) -> KafkaNode:
    """Kill the broker that has a partition; return it once the others know."""
    node = cluster.leader(topic, partition)
    node.kill()
    admin, deadline = Topics(cluster.bootstrap).admin, time.monotonic() + 30
    while admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader >= 0:
        assert time.monotonic() < deadline, "the broker that was killed still leads"
    return node


def check_epochs(made: Batches, cluster: KafkaCluster, topic: str) -> None:
    """A definition from before the broker died does not fit records that were written to its offsets afterwards."""
    Topics(cluster.bootstrap).produce(topic, [Record(b"later", partition=1)])
    made.until(1)
    after = made.definitions[-1]
    partition, start, end, epoch = after["topics"][topic]["ranges"][4:]
    assert (partition, start, end) == (1, 100, 101)
    assert epoch > made.definitions[0]["topics"][topic]["ranges"][7]
    earlier = pickle.loads(pickle.dumps(after))
    earlier["topics"][topic]["ranges"][7] = epoch - 1
    with pytest.raises(
        ReplayMismatchError, match=f"offset 100 was written under epoch {epoch}: an unclean leader election"
    ):
        made.read(earlier)


@pytest.mark.long
def test_a_transactional_spout_waits_for_a_partition_and_then_gives_the_same_records(
    kafka_cluster: KafkaCluster, spread: str, caplog: pytest.LogCaptureFixture
) -> None:
    spout = TransactionalTridentKafkaSpout(
        kafka_cluster.bootstrap, spread, max_batch_records=100, partition_timeout_s=0.5, refresh_s=0.001
    )
    with batches(spout) as made, caplog.at_level(logging.WARNING):
        first = made.define()
        before = made.read(first)
        node = killed(kafka_cluster, spread, 1)
        try:
            with pytest.raises(
                SourceAwayError, match=f"partition 1 of topic '{spread}', offset .* has no leader. Its replicas"
            ):
                made.read(first)
            assert made.next() is None
            assert f"no leader answers for partition 1 of topic '{spread}'; waiting" in caplog.text
        finally:
            node.start()
        assert made.read(first) == before
        assert len(made.until(100)) == 100
        check_epochs(made, kafka_cluster, spread)


@pytest.mark.long
def test_an_opaque_spout_goes_on_with_the_other_partitions_and_reads_the_rest_when_it_is_back(
    kafka_cluster: KafkaCluster, spread: str
) -> None:
    spout = OpaqueTridentKafkaSpout(
        kafka_cluster.bootstrap,
        spread,
        max_batch_records=100,
        partition_timeout_s=0.5,
        refresh_s=0.001,
        fields="partition",
    )
    with batches(spout) as made:
        made.next()
        node = killed(kafka_cluster, spread, 1)
        try:
            assert made.rest() == [(0,)] * 50
            assert spans(made.definitions[-1])[1] == (1, 50, 50)
        finally:
            node.start()
        assert made.until(50) == [(1,)] * 50


@pytest.mark.soak
@pytest.mark.parametrize("kind", [TransactionalTridentKafkaSpout, OpaqueTridentKafkaSpout])
def test_a_topology_survives_a_broker_that_is_away_for_longer_than_its_attempts_last(
    kafka_cluster: KafkaCluster, spread: str, kind: type[OpaqueTridentKafkaSpout]
) -> None:
    topology = TridentTopology("survivor")
    spout = kind(kafka_cluster.bootstrap, spread, max_batch_records=10, partition_timeout_s=0.2, refresh_s=0.1)
    counts = topology.new_stream("records", spout).persistent_aggregate(MemoryMapState(), Count(), "count")
    with topology.start(engine="in_process", max_batch_attempts=2, retry_backoff_ms=10) as running:
        node = killed(kafka_cluster, spread, 0)
        try:
            time.sleep(3)  # more than two attempts of 0.2 seconds
            assert running.is_active
        finally:
            node.start()
        running.process_all_available()
        assert running.state(counts).get() == 200
