"""Each record is in exactly one batch, in the order of its partition, and a replay has the same records."""

import datetime
import re
import time
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from spouts.kafka import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from spouts.kafka.range_coordinator import BatchLimits
from spouts.kafka.range_reader import READERS
from tests.harness.kafka_topics import Record, Topics
from tests.spouts.kafka.kafka_batches import BOTH, Batches, Kind, batches, spans
from trident.spout import Lag, SpoutType, TransactionAttempt


def numbered(count: int, partitions: int = 1, start: int = 0) -> list[Record]:
    return [Record(b"%d" % n, partition=n % partitions) for n in range(start, start + count)]


def of_group(topics: Topics, group: str, topic: str) -> int:
    """Return the offset that a consumer group has committed of partition 0, as a monitor of lag sees it."""
    (futures,) = topics.admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])]
    ).values()
    (found,) = futures.result(30).topic_partitions
    return int(found.offset)


def test_the_spouts_say_what_they_promise() -> None:
    assert OpaqueTridentKafkaSpout("h:1", "t").spout_type is SpoutType.OPAQUE
    assert TransactionalTridentKafkaSpout("h:1", "t").spout_type is SpoutType.TRANSACTIONAL


@BOTH
def test_a_backlog_is_read_in_bounded_batches_each_record_once_and_in_order(kafka_topics: Topics, kind: Kind) -> None:
    topic = kafka_topics.filled(numbered(1000, 3), 3)
    with batches(kind(kafka_topics.bootstrap, topic, fields="partition, value", max_batch_records=150)) as made:
        found = []
        while (rows := made.next()) is not None:
            assert 0 < len(rows) <= 150
            found += rows
        for partition in range(3):
            assert [int(value) for at, value in found if at == partition] == list(range(partition, 1000, 3))
        assert made.next() is None


@BOTH
def test_a_new_driver_goes_on_where_the_log_says_and_replays_the_same(kafka_topics: Topics, kind: Kind) -> None:
    topic = kafka_topics.filled(numbered(100, 2), 2)
    with batches(kind(kafka_topics.bootstrap, topic, max_batch_records=40)) as made:
        first = made.next()
        second = made.define()
        before = made.read(second)
        kafka_topics.produce(topic, numbered(20, 2, start=100))  # what is there now must not change the batch
        made.restart()
        assert made.read(second) == before
        assert sorted(int(value) for (value,) in [*(first or []), *before, *made.rest()]) == list(range(120))


def test_parts_do_not_change_what_is_read(kafka_topics: Topics) -> None:
    topic = kafka_topics.filled([Record(bytes(10_000), b"%d" % n, n % 3) for n in range(600)], 3)
    with batches(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, fields="partition, offset, key")) as made:
        definition = made.define()
        counts, read = set(), []
        for parallelism in (1, 2, 5):
            made.parallelism = parallelism
            counts.add(len(made.coordinator.parts(TransactionAttempt(1, 0), definition, parallelism)))
            read.append(made.read(definition))
        assert counts == {1, 2, 5}
        assert read[0] == read[1] == read[2]
        assert len(read[0]) == 600


def test_every_column_is_there_if_asked_for(kafka_topics: Topics) -> None:
    topic = kafka_topics.create(2)
    at = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
    headers = (("a", b"1"), ("a", b"2"), ("b", None))
    records = [Record(b"v", b"k\xc3\xa9", 1, headers, int(at.timestamp() * 1000)), Record(None, None, 1)]
    kafka_topics.produce(topic, records)
    every = "topic, headers, offset, partition, timestamp, key, value"
    with batches(
        OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, fields=every, key="text", value="text")
    ) as made:
        first, second = made.next() or []
    told = [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}, {"key": "b", "value": None}]
    assert first == (topic, told, 0, 1, at, "ké", "v")
    assert second[:4] == (topic, [], 1, 1)
    assert second[5:] == (None, None)


def test_records_of_transactions_that_were_aborted_are_left_out(kafka_topics: Topics) -> None:
    topic = kafka_topics.create()
    kafka_topics.transaction(topic, [b"1", b"2"])
    kafka_topics.transaction(topic, [b"x"] * 500, abort=True)
    kafka_topics.transaction(topic, [b"3"])
    committed = OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, max_batch_records=7, value="text")
    every = OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, isolation="read_uncommitted")
    with batches(committed) as made:
        assert made.rest() == [("1",), ("2",), ("3",)]
        assert spans(made.definitions[-1])[0][2] == 506  # each transaction ends with a mark, which takes an offset
    with batches(every) as made:
        assert len(made.rest()) == 503


def test_records_of_an_open_transaction_wait_until_it_is_committed(kafka_topics: Topics) -> None:
    topic = kafka_topics.create()
    producer = kafka_topics.producer(transactional_id="open")
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"in", partition=0)
    producer.flush(30)
    kafka_topics.produce(topic, [b"behind"])
    with batches(TransactionalTridentKafkaSpout(kafka_topics.bootstrap, topic)) as made:
        assert made.next() is None
        producer.commit_transaction(30)
        assert made.until(2) == [(b"in",), (b"behind",)]  # the mark is written after the answer


def test_partitions_that_are_added_are_read_from_their_first_record(kafka_topics: Topics) -> None:
    topic = kafka_topics.filled(numbered(10, 2), 2)
    spout = TransactionalTridentKafkaSpout(kafka_topics.bootstrap, topic, first_poll="latest", refresh_s=0.001)
    with batches(spout) as made:
        assert made.next() == []  # where it begins is written down at once
        kafka_topics.add_partitions(topic, 4)
        kafka_topics.produce(topic, numbered(8, 4, start=100))
        assert sorted(made.rest()) == [(b"%d" % n,) for n in range(100, 108)]


