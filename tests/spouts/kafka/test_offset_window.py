"""Which offsets of a partition are done, against a set of single offsets; and what is committed beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from spouts.kafka.offset_commits import Commits, OffsetWindow, PartitionWork
from spouts.kafka.positions import GroupPositions
from trident.errors import SourceAwayError, SpoutError

SPOT = Spot("topic", 0)
_RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)))


def window_of(start: int, done: Sequence[tuple[int, int]]) -> OffsetWindow:
    window = OffsetWindow(start)
    for first, end in done:
        window.finish(first, end)
    return window


def work_of(start: int, done: Sequence[tuple[int, int]], failures: dict[int, int]) -> PartitionWork:
    work = PartitionWork(start, -1)
    work.window, work.failures = window_of(start, done), failures
    work.begin("i" * 22, 1000)
    return work


def committed_by(work: PartitionWork) -> TopicPartition:
    commit = work.to_commit(SPOT)
    assert isinstance(commit, TopicPartition)
    return commit


@given(st.integers(0, 20), _RANGES)
def test_it_knows_of_each_offset_whether_it_is_done(start: int, ranges: list[tuple[int, int]]) -> None:
    window, done = OffsetWindow(start), set(range(start))
    for first, length in ranges:
        window.finish(first, first + length)
        done.update(range(first, first + length))
        lowest = next(offset for offset in range(100) if offset not in done)
        assert window.low == lowest
        behind = [offset for first, end in window.done for offset in range(first, end)]
        assert behind == sorted(offset for offset in done if offset > lowest)
        edges = [edge for pair in window.done for edge in pair]
        assert edges == sorted(set(edges)), "ranges that touch each other are one"


@given(st.sets(st.integers(0, 40)), _RANGES)
def test_only_records_that_are_not_done_are_processed(there: set[int], ranges: list[tuple[int, int]]) -> None:
    done = [(first, first + length) for first, length in ranges]
    window = window_of(0, done)
    known = {offset for first, end in done for offset in range(first, end)}
    taken = [offset for offset in sorted(there) if window.arrive(offset)]
    assert taken == [offset for offset in sorted(there) if offset not in known]
    for offset in taken:
        assert window.low <= offset
        assert not window.arrive(offset), "it came before"
        window.finish(offset, offset + 1)
    if there:
        assert window.low >= max(there) + 1, "what is no record holds up nothing"
        assert window.gap == 0


def test_the_end_of_a_partition_may_lie_behind_its_last_record() -> None:
    window = OffsetWindow(3)
    assert window.arrive(3)
    window.skip_to(6)  # the mark of a transaction
    assert (window.low, window.position, window.gap) == (3, 6, 3)
    window.finish(3, 4)
    assert (window.low, window.done) == (6, [])


def test_many_acknowledgements_in_another_order_are_one_range() -> None:
    window = OffsetWindow(0)
    window.position = 1_000_000
    for offset in range(100_000, 0, -1):
        window.finish(offset, offset + 1)
    assert window.done == [(1, 100_001)]
    assert window.gap == 1_000_000
    window.finish(0, 1)
    assert (window.low, window.done) == (100_001, [])


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
    work = work_of(offset, done, {offset + each: count for each, count in failures.items()})
    read = PartitionWork.of(committed_by(work))
    assert (read.topic_id, read.partitions) == ("i" * 22, 1000)
    assert (read.window.done, read.failures) == (done, work.failures)
    read.begin("i" * 22, 1000)
    assert read.to_commit(SPOT) is None, "it is committed already"


def test_notes_have_room_in_what_kafka_keeps_and_leave_out_what_is_farthest() -> None:
    done = [(at, at + 1) for at in range(10**12, 10**12 + 100_000, 2)]
    commit = committed_by(work_of(10**12 - 1, done, {10**12 + at: 10**6 for at in range(1, 1000)}))
    assert len(commit.metadata or "") <= 4096
    read = PartitionWork.of(commit)
    assert read.window.done == done[: len(read.window.done)]
    assert len(read.window.done) > 500
    assert len(read.failures) == 60


@pytest.mark.parametrize(
    "text", [None, "", "a note of another program", "[]", '{"trident": 2}', '{"trident":1,"done":[1]}', "7"]
)
def test_what_another_program_committed_says_nothing(text: str | None) -> None:
    commit = TopicPartition("topic", 0, 5) if text is None else TopicPartition("topic", 0, 5, text)
    work = PartitionWork.of(commit)
    assert (work.topic_id, work.partitions, work.failures, work.window.done, work.window.low) == ("", 0, {}, [], 5)


def test_what_was_done_from_an_offset_on_is_forgotten_where_a_partition_was_cut_off() -> None:
    window = window_of(5, [(8, 12), (15, 20)])
    window.position = 30
    window.cut(10)
    assert (window.low, window.position, window.done) == (5, 10, [(8, 10)])
    assert window.arrive(10)
    assert window.arrive(15)
    window.cut(3)
    assert (window.low, window.position, window.done) == (3, 3, [])


def test_notes_of_what_lies_behind_a_cut_are_left_out() -> None:
    work = work_of(5, [(8, 12), (15, 20)], {9: 1, 16: 2})
    assert (work.window.furthest, work.window.position) == (20, 5)
    work.move(10, 5, 7)
    assert (work.window.done, work.failures, work.window.position, work.epoch) == ([(8, 10)], {9: 1}, 5, 7)
    work.move(8, 5, 7)
    assert (work.window.furthest, work.window.position) == (5, 5)


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
    assert list(work.window.done) == [(35, 37)]
    assert positions.move(SPOT, work, None)
    assert [offset for offset in range(30, 40) if work.arrive(offset, 2)] == [*range(30, 40)]


# ---- a broker that goes away while a position is given up -----------------------------------------------------------------


class Taken:
    """What a consumer gives: a record, or that there is none at its position."""

    def __init__(self, partition: int, offset: int, error: str = "") -> None:
        self.topic, self.partition, self.offset = lambda: SPOT.topic, lambda: partition, lambda: offset
        self.error = lambda: cast("Any", SimpleNamespace(name=lambda: error, str=lambda: error)) if error else None
        self.leader_epoch, self.value = lambda: 0, lambda: b"x"


def queue_of(monkeypatch: pytest.MonkeyPatch, taken: Sequence[Taken], place: int) -> Any:
    """Return a queue of two partitions, one at a `place` whose records are gone; its second assignment fails."""
    brokers, away = Mock(servers="kafka"), SourceAwayError("going on: no answer")
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
    spout = KafkaSpout("kafka", SPOT.topic, group_id="g", on_data_loss="skip")
    return topic_queue.TopicQueue(spout._options, 0, 1, None, spout._limits)


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
