"""Brokers that are away, and records, partitions and topics that are gone: each is told by name, none is skipped in silence."""

import time
from typing import Any, Literal

import pytest

from spouts.kafka import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from tests.harness.kafka_topics import Record, Topics
from tests.harness.servers import free_ports
from tests.spouts.kafka.kafka_batches import Batches, batches, spans
from trident.errors import ReplayMismatchError, SpoutError


def ask_for_seconds(made: Batches) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        made.next()


@pytest.mark.long
def test_a_wrong_address_is_told_within_seconds_and_librdkafka_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    began = time.monotonic()
    with pytest.raises(SpoutError, match=rf"no broker answered at 127.0.0.1:{port}.*refused.*Check bootstrap_servers"):
        OpaqueTridentKafkaSpout(f"127.0.0.1:{port}", "t").get_coordinator({})
    assert time.monotonic() - began < 10
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_a_broker_without_tls_is_told_with_the_settings_to_check(kafka_topics: Topics) -> None:
    spout = OpaqueTridentKafkaSpout(kafka_topics.bootstrap, "t", config={"security.protocol": "SSL"})
    with pytest.raises(SpoutError, match=r"PLAINTEXT broker listener.*security.protocol, sasl.\* and ssl.\* in config"):
        spout.get_coordinator({})


def test_a_topic_that_is_not_there_is_named(kafka_topics: Topics) -> None:
    with pytest.raises(SpoutError, match="topic 'no-such' is not there"):
        OpaqueTridentKafkaSpout(kafka_topics.bootstrap, "no-such").get_coordinator({})
    topic = kafka_topics.create()
    with pytest.raises(SpoutError, match=f"partition 7 of topic '{topic}' is not there"):
        OpaqueTridentKafkaSpout(kafka_topics.bootstrap, {topic: [7]}).get_coordinator({})


def test_an_unknown_setting_of_the_client_is_named(kafka_topics: Topics) -> None:
    with pytest.raises(SpoutError, match='No such configuration property: "sasl.pasword"'):
        OpaqueTridentKafkaSpout(kafka_topics.bootstrap, "t", config={"sasl.pasword": "x"}).get_coordinator({})


@pytest.fixture
def hundred(kafka_topics: Topics) -> str:
    """Return a topic of a hundred records, which are their numbers."""
    return kafka_topics.filled([b"%d" % n for n in range(100)])


def test_records_that_retention_deleted_before_they_were_read_are_told_or_skipped(
    kafka_topics: Topics, hundred: str, caplog: pytest.LogCaptureFixture
) -> None:
    with batches(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, hundred, max_batch_records=10)) as made:
        made.next()
        kafka_topics.delete_records(hundred, 50)
        made.restart()
        with pytest.raises(
            SpoutError, match=r"read up to offset 10, and begins at 50 now: 40 offsets were deleted.*on_data_loss"
        ):
            made.next()
        made.restart(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, hundred, on_data_loss="skip"))
        assert [int(value) for (value,) in made.rest()] == list(range(50, 100))
        assert made.coordinator._positions.skipped == 40
    assert "reading goes on at offset 50 (40 offsets skipped)" in caplog.text


def test_a_replay_of_records_that_are_gone_is_refused_or_without_them(
    kafka_topics: Topics, hundred: str, caplog: pytest.LogCaptureFixture
) -> None:
    with batches(TransactionalTridentKafkaSpout(kafka_topics.bootstrap, hundred)) as made:
        definition = made.define()
        assert definition is not None
        assert len(made.read(definition)) == 100
        kafka_topics.delete_records(hundred, 30)
        made.restart()
        with pytest.raises(
            ReplayMismatchError, match=r"offsets 0 to 100 of .* which has 30 to 100 now: its first 30 offsets"
        ):
            made.read(definition)
        made.restart(TransactionalTridentKafkaSpout(kafka_topics.bootstrap, hundred, on_data_loss="skip"))
        assert [int(value) for (value,) in made.read(definition)] == list(range(30, 100))
    assert f"offsets 0 to 30 of partition 0 of topic '{hundred}' are gone and were left out" in caplog.text


def test_a_topic_that_was_created_again_is_told_apart(kafka_topics: Topics) -> None:
    topic = kafka_topics.filled([b"%d" % n for n in range(10)])
    with batches(TransactionalTridentKafkaSpout(kafka_topics.bootstrap, topic, max_batch_records=5)) as made:
        made.next()
        second = made.define()
        kafka_topics.recreate(topic)
        kafka_topics.produce(topic, [b"new"] * 20)
        with pytest.raises(ReplayMismatchError, match=f"topic '{topic}' had the id .* deleted and created again"):
            made.read(second)
        made.restart()
        with pytest.raises(ReplayMismatchError, match="deleted and created again"):
            made.next()
        made.restart(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, on_data_loss="skip"))
        assert made.rest() == [(b"new",)] * 20


