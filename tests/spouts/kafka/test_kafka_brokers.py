"""Brokers that die or hang: the transactional spout waits and gives the same records, the opaque one goes on, both exactly."""

import logging
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from spouts.kafka import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from states.memory import MemoryMapState
from tests.harness.commands import until
from tests.harness.kafka_servers import KafkaCluster, KafkaNode
from tests.harness.kafka_topics import Record, Topics
from tests.spouts.kafka.kafka_batches import Batches, batches
from tests.spouts.reading import Row
from trident import TridentTopology
from trident.errors import ReplayMismatchError, SourceAwayError, SpoutError
from trident.operations import Count
from trident.state import StateType


@pytest.fixture
def spread(kafka_cluster: KafkaCluster) -> str:
    """Return a topic of which each broker has one partition, without a copy, filled with 100 records each."""
    topics = Topics(kafka_cluster.bootstrap)
    return topics.filled([Record(b"%d" % n, partition=n % 2) for n in range(200)], 2, copies=1)


def killed(cluster: KafkaCluster, topic: str, partition: int) -> KafkaNode:
    """Kill the broker that has a partition; return it once the others know."""
    node = cluster.leader(topic, partition)
    node.kill()
    admin = Topics(cluster.bootstrap).admin
    until(
        lambda: admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader < 0,
        "the broker that was killed does not lead any more",
    )
    return node


def read_when_led(made: Batches, definition: Any) -> list[Row]:
    """Read a batch whose partition may be without a leader for a while: the broker runs before it is elected."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return made.read(definition)
        except SourceAwayError:
            assert time.monotonic() < deadline, "no leader within a minute"


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
        assert read_when_led(made, first) == before
        assert len(made.until(100)) == 100
        check_epochs(made, kafka_cluster, spread)


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
        until(
            lambda: all(self.counted()[each] == self.wanted[each] for each in partitions), f"{self.wanted} are counted"
        )

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
def test_an_opaque_spout_goes_on_without_a_hanging_broker_until_it_is_back(kafka_cluster: KafkaCluster) -> None:
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
                until(lambda: WAITS.format(partition, made.topic) in caplog.text, "it says that it waits")  # noqa: B023
                assert made.counted() == before
            made.wait(0, 1)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [OPAQUE, TRANSACTIONAL])
def test_a_spout_goes_on_with_the_copies_of_a_broker_that_hangs(kafka_cluster: KafkaCluster, kind: Spout) -> None:
    with hanging(kafka_cluster, kind, copies=2) as made, made.hung(0) as other:
        made.produce(other.address, 0, 1)
        made.wait(0, 1)


@pytest.mark.parametrize("kind", [OPAQUE, TRANSACTIONAL])
@pytest.mark.parametrize("on_data_loss", ["fail", "skip"])
def test_a_broker_that_does_not_know_yet_that_another_leads_is_not_believed(
    kafka_server: KafkaCluster, kind: Spout, on_data_loss: Literal["fail", "skip"]
) -> None:
    topics = Topics(kafka_server.bootstrap)
    topic = topics.filled([Record(b"%d" % n) for n in range(10)])
    with batches(kind(kafka_server.bootstrap, topic, on_data_loss=on_data_loss)) as made:
        assert len(made.until(10)) == 10
        ranges = made.definitions[-1]["topics"][topic]["ranges"]
        ranges[2:] = [15, ranges[3] + 1]  # as if the other one had given five more records
        assert made.next() is None
        assert made.coordinator._positions.skipped == 0
        ranges[3] -= 1  # the same without another leader: those five were lost
        if on_data_loss == "fail":
            with pytest.raises(SpoutError, match="5 offsets that were read were lost in Kafka"):
                made.next()
        else:
            made.next()
            assert made.coordinator._positions.skipped == 5