def test_a_pattern_finds_topics_that_are_created_later(kafka_topics: Topics) -> None:
    prefix = kafka_topics.create() + "-some"
    spout = OpaqueTridentKafkaSpout(
        kafka_topics.bootstrap, re.compile(prefix + r"\d"), fields="topic, value", refresh_s=0.001, first_poll="latest"
    )
    kafka_topics.create(name=prefix + "1")
    kafka_topics.create(name=prefix + "x")
    kafka_topics.produce(prefix + "1", [b"old"])
    with batches(spout) as made:
        assert made.next() == []
        kafka_topics.create(name=prefix + "2")
        kafka_topics.produce(prefix + "2", [b"first"])
        kafka_topics.produce(prefix + "1", [b"new"])
        assert made.rest() == [(prefix + "1", b"new"), (prefix + "2", b"first")]


def test_assigned_partitions_are_the_only_ones(kafka_topics: Topics) -> None:
    topic = kafka_topics.filled(numbered(9, 3), 3)
    with batches(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, {topic: [0, 2]}, fields="partition")) as made:
        assert {partition for (partition,) in made.rest()} == {0, 2}


def test_the_first_poll_chooses_where_a_new_log_begins_and_no_later_one(kafka_topics: Topics) -> None:
    topic = kafka_topics.create()
    at = datetime.datetime.now(datetime.UTC)
    stamps = [int(at.timestamp() * 1000) + 1000 * n for n in range(5)]
    kafka_topics.produce(topic, [Record(b"%d" % n, timestamp_ms=ms) for n, ms in enumerate(stamps)])

    def first(first_poll: Any, **options: Any) -> Batches:
        return Batches(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, first_poll=first_poll, **options))

    from_then = first(at + datetime.timedelta(seconds=2.5))
    assert from_then.rest() == [(b"3",), (b"4",)]
    latest = first("latest")
    assert latest.rest() == []
    kafka_topics.produce(topic, [b"5"])
    latest.restart()
    assert latest.rest() == [(b"5",)]  # although it is in the log that begins at the latest
    of_group = first("earliest", group_id="of-" + topic, max_batch_records=4)
    of_group.next()
    of_group.close()
    committed = first("committed", group_id="of-" + topic)
    assert committed.rest() == [(b"4",), (b"5",)]
    for made in (from_then, latest, committed):
        made.close()


def test_offsets_are_committed_to_the_group_after_the_record(kafka_topics: Topics) -> None:
    topic = kafka_topics.filled(numbered(10))
    with batches(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, group_id="for-monitors-" + topic)) as made:
        definition = made.define()
        made.read(definition)
        assert of_group(kafka_topics, "for-monitors-" + topic, topic) < 0
        made.coordinator.success(1, definition)
    assert of_group(kafka_topics, "for-monitors-" + topic, topic) == 10
    with batches(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, group_id="for-monitors-" + topic)) as again:
        assert len(again.rest()) == 10  # they are not read back


def test_lag_says_how_many_offsets_are_behind_a_batch(kafka_topics: Topics) -> None:
    topic = kafka_topics.filled(numbered(100, 2), 2)
    with batches(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, max_batch_records=30)) as made:
        lags = []
        while (definition := made.define()) is not None:
            lags.append(made.coordinator.lag(definition))
    assert lags == [Lag(70, "records"), Lag(40, "records"), Lag(10, "records"), Lag(0, "records")]


def test_throttled_batches_are_smaller_and_never_empty(kafka_topics: Topics) -> None:
    topic = kafka_topics.filled(numbered(100))
    with batches(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, max_batch_records=40)) as made:
        made.coordinator.throttle(0.25)
        assert len(made.next() or []) == 10
        made.coordinator.throttle(0.0001)
        assert len(made.next() or []) == 1
        made.coordinator.throttle(1.0)
        assert len(made.next() or []) == 40


def test_bytes_bound_a_batch_by_the_size_of_records_at_its_beginning_and_end(kafka_topics: Topics) -> None:
    topic = kafka_topics.filled([bytes(100)] * 1000 + [bytes(10_000)] * 1000)
    spout = OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, max_batch_bytes=1_000_000)
    with batches(spout) as made:
        sizes = []
        while (rows := made.next()) is not None:
            sizes.append(sum(len(value) for (value,) in rows))
            assert (made.coordinator.size(made.definitions[-1]) or 0) <= 1_000_000
    assert sum(sizes) == 10_100_000
    assert max(sizes) <= 1_000_000


def test_consumers_stay_open_between_batches_and_are_closed_with_the_topology(kafka_topics: Topics) -> None:
    topic = kafka_topics.filled(numbered(10))
    before = len(READERS._idle)
    with batches(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, max_batch_records=5)) as made:
        made.rest()
        assert len(READERS._idle) == before + 1
    assert len(READERS._idle) == before


def test_seconds_bound_a_batch_by_the_speed_of_those_before_it() -> None:
    limits = BatchLimits(500_000, 1 << 30, 0.01, lambda starts, most, patience: dict.fromkeys(starts, 1.0))
    first = limits.records
    assert first == 10_000  # a speed is not known yet
    limits.note_defined(1, first)
    time.sleep(0.1)
    limits.note_done(1)
    assert 1 <= limits.records <= first / 10  # it took ten times as long as it may
    unbounded = BatchLimits(500_000, 1 << 30, 1000.0, lambda starts, most, patience: dict.fromkeys(starts, 1.0))
    unbounded.note_defined(1, 10_000)
    unbounded.note_done(1)
    assert unbounded.records == 40_000  # and grows by steps
