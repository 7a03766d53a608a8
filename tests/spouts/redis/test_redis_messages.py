"""Entries of Redis Streams one by one: what Redis counts, who takes over what, and what is refused."""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from spouts import RedisStreamRichSpout
from spouts.redis.group_queue import GroupQueue, GroupReading
from spouts.redis.stream_server import NOTHING
from tests.harness.servers import Server, free_ports, start_redis
from tests.spouts.driving import OPENED, Task
from tests.spouts.places import FIELDS, GROUP, RedisPlace
from trident.errors import SourceAwayError, SpoutError


@pytest.fixture
def place(redis_server: Server) -> Iterator[RedisPlace]:
    place = RedisPlace(redis_server.port)
    yield place
    place.client.close()


def _abandon(task: Task) -> None:
    """Let a task die: its connection is gone, and nothing more is told to the queue."""
    OPENED.remove(task)
    task.spout._opened._queue.close()


def test_the_same_task_takes_its_own_entries_up_again_at_once(place: RedisPlace) -> None:
    place.fill(range(3))
    task = Task(place.spout(claim_idle_s=600))
    task.take(3)
    _abandon(task)
    place.fill([3])
    again = Task(place.spout(claim_idle_s=600))
    assert [values[0] for values, _ in again.take(4)] == ["w0", "w1", "w2", "w3"]


@pytest.mark.long
def test_another_task_takes_over_only_what_has_been_idle_long_enough(place: RedisPlace) -> None:
    place.fill(range(2))
    living, other = Task(place.spout(claim_idle_s=0.3)), Task(place.spout(claim_idle_s=0.3), 1, 2)
    taken = living.take(2)
    ends = time.monotonic() + 0.9
    while time.monotonic() < ends:  # three times as long; the first one gives signs of life
        living.spout.next_tuple()
        other.spout.next_tuple()
    counts = [each["times_delivered"] for each in place.pending()]
    assert counts == [1, 1]
    assert not other.collector.emitted
    _abandon(living)
    assert len(other.take(2)) == 2
    assert taken


def test_how_often_an_entry_failed_outlives_its_task_whose_death_counts_too(place: RedisPlace) -> None:
    place.fill([1])
    options: dict[str, Any] = {"max_failures": 4, "first_pause_s": 0.01, "dead_letters": True}
    task = Task(place.spout(**options))
    for _ in range(2):
        ((_, id_),) = task.take(1)
        task.spout.fail(id_)
    task.take(1)
    assert place.pending()[0]["times_delivered"] == 3
    _abandon(task)
    again = Task(place.spout(**options))
    ((_, id_),) = again.take(1)
    again.spout.fail(id_)
    again.until(lambda: again.errors)
    again.close()
    (letter,) = place.dead()
    assert letter["failures"] == 4
    assert place.left() == 0


def test_an_entry_that_kills_its_task_each_time_is_given_up(place: RedisPlace) -> None:
    place.fill([1])
    for _ in range(2):
        task = Task(place.spout(max_failures=2, dead_letters=True))
        task.take(1)
        _abandon(task)
    last = Task(place.spout(max_failures=2, dead_letters=True))
    last.until(lambda: last.errors)
    assert not last.collector.emitted
    last.close()
    assert len(place.dead()) == 1


def test_entries_that_were_trimmed_while_pending_are_reported(place: RedisPlace) -> None:
    place.fill(range(3))
    task = Task(place.spout())
    task.take(3)
    _abandon(task)
    place.client.xtrim(place.stream, maxlen=1, approximate=False)
    again = Task(place.spout())
    assert [values[0] for values, _ in again.take(1)] == ["w2"]
    (error,) = again.errors
    assert "2 entries of the stream" in error
    assert "were trimmed or deleted while they were pending" in error
    again.close()
    assert len(place.pending()) == 1


def test_several_streams_take_turns_when_there_is_no_room_for_all(place: RedisPlace) -> None:
    streams = [f"{place.stream}-{number}" for number in range(3)]
    for stream in streams:
        place.client.xadd(stream, {"word": stream, "n": 1})
    task = Task(RedisStreamRichSpout(place.url, streams, FIELDS, group=GROUP, max_pending=1))
    seen: list[Any] = []
    for _ in streams:
        ((values, id_),) = task.take(1)
        seen.append(values[3])
        task.spout.ack(id_)
    assert sorted(seen) == streams


def test_a_deleted_group_ends_the_worker_and_a_restart_reads_again(place: RedisPlace) -> None:
    place.fill(range(2))
    task = Task(place.spout())
    task.take(2)
    place.client.xgroup_destroy(place.stream, GROUP)
    with pytest.raises(SpoutError, match="a restart creates the group again, at first='0'"):
        task.until(lambda: False)
    task.close()
    again = Task(place.spout())
    assert len(again.take(2)) == 2


