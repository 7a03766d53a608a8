"""Which offsets of a partition are done, against sets of single offsets; and what is committed beside them."""

import json
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from confluent_kafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from spouts import KafkaSpout
from spouts.kafka import topic_queue
from spouts.kafka.clients import OffsetBounds, Spot, TopicView
from spouts.kafka.offset_commits import Commits, PartitionWork
from spouts.kafka.positions import GroupPositions
from trident.errors import SourceAwayError, SpoutError

SPOT = Spot("topic", 0)


def work_of(start: int, done: Sequence[tuple[int, int]], failures: dict[int, int]) -> PartitionWork:
    """Return the work after a restart: some ranges behind the lowest offset are done already."""
    numbers, before = [], start
    for first, end in done:
        numbers += [first - before, end - first]
        before = end
    told = [[at - start, count] for at, count in failures.items()]
    notes = {"trident": 1, "topic": "i" * 22, "partitions": 1000, "failures": told, "done": numbers}
    return PartitionWork.of(TopicPartition(*SPOT, start, json.dumps(notes)))


def committed_by(work: PartitionWork) -> TopicPartition:
    commit = work.to_commit(SPOT)
    assert isinstance(commit, TopicPartition)
    return commit


@given(st.integers(0, 5), st.sets(st.integers(0, 40)), st.integers())
def test_each_record_is_processed_until_it_is_done_across_restarts(start: int, there: set[int], seed: int) -> None:
    random, work, done, given = Random(seed), PartitionWork(start, -1), set[int](), set[int]()
    left = sorted(offset for offset in there if offset >= start)
    coming = left
    while left := [offset for offset in left if offset not in done]:
        lowest = left[0] if left[0] in given else work.position
        assert work.low == lowest
        behind = {offset for first, end in work.done for offset in range(first, end)}
        assert behind & there == {offset for offset in done if offset >= lowest}
        assert not behind & {*left}
        if random.random() < 0.1:
            work.commit_again()
            work = PartitionWork.of(committed_by(work))
            coming, given = [offset for offset in sorted(there) if offset >= work.low], set()
        elif coming and random.random() < 0.5:
            offset, *coming = coming
            assert work.arrive(offset, None) == (offset not in done)
            assert not work.arrive(offset, None), "it came before"
            given.add(offset)
        elif pending := sorted(given - done):
            done.add(offset := random.choice(pending))
            work.finish(offset)
    assert work.low == work.position, "what is no record holds up nothing"


def test_the_end_of_a_partition_may_lie_behind_its_last_record() -> None:
    work = PartitionWork(3, -1)
    assert work.arrive(3, None)
    work.skip_to(6)  # the mark of a transaction
    assert (work.low, work.position) == (3, 6)
    work.finish(3)
    assert (work.low, list(work.done)) == (6, [])


@given(
    st.integers(0, 10**12),
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), max_size=30),
    st.dictionaries(st.integers(0, 1000), st.integers(1, 100), max_size=10),
)
def test_notes_are_read_as_they_were_written(
    offset: int, steps: list[tuple[int, int]], failures: dict[int, int]
) -> None:
    done, at = [], offset
    for distance, length in steps:
        done.append((at + distance, at + distance + length))
        at = done[-1][1]
    failures = {offset + each: count for each, count in failures.items()}
    read = PartitionWork.of(committed_by(work_of(offset, done, failures)))
    assert (read.topic_id, read.partitions) == ("i" * 22, 1000)
    assert (list(read.done), read.failures) == (done, failures)
    read.begin("i" * 22, 1000)
    assert read.to_commit(SPOT) is None, "it is committed already"


def test_notes_have_room_in_what_kafka_keeps_and_leave_out_what_is_farthest() -> None:
    done = [(at, at + 1) for at in range(10**12, 10**12 + 100_000, 2)]
    commit = committed_by(work_of(10**12 - 1, done, {10**12 + at: 10**6 for at in range(1, 1000)}))
    assert len(commit.metadata or "") <= 4096
    read = PartitionWork.of(commit)
    found = list(read.done)
    assert found == done[: len(found)]
    assert len(found) > 500
    assert len(read.failures) == 60


@pytest.mark.parametrize(
    "text", [None, "", "a note of another program", "[]", '{"trident": 2}', '{"trident":1,"done":[1]}', "7"]
)
def test_what_another_program_committed_says_nothing(text: str | None) -> None:
    commit = TopicPartition("topic", 0, 5) if text is None else TopicPartition("topic", 0, 5, text)
    work = PartitionWork.of(commit)
    assert (work.topic_id, work.partitions, work.failures, list(work.done), work.low) == ("", 0, {}, [], 5)


