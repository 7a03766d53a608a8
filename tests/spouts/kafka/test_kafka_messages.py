"""Records of Kafka topics one by one: what is committed, which task reads what, where reading begins, what is refused."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from spouts import KafkaSpout
from spouts.kafka import ByColumns, ByRecord, Json
from tests.harness.kafka_proxy import COMMIT, LIST_OFFSETS, KafkaProxy
from tests.harness.kafka_servers import KafkaCluster
from tests.harness.kafka_topics import Record, Topics
from tests.harness.servers import free_ports
from tests.spouts.driving import OPENED, Task
from tests.spouts.places import FIELDS, KafkaPlace
from trident.errors import ConfigError, SpoutError


@pytest.fixture
def place(kafka_topics: Topics) -> KafkaPlace:
    return KafkaPlace(kafka_topics)


def _abandon(task: Task) -> None:
    """Let a task die: nothing more is committed."""
    OPENED.remove(task)
    task.spout._opened._queue._release()


def _offsets(place: KafkaPlace) -> list[int]:
    return [each.offset for each in place.committed()]


def test_only_what_lies_below_the_lowest_unacked_is_committed_and_nothing_comes_again(place: KafkaPlace) -> None:
    place.fill(range(6))
    task = Task(place.spout())
    ids = [id_ for _, id_ in task.take(6)]
    assert _offsets(place) == [0]
    for at in (4, 2):
        task.spout.ack(ids[at])
    task.until(lambda: json.loads(place.committed()[0].metadata)["done"])
    assert _offsets(place) == [0]
    task.spout.ack(ids[0])
    task.until(lambda: _offsets(place) == [1])
    _abandon(task)
    again = Task(place.spout())
    taken = again.take(3)
    assert [values[0] for values, _ in taken] == ["w1", "w3", "w5"]
    again.spout.ack(taken[0][1])
    again.until(lambda: _offsets(place) == [3])


def test_how_often_a_record_failed_outlives_its_task(place: KafkaPlace) -> None:
    place.fill([1])
    options: dict[str, Any] = {"max_failures": 3, "first_pause_s": 0.01, "dead_letters": True}
    task = Task(place.spout(**options))
    for _ in range(2):
        ((_, id_),) = task.take(1)
        task.spout.fail(id_)
    task.until(lambda: '"failures":[[0,2]]' in place.committed()[0].metadata)
    _abandon(task)
    again = Task(place.spout(**options))
    ((_, id_),) = again.take(1)
    again.spout.fail(id_)
    again.until(lambda: again.errors)
    again.close()
    assert place.dead()[0]["failures"] == 3


@pytest.mark.long
def test_a_partition_waits_for_a_record_that_takes_too_long_and_others_go_on(kafka_topics: Topics) -> None:
    place = KafkaPlace(kafka_topics, partitions=2)
    place.fill(range(10))
    place.fill(range(100, 130), partition=1)
    task = Task(place.spout(max_uncommitted=4, fields="value, partition"))
    seen: list[str] = []

    def answer_all_but_the_first() -> bool:
        for values, id_ in task.collector.emitted:
            seen.append(values[0])
            if values[0] != "w0":
                task.spout.ack(id_)
        task.collector.emitted.clear()
        return _offsets(place)[1] == 30 and "w3" in seen

    task.until(answer_all_but_the_first)
    assert sorted(word for word in seen if len(word) == 2) == ["w0", "w1", "w2", "w3"]
    task.spout.ack((place.topic, 0, 0))
    rest = task.drain(lambda: _offsets(place)[0] == 10)
    assert [values[0] for values in rest] == [f"w{n}" for n in range(4, 10)]


def test_tasks_share_the_partitions_and_a_new_partition_is_found(kafka_topics: Topics) -> None:
    place = KafkaPlace(kafka_topics, partitions=3)
    for partition in range(3):
        place.fill([partition], partition)
    tasks = [Task(place.spout(refresh_s=0.1, first_poll="earliest"), number, 2) for number in range(2)]
    words = [{values[0] for values in _all_of(task)} for task in tasks]
    assert words[0] | words[1] == {"w0", "w1", "w2"}
    assert not words[0] & words[1]
    kafka_topics.add_partitions(place.topic, 4)
    place.fill([3], partition=3)
    tasks[0].until(lambda: tasks[1].spout.next_tuple() or any(each.collector.emitted for each in tasks))
    found = [values[0] for each in tasks for values, _ in each.collector.emitted]
    assert found == ["w3"]


def _all_of(task: Task) -> list[Any]:
    """Acknowledge everything that comes until the task's partitions are at their ends."""
    work = task.spout._opened._queue._work
    ends = dict.fromkeys(work, 1)
    return task.drain(lambda: all(work[spot].low >= end for spot, end in ends.items()) and not task.spout.pending)