@pytest.mark.server
def test_it_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    server = start_redis(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    try:
        place = RedisPlace(server.port)
        place.fill(range(6))
        task = Task(place.spout(max_pending=4))
        taken = task.take(4)
        server.kill()
        for _, id_ in taken[:2]:
            task.spout.ack(id_)
        task.spout.fail(taken[2][1])
        task.until(lambda: task.errors)
        assert "is the server up, and its address right?" in task.errors[0]
        server.start()
        seen = task.drain(lambda: task.spout.pending == 1 and place.left() == 1)
        assert sorted(values[0] for values in seen) == ["w2", "w4", "w5"]
        assert len(task.errors) == 1
        task.close()
    finally:
        server.stop()


@pytest.mark.server
def test_a_server_that_is_not_there_is_named(impatient: None) -> None:
    (port,) = free_ports(1)
    spout = RedisStreamRichSpout(f"redis://user:secret@127.0.0.1:{port}/0", "s", FIELDS, group=GROUP)
    with pytest.raises(
        SpoutError, match=f"127.0.0.1:{port}.*refused.*its address right.*tried for 0.2 seconds"
    ) as found:
        Task(spout)
    assert "secret" not in str(found.value)


def test_a_key_that_is_no_stream_is_refused(place: RedisPlace) -> None:
    place.client.set(place.stream, "text")
    with pytest.raises(SpoutError, match="is a string and not a stream"):
        Task(place.spout())
    place.client.delete(place.stream)
    place.client.rpush(place.dead_stream, "letter")
    with pytest.raises(SpoutError, match=re.escape(place.dead_stream) + "' on Redis .* is a list and not a stream"):
        Task(place.spout(dead_letters=True))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"streams": []}, "give the name of a stream"),
        ({"group": ""}, "group=''"),
        ({"first": "yesterday"}, "first='yesterday': give"),
        ({"claim_idle_s": 0}, "claim_idle_s=0"),
        ({"dead_letters": "s"}, "dead_letters='s' is a stream that is read"),
        ({"max_pending": 0}, "max_pending=0"),
        ({"url": "http://x"}, "the URL of a Redis stream starts with 'http'"),
        ({"fields": "word"}, "the field 'word' has no type"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], text: str) -> None:
    given = {"url": "redis://h", "streams": "s", "fields": FIELDS, "group": "g", **options}
    with pytest.raises(ValueError, match=text):
        RedisStreamRichSpout(**given)


def test_its_text_shows_no_password() -> None:
    assert "secret" not in repr(RedisStreamRichSpout("redis://u:secret@h", "s", FIELDS, group="g", password="secret"))


class Client:
    """A server with an entry in each of two streams, pending for whom `own` says; it is away at the n-th call `away`."""

    def __init__(self, own: bool, away: int) -> None:
        self.own, self.calls, self.away, self.claimed = own, 0, away, set[str]()

    def call(self, doing: str, function: Any) -> Any:
        # What another consumer was claimed from is given after `claim_idle_s` if its failures could not be asked for.
        self.calls += self.own or not doing.startswith("asking how often")
        if self.calls == self.away:
            self.away = 0
            raise SourceAwayError("no answer")
        return function(self)

    def xreadgroup(self, _group: str, _consumer: str, positions: dict[str, str], _count: int) -> Any:
        there = [stream for stream, after in positions.items() if self.own and after == NOTHING]
        return [(stream.encode(), [(b"1-0", {b"f": b"v"})]) for stream in there]

    def xautoclaim(self, stream: str, *_: Any) -> Any:
        claimed = [] if self.own or stream in self.claimed else [(b"1-0", {b"f": b"v"})]
        self.claimed.add(stream)
        return b"0-0", claimed, []

    def xpending_range(self, *_: Any) -> Any:
        return []


@pytest.mark.parametrize("own", [True, False])
def test_entries_are_given_whichever_call_finds_the_server_away(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupQueue, "_rows", lambda _, entries: [(each.id,) for each in entries])
    reading = GroupReading(("a", "b"), "g", "0", 600.0, None)
    for away in range(1, 9):
        client, given = Client(own, away), list[str]()
        queue = GroupQueue(cast(Any, Mock(place="r", call=client.call)), "c", reading, Mock(), print)
        for _ in range(6):
            with suppress(SourceAwayError):
                given += [message.raw.stream for message in queue.fetch(10)]
        assert sorted(given) == ["a", "b"], away


def test_new_entries_whose_answer_was_lost_are_given_after_the_reconnection(place: RedisPlace) -> None:
    place.fill(range(3))
    task = Task(place.spout(claim_idle_s=600, max_pending=2))
    ((_, first), _) = task.take(2)
    server = task.spout._opened._queue._server
    call, lost = server.call, list[str]()

    def lose_once(doing: str, function: Any) -> Any:
        answer = call(doing, function)
        if "new entries" in doing and answer and not lost:
            lost.append(doing)
            raise SourceAwayError("no answer")
        return answer

    server.call = lose_once
    task.spout.ack(first)
    assert [values[0] for values, _ in task.take(1)] == ["w2"]
    assert lost
