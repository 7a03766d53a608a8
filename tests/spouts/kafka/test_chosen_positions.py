"""Where reading begins is chosen once, written down before anything else, and kept: it does not move while nothing comes."""

import logging
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.harness.kafka_topics import Record, Topics
from tests.spouts.kafka.kafka_batches import BOTH, Kind, batches

OLD, NEW = [b"old"] * 20, [b"new"] * 20


@pytest.mark.sample(1)
@BOTH
@pytest.mark.parametrize("first_poll", ["latest", datetime.now(UTC) + timedelta(days=1)])
def test_a_topic_that_is_added_begins_there_however_quiet_the_others_are(
    kafka_topics: Topics, kind: Kind, first_poll: Any
) -> None:
    first, added = kafka_topics.create(), kafka_topics.filled(OLD)
    with batches(kind(kafka_topics.bootstrap, first, first_poll=first_poll)) as made:
        assert made.rest() == []
        made.restart(kind(kafka_topics.bootstrap, [first, added], first_poll=first_poll))
        chosen = made.define()
        assert chosen is not None
        assert made.coordinator.traits(chosen).is_start_position
        made.restart()
        kafka_topics.produce(added, NEW)
        made.restart()
        assert made.rest() == [(b"new",)] * 20


@pytest.mark.sample(1)
@BOTH
def test_a_batch_that_says_where_a_topic_begins_has_no_records(kafka_topics: Topics, kind: Kind) -> None:
    """Otherwise an opaque spout would have to read the same ones again, whichever partitions are away."""
    first, added = kafka_topics.filled(OLD), kafka_topics.filled(OLD)
    at_noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    with batches(kind(kafka_topics.bootstrap, [first, added], first_poll=at_noon)) as made:
        assert made.next() == []
        assert len(made.rest()) == 40


@BOTH
def test_a_pattern_that_matched_nothing_at_first_reads_the_first_topic_whole(kafka_topics: Topics, kind: Kind) -> None:
    prefix = kafka_topics.create() + "-later"
    spout = kind(kafka_topics.bootstrap, re.compile(prefix + ".*"), first_poll="latest", refresh_s=0.001)
    with batches(spout) as made:
        assert made.next() == []
        made.restart()
        kafka_topics.create(name=prefix + "1")
        kafka_topics.produce(prefix + "1", NEW * 2)
        assert made.rest() == [(b"new",)] * 40


@pytest.mark.sample(2)
@BOTH
@pytest.mark.parametrize("sees_it_gone", [True, False])
def test_a_topic_that_was_created_again_is_read_from_its_beginning_with_latest_too(
    kafka_topics: Topics, kind: Kind, sees_it_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spouts.kafka.positions.THERE_S", 0.05)
    topic, other = kafka_topics.create(), kafka_topics.create()
    spout = kind(kafka_topics.bootstrap, [topic, other], first_poll="latest", on_data_loss="skip", refresh_s=0.001)
    with batches(spout) as made:
        assert made.next() == []
        kafka_topics.produce(topic, OLD)
        assert made.rest() == [(b"old",)] * 20
        kafka_topics.delete(topic)
        if sees_it_gone:
            kafka_topics.produce(other, OLD)
            assert made.until(20) == [(b"old",)] * 20
        kafka_topics.create(name=topic)
        kafka_topics.produce(topic, NEW * 2)
        if not sees_it_gone:
            made.restart()
        assert made.until(40) == [(b"new",)] * 40
        assert made.next() is None


@BOTH
def test_partitions_that_come_before_a_topic_is_read_do_not_move_its_beginning(
    kafka_topics: Topics, kind: Kind
) -> None:
    topic = kafka_topics.create()
    with batches(kind(kafka_topics.bootstrap, topic, first_poll="latest", refresh_s=0.001)) as made:
        assert made.next() == []
        kafka_topics.add_partitions(topic, 2)
        kafka_topics.produce(topic, [Record(b"new", partition=1)] * 20)
        made.restart()
        assert made.rest() == [(b"new",)] * 20


@pytest.mark.sample(1)
@BOTH
@pytest.mark.parametrize("how", ["names", "pattern", "partitions"])
def test_what_topics_no_longer_names_rests_and_goes_on_there_when_back(
    kafka_topics: Topics, kind: Kind, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = kafka_topics.create()
    stays, goes = kafka_topics.create(name=prefix + "-a"), kafka_topics.create(name=prefix + "-b")
    all_of = {stays: [0], goes: [0]}
    both: Any = {"names": [stays, goes], "pattern": re.compile(prefix + "-.*"), "partitions": all_of}[how]
    one: Any = {"names": [stays], "pattern": re.compile(prefix + "-a"), "partitions": {stays: [0]}}[how]

    def spout(topics: Any) -> Any:
        return kind(kafka_topics.bootstrap, topics, fields="topic, value", first_poll="latest")

    with batches(spout(both)) as made, caplog.at_level(logging.WARNING):
        made.next()
        for name in (stays, goes):
            kafka_topics.produce(name, [b"1"])
        assert len(made.rest()) == 2
        made.restart(spout(one))
        for name in (stays, goes):
            kafka_topics.produce(name, [b"2"])
        assert made.rest() == [(stays, b"2")]
        assert f"partition 0 of topic '{goes}' was read up to offset 1 and is not in topics any more" in caplog.text
        made.restart(spout(both))
        assert made.rest() == [(goes, b"2")]