def test_latest_begins_behind_what_is_there_but_a_later_partition_at_its_start(place: KafkaPlace) -> None:
    place.fill(range(3))
    task = Task(place.spout(first_poll="latest"))
    _abandon(task)
    place.fill([3])
    place.topics.add_partitions(place.topic, 2)
    place.fill([1], partition=1)
    again = Task(place.spout(first_poll="latest"))
    assert sorted(values[0] for values, _ in again.take(2)) == ["w1", "w3"]


def test_a_topic_found_later_begins_at_its_first_record_also_with_latest(
    place: KafkaPlace, caplog: pytest.LogCaptureFixture
) -> None:
    def spout() -> KafkaSpout:
        pattern = re.compile(place.topic + r"-\d")
        return KafkaSpout(
            place.topics.bootstrap,
            pattern,
            group_id=place.group,
            first_poll="latest",
            refresh_s=0.05,
            value=Json(FIELDS),
        )

    task = Task(spout())
    assert "no topic matches" in caplog.text
    for number in range(2):  # the first while a task runs, the second while none does
        name = place.topics.create(name=f"{place.topic}-{number}")
        place.topics.produce(name, [b'{"word": "w%d", "n": 1}' % number])
        task = Task(spout()) if number else task
        ((values, id_),) = task.take(1)
        assert values[0] == f"w{number}"
        task.spout.ack(id_)
        task.close()


@pytest.mark.parametrize("first_poll", ["latest", datetime(2024, 5, 1, 12, tzinfo=UTC)])
def test_nothing_is_read_before_it_is_safe_where_reading_begins(
    kafka_server: KafkaCluster, place: KafkaPlace, first_poll: Any, impatient: None
) -> None:
    proxy = KafkaProxy(kafka_server)
    at_noon = [Record(b'{"word": "w%d", "n": 1}' % n, timestamp_ms=1714564800000 + n) for n in range(3)]
    if first_poll != "latest":
        place.topics.produce(place.topic, at_noon)
    spout = KafkaSpout(proxy.bootstrap, place.topic, group_id=place.group, first_poll=first_poll, value=Json(FIELDS))
    with proxy.rule("cut", LIST_OFFSETS), pytest.raises(SpoutError):
        Task(spout)
    with (
        proxy.rule("error", COMMIT, names=(place.topic.encode(),)),
        pytest.raises(SpoutError, match="committing where"),
    ):
        Task(spout)
    assert _offsets(place) == [-1001]
    task = Task(spout)
    _abandon(task)
    if first_poll == "latest":
        place.topics.produce(place.topic, at_noon)
    again = Task(spout)
    assert [values[0] for values, _ in again.take(3)] == ["w0", "w1", "w2"]
    again.close()
    proxy.close()


def test_a_datetime_begins_with_the_records_from_then_on(place: KafkaPlace) -> None:
    records = [Record(b'{"word": "w%d", "n": 1}' % day, timestamp_ms=day * 86_400_000) for day in range(1, 5)]
    place.topics.produce(place.topic, records)
    task = Task(place.spout(first_poll=datetime(1970, 1, 4, tzinfo=UTC)))
    assert [values[0] for values, _ in task.take(2)] == ["w3", "w4"]


def test_records_of_transactions_that_were_aborted_hold_up_nothing(place: KafkaPlace) -> None:
    place.fill([0])
    place.topics.transaction(place.topic, [b'{"word": "aborted", "n": 1}'], abort=True)
    place.topics.transaction(place.topic, [b'{"word": "w1", "n": 1}'])
    task = Task(place.spout())
    seen = task.drain(lambda: place.left() == 0)
    assert [values[0] for values in seen] == ["w0", "w1"]


def test_a_topic_that_was_created_again_is_read_from_its_beginning(place: KafkaPlace) -> None:
    place.fill(range(3))
    task = Task(place.spout())
    task.drain(lambda: place.left() == 0)
    task.close()
    place.topics.recreate(place.topic)
    place.fill([7, 8, 9, 10])
    again = Task(place.spout())
    assert [values[0] for values, _ in again.take(4)] == ["w7", "w8", "w9", "w10"]


def test_a_topic_created_again_while_a_task_reads_it_loses_none_of_its_records(place: KafkaPlace) -> None:
    place.fill(range(5))
    task = Task(place.spout(refresh_s=0.05))
    task.drain(lambda: place.left() == 0)
    place.topics.recreate(place.topic)
    place.fill(range(20, 30))
    with pytest.raises(SpoutError, match="deleted and created again.*the worker starts again at its beginning"):
        task.until(lambda: False)
    task.close()
    again = Task(place.spout())
    assert [values[0] for values, _ in again.take(10)] == [f"w{n}" for n in range(20, 30)]