def test_a_topic_that_was_deleted_is_told(kafka_topics: Topics) -> None:
    topic, other = kafka_topics.filled([b"1"]), kafka_topics.filled([b"2"])
    spout = OpaqueTridentKafkaSpout(kafka_topics.bootstrap, [topic, other], refresh_s=0.001)
    with batches(spout) as made:
        assert len(made.rest()) == 2
        kafka_topics.delete(topic)
        with pytest.raises(SpoutError, match=f"topic '{topic}' was read before; it is not there any more"):
            ask_for_seconds(made)
        made.restart(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, other))  # taken out of topics, as the error says
        kafka_topics.produce(other, [b"3"])
        assert made.rest() == [(b"3",)]


def test_a_topic_created_again_with_fewer_records_is_read_whole(kafka_topics: Topics) -> None:
    """The reader has asked for what came next in the old one, and hears only later that there is no such offset."""
    topic = kafka_topics.filled([b"old"] * 10)
    spout = TransactionalTridentKafkaSpout(kafka_topics.bootstrap, topic, on_data_loss="skip", refresh_s=0.001)
    with batches(spout) as made:
        assert len(made.rest()) == 10
        kafka_topics.recreate(topic)
        kafka_topics.produce(topic, [b"new"] * 3)
        assert made.until(3) == [(b"new",)] * 3


def test_a_defined_batch_of_a_topic_created_again_is_left_out_where_that_may_be(kafka_topics: Topics) -> None:
    topic, other = kafka_topics.filled([b"old"] * 10), kafka_topics.filled([b"old"] * 10)
    spout = TransactionalTridentKafkaSpout(kafka_topics.bootstrap, [topic, other], on_data_loss="skip")
    with batches(spout) as made:
        defined = made.define()
        kafka_topics.recreate(topic)
        kafka_topics.produce(topic, [b"new"] * 20)
        made.restart()
        assert made.read(defined) == [(b"old",)] * 10
        assert made.until(20) == [(b"new",)] * 20


def test_a_transactional_spout_refuses_a_compacted_topic(kafka_topics: Topics) -> None:
    topic = kafka_topics.create(cleanup_policy="compact")
    with pytest.raises(SpoutError, match=f"topic '{topic}' is compacted.*Use OpaqueTridentKafkaSpout"):
        TransactionalTridentKafkaSpout(kafka_topics.bootstrap, topic).get_coordinator({})


@pytest.mark.long
def test_an_opaque_spout_reads_what_compaction_left(kafka_topics: Topics) -> None:
    settings: dict[str, Any] = {
        "cleanup_policy": "compact", "segment_ms": 1, "min_cleanable_dirty_ratio": 0, "max_compaction_lag_ms": 1,
        "segment_bytes": 1 << 20,
    }  # fmt: skip
    topic = kafka_topics.create(**settings)
    for n in range(30):
        kafka_topics.produce(topic, [Record(b"%d" % n, b"%d" % (n % 3))])
    deadline = time.monotonic() + 60
    while len(left := kafka_topics.read(topic)) == 30:
        assert time.monotonic() < deadline, "the broker does not compact"
        kafka_topics.produce(topic, [Record(b"last", b"other")])  # only closed segments are compacted
    before = [one.offset for one in kafka_topics.read(topic)]
    with batches(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, max_batch_records=7, fields="offset")) as made:
        emitted = [offset for (offset,) in made.rest()]
    after = [one.offset for one in kafka_topics.read(topic)]  # the broker may have compacted more meanwhile
    assert emitted == sorted(set(emitted))
    assert set(after) <= set(emitted) <= set(before)
    assert len(left) < 30


@pytest.mark.parametrize("on_data_loss", ["fail", "skip"])
def test_records_that_come_between_two_tries_hide_no_lost_end_from_the_second(
    kafka_topics: Topics, on_data_loss: Literal["fail", "skip"]
) -> None:
    """Of a broker that knows no epochs: offsets are all that is known."""
    topic = kafka_topics.filled([b"%d" % n for n in range(20)])
    with batches(OpaqueTridentKafkaSpout(kafka_topics.bootstrap, topic, on_data_loss=on_data_loss)) as made:
        made.next()
        ranges = made.definitions[0]["topics"][topic]["ranges"]
        ranges[2], ranges[3] = 50, -1  # as if it had ended at 50 then
        for _ in range(2):
            if on_data_loss == "fail":
                with pytest.raises(SpoutError, match="50, and ends at 20 now: 30 offsets that were read were lost"):
                    made.next()
            else:
                chosen = made.define()
                assert chosen is not None
                assert made.coordinator.traits(chosen).is_start_position  # so it is in the log whatever comes next
                assert spans(chosen) == [(0, 20, 20)]
                kafka_topics.produce(topic, [b"2"] * 10)
                assert made.rest() == [(b"2",)] * 10
                break
            kafka_topics.produce(topic, [b"new"] * 60)