def test_what_was_done_from_an_offset_on_is_forgotten_where_a_partition_was_cut_off() -> None:
    work = work_of(5, [(8, 12), (15, 20)], {9: 1, 16: 2})
    assert work.furthest == 20
    work.move(18, 5, 7)
    assert (list(work.done), work.position, work.epoch) == ([(8, 12), (15, 18)], 5, 7)
    for offset in (5, 6, 7, 12, 13):
        assert work.arrive(offset, 7)
    work.move(13, 13, 8)
    work.finish(13)  # of the record that was there before
    assert (list(work.done), work.failures, work.position, work.low) == ([(8, 12)], {9: 1}, 13, 5)
    assert [work.arrive(offset, 8) for offset in (12, 13, 15)] == [False, True, True]
    work.move(3, 3, 8)
    assert (list(work.done), work.failures, work.position, work.low) == ([], {}, 3, 3)


def test_of_a_partition_cut_and_grown_again_nothing_behind_the_position_is_done() -> None:
    """The client says "out of range", and when the broker is asked, the partition has other records at these offsets."""
    seen = [OffsetBounds(0, 40, 1), OffsetBounds(0, 40, 2)]
    notes = {"trident": 1, "topic": "A", "partitions": 1, "failures": [], "done": [5, 2]}  # 35 and 36
    answer = TopicPartition(*SPOT, 30, json.dumps(notes), 1)
    brokers = SimpleNamespace(
        options=KafkaSpout("b", SPOT.topic, group_id="g")._options,
        committed=lambda _: [answer],
        bounds=lambda spots: dict.fromkeys(spots, seen.pop(0)),
        truncations=dict.fromkeys,
    )
    positions = GroupPositions(cast(Any, brokers), 0, 1)
    work = positions.starts({SPOT: True}, {SPOT.topic: TopicView("A", {0: 1}, {})}, True)[SPOT]
    assert list(work.done) == [(35, 37)]
    assert all(work.arrive(offset, 1) for offset in range(30, 35))  # and 35 is asked for
    assert positions.move(SPOT, work, None)
    assert [offset for offset in range(30, 40) if work.arrive(offset, 2)] == [*range(35, 40)]


class Taken:
    """What a consumer gives: a record, or that there is none at its position."""

    def __init__(self, partition: int, offset: int, error: str = "") -> None:
        self.topic, self.partition, self.offset = lambda: SPOT.topic, lambda: partition, lambda: offset
        self.error = lambda: cast("Any", SimpleNamespace(name=lambda: error, str=lambda: error)) if error else None
        self.leader_epoch, self.value = lambda: 0, lambda: b"x"


def queue_of(monkeypatch: pytest.MonkeyPatch, taken: Sequence[Taken], place: int) -> Any:
    """Return a queue of two partitions, one at a `place` whose records are gone; its second assignment fails."""
    spout = KafkaSpout("kafka", SPOT.topic, group_id="g", on_data_loss="skip")
    brokers, away = Mock(servers="kafka", options=spout._options), SourceAwayError("going on: no answer")
    brokers.consumer.consume.side_effect = [taken, []]
    works = {SPOT: PartitionWork(0, 0), Spot(SPOT.topic, 1): PartitionWork(place, 0)}
    for work in works.values():
        work.begin("id", 2)
    views = {SPOT.topic: TopicView("id", {0: 1, 1: 1}, {})}
    bounds = {spot: OffsetBounds(0, 5, 1) for spot in works}
    brokers.bounds.return_value = bounds
    monkeypatch.setattr(topic_queue, "Brokers", lambda *_: brokers)
    monkeypatch.setattr(
        topic_queue, "TopicWatch", lambda *_: Mock(look=lambda _: views, partitions=lambda: dict.fromkeys(works, True))
    )
    monkeypatch.setattr(topic_queue, "assign", Mock(side_effect=[None, away, None]))
    monkeypatch.setattr(GroupPositions, "starts", lambda *_: works)
    monkeypatch.setattr(Commits, "begin", lambda *_: None)
    return topic_queue.TopicQueue(spout._options, 0, 1)


def test_records_before_an_error_are_given_once_the_broker_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_of(monkeypatch, [Taken(0, 0), Taken(0, 1), Taken(1, 9, "OFFSET_OUT_OF_RANGE")], place=0)
    with pytest.raises(SourceAwayError):
        queue.fetch(10)
    assert [message.id[-1] for message in queue.fetch(10)] == [0, 1]
    assert topic_queue.assign.call_count == 3  # type: ignore[attr-defined]


def test_a_worker_starts_again_behind_a_loss_though_the_broker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_of(monkeypatch, [Taken(1, 9, "OFFSET_OUT_OF_RANGE")], place=9)
    with pytest.raises(SpoutError, match="lost the records from offset 5 on; the worker starts again") as error:
        queue.fetch(10)
    assert not isinstance(error.value, SourceAwayError)