def test_a_record_that_its_dead_letters_do_not_take_holds_up_no_other(place: KafkaPlace) -> None:
    large = place.topics.create(max_message_bytes=5 << 20)
    place.topics.produce(large, [bytes(2 << 20), b"small"], message_max_bytes=5 << 20)
    options: dict[str, Any] = {"dead_letters": place.dead_topic, "max_failures": 1, "group_id": place.group}
    task = Task(KafkaSpout(place.topics.bootstrap, large, **options))
    (_, bad), (_, good) = task.take(2)
    task.spout.fail(bad)
    task.spout.ack(good)
    task.until(lambda: task.errors)
    assert re.search("writing a dead letter to topic .*Message size too large", task.errors[0])
    _abandon(task)


def test_records_that_were_deleted_before_they_were_read_are_refused_or_skipped(place: KafkaPlace) -> None:
    place.fill(range(5))
    task = Task(place.spout(max_pending=1))
    ((_, id_),) = task.take(1)
    task.spout.ack(id_)
    task.until(lambda: _offsets(place) == [1])
    _abandon(task)
    place.topics.delete_records(place.topic, 3)
    with pytest.raises(SpoutError, match='begins at 3 now: 2 offsets were deleted.*on_data_loss="skip"'):
        Task(place.spout())
    again = Task(place.spout(on_data_loss="skip"))
    assert [values[0] for values, _ in again.take(2)] == ["w3", "w4"]


def test_a_function_of_records_may_leave_some_out(place: KafkaPlace) -> None:
    place.fill(range(4))
    even = ByRecord("n: bigint", lambda record: (record.offset,) if record.offset % 2 == 0 else None)
    task = Task(place.spout(value=even))
    assert task.drain(lambda: place.left() == 0) == [(0,), (2,)]


@pytest.mark.long
def test_it_goes_on_after_a_restart_of_the_broker(kafka_server: KafkaCluster, place: KafkaPlace) -> None:
    place.fill(range(6))
    task = Task(place.spout())
    taken = task.take(6)
    kafka_server.brokers[0].kill()
    try:
        for _, id_ in taken[:2]:
            task.spout.ack(id_)
        task.spout.fail(taken[2][1])
        task.until(lambda: task.errors)
        assert re.search("no broker answers|asking for topic .* Check bootstrap_servers", task.errors[0])
    finally:
        kafka_server.restart()
    place.fill([6])
    (work,) = task.spout._opened._queue._work.values()
    seen = task.drain(lambda: work.position == 7 and task.spout.pending == 3 and _offsets(place) == [3])
    assert sorted(values[0] for values in seen) == ["w2", "w6"]
    assert len(task.errors) == 1


@pytest.mark.server
def test_a_broker_that_is_not_there_is_named(impatient: None) -> None:
    (port,) = free_ports(1)
    spout = KafkaSpout(f"127.0.0.1:{port}", "t", group_id="g")
    with pytest.raises(SpoutError, match=f"127.0.0.1:{port}.*Check bootstrap_servers, and that the broker runs"):
        Task(spout)


def test_a_topic_that_is_not_there_is_told(place: KafkaPlace) -> None:
    missing: list[dict[str, Any]] = [
        {"topics": "no-such-topic"},
        {"topics": place.topic, "dead_letters": "no-such-topic"},
    ]
    for given in missing:
        with pytest.raises(SpoutError, match="topic 'no-such-topic' is not there on .*Create it"):
            Task(KafkaSpout(place.topics.bootstrap, group_id="g", **given))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"group_id": ""}, "group_id=''"),
        ({"first_poll": "committed"}, "first_poll='committed' of KafkaSpout: give 'earliest', 'latest' or a datetime"),
        ({"value": ByColumns("n: bigint", lambda table: table)}, "of KafkaSpout: give 'bytes', .* or a ByRecord"),
        ({"dead_letters": "t"}, "dead_letters='t' is a topic that is read"),
        ({"max_uncommitted": 0}, "max_uncommitted=0"),
        ({"commit_every_s": 0}, "commit_every_s=0"),
        ({"max_pending": -1}, "max_pending=-1"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], text: str) -> None:
    given = {"bootstrap_servers": "h:1", "topics": "t", "group_id": "g", "value": Json(FIELDS), **options}
    with pytest.raises(ConfigError, match=text):
        KafkaSpout(**given)
