"""Tests of the Kafka that tests start: what they rely on when they kill a broker of it, or read a topic back."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from tests.harness import servers
from tests.harness.kafka_servers import KafkaCluster, start_kafka
from tests.harness.kafka_topics import Record, Topics


def test_a_topic_is_read_back_in_the_order_of_its_partitions_and_offsets(kafka_topics: Topics) -> None:
    name = kafka_topics.create(2)
    kafka_topics.produce(name, [Record(b"b", partition=1), Record(b"a", b"k", headers=(("h", b"1"),), timestamp_ms=7)])
    first, second = kafka_topics.read(name)
    assert first == Record(b"a", b"k", 0, (("h", b"1"),), 7, 0)
    assert (second.value, second.partition, second.offset) == (b"b", 1, 0)


def test_a_careful_reader_sees_committed_transactions_only(kafka_topics: Topics) -> None:
    name = kafka_topics.create()
    kafka_topics.transaction(name, [b"1", b"2"])
    kafka_topics.transaction(name, [b"x"], abort=True)
    kafka_topics.transaction(name, [b"3"])
    assert [one.value for one in kafka_topics.read(name)] == [b"1", b"2", b"3"]
    assert [one.value for one in kafka_topics.read(name, committed=False)] == [b"1", b"2", b"x", b"3"]


def test_topics_are_cut_off_doubled_and_made_new(kafka_topics: Topics) -> None:
    name = kafka_topics.create(2)
    kafka_topics.produce(name, [b"1", b"2", b"3"])
    kafka_topics.delete_records(name, 2)
    assert (kafka_topics.ends(name, first=True), kafka_topics.ends(name)) == ([2, 0], [3, 0])
    kafka_topics.add_partitions(name, 4)
    assert kafka_topics.partitions(name) == 4
    kafka_topics.recreate(name, 1)
    assert kafka_topics.read(name) == []
    kafka_topics.delete(name)
    assert kafka_topics.partitions(name) == 0


@pytest.mark.long
def test_records_past_their_retention_are_gone(kafka_topics: Topics) -> None:
    name = kafka_topics.create(retention_ms=3_600_000, segment_ms=100)
    kafka_topics.produce(name, [Record(b"old", timestamp_ms=1)])
    while kafka_topics.ends(name, first=True) == [0]:
        kafka_topics.produce(name, [b"new"])  # which ends the segment of the old record
    assert b"old" not in [one.value for one in kafka_topics.read(name)]


@pytest.mark.soak  # tests/spouts/kafka/test_kafka_driver_kills.py kills one each time
def test_the_broker_that_leads_a_partition_is_killed_and_no_record_is_lost(kafka_cluster: KafkaCluster) -> None:
    topics = Topics(kafka_cluster.bootstrap)
    name = topics.create()
    topics.produce(name, [b"before"])
    killed = kafka_cluster.leader(name)
    killed.kill()
    try:
        topics.produce(name, [b"meanwhile"])
        assert kafka_cluster.leader(name) is not killed
    finally:
        kafka_cluster.restart()
    topics.produce(name, [b"after"])
    assert [one.value for one in topics.read(name)] == [b"before", b"meanwhile", b"after"]


def test_a_paused_broker_answers_again_when_it_goes_on(kafka_server: KafkaCluster, kafka_topics: Topics) -> None:
    name = kafka_topics.create()
    (broker,) = kafka_server.brokers
    broker.pause()
    try:
        with pytest.raises(KafkaException):
            kafka_topics.admin.list_topics(name, timeout=0.1)
    finally:
        broker.resume()
    kafka_topics.produce(name, [b"after"])
    assert [one.value for one in kafka_topics.read(name)] == [b"after"]


def test_missing_jars_are_an_error_that_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "JARS", tmp_path)
    with pytest.raises(RuntimeError, match="there is no .*/kafka; run: make servers"):
        start_kafka(tmp_path)
