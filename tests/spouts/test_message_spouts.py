"""What every spout of messages promises, of every queue, also in topologies of bolts: pending until acknowledged."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import redis

from states.memory import MemoryMapState
from tests.harness.commands import until
from tests.harness.servers import Server
from tests.harness.topology_runs import run_all
from tests.spouts.driving import Task
from tests.spouts.places import FIELDS, Place
from trident import TridentTopology
from trident.errors import FailedException, SpoutError
from trident.operations import Count
from trident.spout.rich import OutputFieldsDeclarer
from trident.storm import BaseRichBolt, LocalCluster, TopologyBuilder, Tuple


def _words(taken: list[tuple[tuple[object, ...], object]]) -> list[object]:
    return sorted(values[0] for values, _ in taken)  # type: ignore[type-var]


def test_a_message_is_pending_at_the_queue_until_it_is_acked(place: Place) -> None:
    place.fill(range(4))
    task = Task(place.spout())
    for _, id_ in task.take(4)[:3]:
        task.spout.ack(id_)
    task.until(lambda: task.spout.pending == 1)
    task.close()
    successor = Task(place.spout(), *place.successor)
    assert _words(successor.take(1)) == ["w3"]


def test_a_message_that_fails_too_often_is_a_dead_letter_and_leaves_the_queue(place: Place) -> None:
    place.fill(range(3))
    task = Task(place.spout(max_failures=3, first_pause_s=0.01, dead_letters=True))
    seen = task.drain(lambda: len(task.errors) == 1 and not task.spout.pending, lambda values: values[0] == "w1")
    assert sorted(values[0] for values in seen) == ["w0", "w1", "w1", "w1", "w2"]
    task.close()
    (letter,) = place.dead()
    assert "w1" in str(letter["content"])
    assert (letter["reason"], letter["failures"]) == ("it failed 3 times", 3)
    assert "is a dead letter" in task.errors[0]
    assert place.left() == 0


def test_without_a_place_for_dead_letters_the_log_gets_what_is_given_up(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.fill([5])
    task = Task(place.spout(max_failures=1))
    with caplog.at_level(logging.ERROR):
        task.drain(lambda: not task.spout.pending and caplog.records, lambda _: True)
    (record,) = caplog.records
    assert "is given up: it failed once. It was ('w5', 5" in record.getMessage()
    task.close()
    assert place.left() == 0


@pytest.mark.sample(2)
def test_a_message_that_cannot_be_read_is_a_dead_letter_at_once(place: Place) -> None:
    place.fill([0])
    place.fill_bad()
    place.fill([1])
    task = Task(place.spout(dead_letters=True))
    assert _words(task.take(2)) == ["w0", "w1"]
    task.until(lambda: len(task.errors) == 2)
    task.close()
    (letter,) = place.dead()
    assert "many" in str(letter["content"])
    assert "n" in letter["reason"]
    assert letter["failures"] == 1


def test_a_message_that_cannot_be_read_stays_at_the_queue_without_a_limit(place: Place) -> None:
    place.fill_bad()
    task = Task(place.spout(first_pause_s=0.01))
    task.until(lambda: len(task.errors) == 2)
    assert task.spout.pending == 1
    task.close()
    assert not task.collector.emitted
    assert place.left() == 1


def test_answers_to_unknown_messages_and_second_answers_are_ignored(place: Place) -> None:
    place.fill(range(2))
    task = Task(place.spout())
    (_, first), (_, second) = task.take(2)
    task.spout.ack(first)
    task.spout.ack(first)
    task.spout.fail(first)
    task.spout.fail("never heard of")
    task.until(lambda: task.spout.pending == 1)
    task.spout.ack(second)
    task.until(lambda: not task.spout.pending)
    task.close()
    assert place.left() == 0


def test_a_deactivated_spout_still_acknowledges_and_goes_on_later(place: Place) -> None:
    place.fill(range(3))
    task = Task(place.spout())
    (first,) = task.take(1)
    task.spout.deactivate()
    task.spout.ack(first[1])
    task.spout.activate()
    again = task.drain(lambda: not task.spout.pending and place.left() == 0)
    assert sorted(values[0] for values in again) == ["w1", "w2"]


def test_in_a_trident_topology_messages_are_acknowledged_with_their_batch(place: Place) -> None:
    place.fill([*range(3), *range(3)])
    topology = TridentTopology("queue")
    words = topology.new_stream("words", place.spout()).group_by("word")
    counts = words.persistent_aggregate(MemoryMapState(), Count(), "count")
    with topology.start(engine="in_process", allow_inexact=True) as running:
        until(lambda: running.state(counts).multi_get(["w0", "w1", "w2"]) == [2, 2, 2])
    assert place.left() == 0


@pytest.mark.sample(2)
def test_a_topology_is_not_drained_while_a_message_waits_for_its_retry(place: Place) -> None:
    place.fill(range(3))
    failed = list[str]()

    def fail_once(word: str) -> bool:
        if not failed:
            failed.append(word)
            raise FailedException(word)
        return True

    topology = TridentTopology("queue")
    words = topology.new_stream("words", place.spout(first_pause_s=0.3)).filter("word", fail_once)
    counts = words.persistent_aggregate(MemoryMapState(), Count(), "count")
    running = run_all(topology, "in_process", allow_inexact=True)
    assert running.state(counts).get() == 3
    assert failed


def test_a_spout_that_is_not_open_says_so(place: Place) -> None:
    spout = place.spout()
    with pytest.raises(SpoutError, match="is not open: open"):
        spout.next_tuple()
    spout.close()  # nothing to do
    assert spout.pending == 0


def test_its_fields_are_declared_with_their_types(place: Place) -> None:
    declarer = OutputFieldsDeclarer()
    place.spout().declare_output_fields(declarer)
    assert declarer.fields is not None
    assert ", ".join(declarer.fields.typed).startswith(FIELDS)


PAGE = Path(__file__).parents[2] / "docs" / "storm" / "bolts.md"
EXECUTED: list[Any] = []  # what the bolts of this process did


class Refusing(BaseRichBolt):
    """Fails every number that `refused` divides, each time, and 1 once."""

    def __init__(self, refused: int) -> None:
        self._refused = refused

    def execute(self, tuple: Tuple) -> None:
        number = tuple["n"]
        first = number not in EXECUTED
        EXECUTED.append(number)
        if number % self._refused == 0 or (number == 1 and first):
            self.collector.fail(tuple)
        else:
            self.collector.ack(tuple)


@pytest.mark.sample(2)
def test_what_was_processed_leaves_the_queue_what_fails_too_often_is_a_letter(place: Place) -> None:
    EXECUTED.clear()
    place.fill(range(1, 30))
    builder = TopologyBuilder()
    builder.set_spout("queue", place.spout(max_failures=3, first_pause_s=0.01, dead_letters=True))
    builder.set_bolt("refusing", Refusing(7), 2).shuffle_grouping("queue")
    with LocalCluster() as cluster:
        running = cluster.submit_topology("queue", None, builder.create_topology())
        until(lambda: len(running.errors) == 4)
        until(lambda: not running.pending)
    assert place.left() == 0
    assert sorted(EXECUTED) == sorted([*range(1, 30), 1, *[7, 14, 21, 28] * 2])
    letters = place.dead()
    assert {letter["failures"] for letter in letters} == {3}
    assert sorted(re.findall(r"w(\d+)", str([each["content"] for each in letters])), key=int) == ["7", "14", "21", "28"]


def test_a_spout_that_dies_with_its_worker_gets_its_messages_again(place: Place) -> None:
    EXECUTED.clear()
    place.fill(range(1, 6))
    builder = TopologyBuilder()
    builder.set_spout("queue", place.spout())
    builder.set_bolt("dying", _DiesOnce(), 1).shuffle_grouping("queue")
    with LocalCluster() as cluster:
        running = cluster.submit_topology("queue", None, builder.create_topology())
        until(lambda: set(EXECUTED) >= {1, 2, 3, 4, 5} and place.left() == 0 and not running.pending)
        assert any("once" in str(error) for error in running.errors)


class _DiesOnce(Refusing):
    def __init__(self) -> None:
        super().__init__(1000)

    def execute(self, tuple: Any) -> None:
        if not EXECUTED:
            EXECUTED.append(0)
            raise RuntimeError("only once")
        super().execute(tuple)


def test_the_topology_of_the_page_runs(redis_server: Server) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (program,) = (block for block in blocks if "RedisStreamRichSpout" in block)
    client: Any = redis.Redis(port=redis_server.port)
    client.flushall()
    for user, amount in (("ann", 5), ("bob", 7), ("ann", 1)):
        client.xadd("orders", {"user": user, "amount": amount})
    client.xadd("orders", {"user": "eve"})
    names: dict[str, Any] = {"__name__": "page"}
    exec(program.replace("localhost:6379", redis_server.address), names)
    with LocalCluster() as cluster:
        cluster.submit_topology("page", None, names["builder"].create_topology())
        until(lambda: client.xlen("orders.failed") == 1 and client.xinfo_groups("orders")[0]["pending"] == 0)
    ((_, letter),) = client.xrange("orders.failed")
    assert (letter[b"user"], letter[b"dead_letter.reason"]) == (b"eve", b"it failed 5 times")
    client.close()
