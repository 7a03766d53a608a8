"""A broker that hangs keeps its connections: the opaque spout goes on without it, the transactional one waits, both exactly."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import pytest

from spouts.kafka import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from states.memory import MemoryMapState
from tests.harness.kafka_servers import KafkaCluster, KafkaNode
from tests.harness.kafka_topics import Record, Topics
from tests.spouts.kafka.kafka_batches import batches
from trident import TridentTopology
from trident.errors import SpoutError
from trident.operations import Count
from trident.state import StateType

Spout = type[OpaqueTridentKafkaSpout] | type[TransactionalTridentKafkaSpout]
OPAQUE, TRANSACTIONAL = OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
WAITS = "no leader answers for partition {} of topic '{}'; waiting"


@dataclass
class Hanging:
    """A topology that counts the records of each partition, over brokers of which one hangs at times."""

    cluster: KafkaCluster
    topic: str
    counted: Callable[[], list[int]]
    wanted: list[int] = field(default_factory=lambda: [0, 0])

    def produce(self, through: str, *partitions: int) -> None:
        """Write 50 records to each of the partitions."""
        records = [Record(b"%d" % n, partition=each) for n in range(50) for each in partitions]
        Topics(through).produce(self.topic, records)
        for each in partitions:
            self.wanted[each] += 50

    def wait(self, *partitions: int) -> None:
        """Wait until all records are counted, of these partitions."""
        deadline = time.monotonic() + 30
        while [(found := self.counted())[each] for each in partitions] != [self.wanted[each] for each in partitions]:
            assert time.monotonic() < deadline, f"{found} of {self.wanted} records were counted"
            time.sleep(0.05)

    @contextmanager
    def hung(self, partition: int) -> Iterator[KafkaNode]:
        """Have the leader of a partition hang; give the other broker."""
        node = self.cluster.leader(self.topic, partition)
        (other,) = (each for each in self.cluster.brokers if each is not node)
        node.pause()
        try:
            yield other
        finally:
            node.resume()


@contextmanager
def hanging(cluster: KafkaCluster, kind: Spout, copies: int) -> Iterator[Hanging]:
    topic = Topics(cluster.bootstrap).create(2, copies=copies)
    spout = kind(cluster.bootstrap, topic, fields="partition", refresh_s=0.5, partition_timeout_s=1)
    topology = TridentTopology("counts")
    state = MemoryMapState(kind=StateType(spout.spout_type.value))
    groups = topology.new_stream("records", spout).group_by("partition")
    counts = groups.persistent_aggregate(state, Count(), "count")
    with topology.start(engine="in_process", max_batch_attempts=2, retry_backoff_ms=10) as running:
        made = Hanging(cluster, topic, lambda: [found or 0 for found in running.state(counts).multi_get([(0,), (1,)])])
        made.produce(cluster.bootstrap, 0, 1)
        made.wait(0, 1)
        yield made
        made.produce(cluster.bootstrap, 0, 1)
        made.wait(0, 1)
        running.process_all_available()
        assert made.counted() == made.wanted
        assert running.is_active


@pytest.mark.long
def test_an_opaque_spout_goes_on_without_a_broker_that_hangs_and_counts_its_records_once_it_is_back(
    kafka_cluster: KafkaCluster,
) -> None:
    with hanging(kafka_cluster, OPAQUE, copies=1) as made:
        for partition in (0, 1):  # whichever broker the driver asks
            made.produce(kafka_cluster.bootstrap, 0, 1)  # some of them are in a batch already when it hangs
            with made.hung(partition) as other:
                for _ in range(3):
                    made.produce(other.address, 1 - partition)
                    made.wait(1 - partition)
            made.wait(0, 1)


@pytest.mark.soak
def test_a_transactional_spout_waits_for_a_broker_that_hangs(
    kafka_cluster: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with hanging(kafka_cluster, TRANSACTIONAL, copies=1) as made, caplog.at_level(logging.WARNING):
        for partition in (0, 1):
            before = made.counted()
            with made.hung(partition) as other:
                made.produce(other.address, 1 - partition)
                deadline = time.monotonic() + 30
                while WAITS.format(partition, made.topic) not in caplog.text:
                    assert time.monotonic() < deadline, "it does not say that it waits"
                    time.sleep(0.05)
                assert made.counted() == before
            made.wait(0, 1)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [OPAQUE, TRANSACTIONAL])
def test_a_spout_goes_on_with_the_copies_of_a_broker_that_hangs(kafka_cluster: KafkaCluster, kind: Spout) -> None:
    with hanging(kafka_cluster, kind, copies=2) as made, made.hung(0) as other:
        made.produce(other.address, 0, 1)
        made.wait(0, 1)


@pytest.mark.parametrize("kind", [OPAQUE, TRANSACTIONAL])
@pytest.mark.parametrize("on_lost", ["fail", "skip"])
def test_a_broker_that_does_not_know_yet_that_another_leads_is_not_believed(
    kafka_server: KafkaCluster, kind: Spout, on_lost: Literal["fail", "skip"]
) -> None:
    topics = Topics(kafka_server.bootstrap)
    topic = topics.create(1)
    topics.produce(topic, [Record(b"%d" % n) for n in range(10)])
    with batches(kind(kafka_server.bootstrap, topic, on_lost=on_lost)) as made:
        assert len(made.until(10)) == 10
        ranges = made.definitions[-1]["topics"][topic]["ranges"]
        ranges[2:] = [15, ranges[3] + 1]  # as if the other one had given five more records
        assert made.next() is None
        assert made.coordinator.skipped == 0
        ranges[3] -= 1  # the same without another leader: those five were lost
        if on_lost == "fail":
            with pytest.raises(SpoutError, match="5 offsets that were read were lost in Kafka"):
                made.next()
        else:
            made.next()
            assert made.coordinator.skipped == 5
