"""Answers of Kafka that come late, never, with an error or from another broker: no record is skipped without a word."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from spouts.kafka import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout, broker_view
from states.memory import MemoryMapState
from tests.harness.kafka_proxy import LIST_OFFSETS, KafkaProxy, asks_for_time
from tests.harness.kafka_servers import KafkaCluster
from tests.harness.kafka_topics import Record, Topics
from tests.spouts.kafka.kafka_batches import batches
from trident import TridentTopology
from trident.operations import Count

Kind = type[OpaqueTridentKafkaSpout] | type[TransactionalTridentKafkaSpout]
BOTH = pytest.mark.parametrize("kind", [OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout])
NOON = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
NOON_MS = int(NOON.timestamp() * 1000)


@pytest.fixture
def proxy(kafka_server: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaProxy]:
    monkeypatch.setattr(broker_view, "_ASK_S", 0.5)
    made = KafkaProxy(kafka_server)
    try:
        yield made
    finally:
        made.close()


def numbered(start: int, end: int) -> list[Record]:
    return [Record(b"%d" % n, timestamp_ms=NOON_MS + n) for n in range(start, end)]


@BOTH
def test_a_time_to_begin_at_that_is_not_answered_is_asked_for_again(
    kafka_topics: Topics, proxy: KafkaProxy, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka_topics.create()
    kafka_topics.produce(topic, numbered(0, 100))
    with batches(kind(proxy.bootstrap, topic, first_poll=NOON)) as made:
        with proxy.rule("never", LIST_OFFSETS, only=partial(asks_for_time, ms=NOON_MS)) as rule:
            assert made.next() is None
            rule.wait()
            assert made.coordinator.is_preparing()
        assert [int(value) for (value,) in made.until(100)] == list(range(100))
    assert f"asking for the first record of partition 0 of topic '{topic}'" in caplog.text


@BOTH
def test_a_topology_does_not_say_that_all_is_processed_while_the_broker_is_silent(
    kafka_topics: Topics, proxy: KafkaProxy, kind: Kind
) -> None:
    topic = kafka_topics.create()
    kafka_topics.produce(topic, numbered(0, 100))
    topology = TridentTopology("silent")
    spout = kind(proxy.bootstrap, topic)
    counts = topology.new_stream("records", spout).persistent_aggregate(MemoryMapState(), Count(), "count")
    with proxy.rule("never", LIST_OFFSETS) as rule, topology.start(engine="in_process") as running:
        ended = threading.Thread(target=running.process_all_available)
        ended.start()
        rule.wait()
        ended.join(2)
        assert ended.is_alive()
        proxy.lift(rule)
        ended.join(30)
        assert not ended.is_alive()
        assert running.state(counts).get() == 100
