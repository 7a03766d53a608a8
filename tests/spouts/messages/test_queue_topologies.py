"""Topologies of spouts and bolts over queues: what is processed is off the queue, what fails too often is a dead letter."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.servers import Server
from tests.spouts.messages.driving import LIMIT_S
from tests.spouts.messages.places import Place
from trident.storm import BaseRichBolt, LocalCluster, TopologyBuilder, Tuple

PAGE = Path(__file__).parents[3] / "docs" / "storm" / "bolts.md"


EXECUTED: list[Any] = []  # what the bolts of this process did


class Refusing(BaseRichBolt):
    """Fails every number that `refused` divides, each time, and 1 once."""

    def __init__(self, refused: int) -> None:
        self._refused = refused

    def execute(self, tuple: Tuple) -> None:
        """Write the number down, and answer."""
        number = tuple["n"]
        first = number not in EXECUTED
        EXECUTED.append(number)
        if number % self._refused == 0 or (number == 1 and first):
            self.collector.fail(tuple)
        else:
            self.collector.ack(tuple)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, EXECUTED
        time.sleep(0.01)  # the topology runs beside


@pytest.mark.sample(2)
def test_what_was_processed_leaves_the_queue_what_fails_too_often_is_a_letter(place: Place) -> None:
    EXECUTED.clear()
    place.fill(range(1, 30))
    builder = TopologyBuilder()
    builder.set_spout("queue", place.spout(max_failures=3, first_pause_s=0.01, dead_letters=True))
    builder.set_bolt("refusing", Refusing(7), 2).shuffle_grouping("queue")
    with LocalCluster() as cluster:
        running = cluster.submit_topology("queue", None, builder.create_topology())
        _until(lambda: len(running.errors) == 4)
        _until(lambda: not running.pending)
    assert place.left() == 0
    assert sorted(EXECUTED) == sorted([*range(1, 30), 1, *[7, 14, 21, 28] * 2])
    letters = place.dead()
    assert {letter["failures"] for letter in letters} == {3}
    assert sorted(re.findall(r"w(\d+)", str([letter["content"] for letter in letters])), key=int) == [
        "7",
        "14",
        "21",
        "28",
    ]


def test_a_spout_that_dies_with_its_worker_gets_its_messages_again(place: Place) -> None:
    EXECUTED.clear()
    place.fill(range(1, 6))
    builder = TopologyBuilder()
    builder.set_spout("queue", place.spout())
    builder.set_bolt("dying", _DiesOnce(), 1).shuffle_grouping("queue")
    with LocalCluster() as cluster:
        running = cluster.submit_topology("queue", None, builder.create_topology())
        _until(lambda: set(EXECUTED) >= {1, 2, 3, 4, 5} and place.left() == 0 and not running.pending)
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
        _until(lambda: client.xlen("orders.failed") == 1 and client.xinfo_groups("orders")[0]["pending"] == 0)
    ((_, letter),) = client.xrange("orders.failed")
    assert (letter[b"user"], letter[b"dead_letter.reason"]) == (b"eve", b"it failed 5 times")
    client.close()
