"""Frames of RabbitMQ that come late, never (while heartbeats do), as an error or not with their connection: nothing is lost."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spouts import RabbitMQSpout
from spouts.messages import spout as message_spout
from spouts.rabbitmq import Json, queue_consumer
from states.memory import MemoryMapState
from tests.harness.amqp_proxy import AmqpProxy, How
from tests.harness.commands import until
from tests.harness.rabbit_servers import RabbitServer
from tests.spouts.messages.driving import LIMIT_S, Task
from tests.spouts.messages.places import FIELDS, RabbitPlace
from trident import TridentTopology
from trident.errors import SpoutError
from trident.operations import Count

pytestmark = pytest.mark.server

QUICK: dict[str, Any] = {"timeout_s": 0.5, "connect_timeout_s": 0.5, "first_pause_s": 0.01, "longest_pause_s": 0.02}
CONNECTING = (
    "Connection.Start", "Connection.Tune", "Connection.OpenOk", "Channel.OpenOk", "Basic.QosOk", "Confirm.SelectOk",
    "Queue.DeclareOk", "Basic.ConsumeOk", "Basic.Deliver",
)  # fmt: skip
WITHHELD = (
    *(("starting", name) for name in CONNECTING),
    *(("connecting again", name) for name in CONNECTING),
    *(
        ("running", name)
        for name in ("Basic.Deliver", "Queue.DeclareOk", "Basic.Ack", "its Basic.Ack", "its Basic.Nack")
    ),
    *(("resting", name) for name in ("Basic.CancelOk", "its Basic.Cancel")),
    *(("closing", name) for name in ("Channel.CloseOk", "Connection.CloseOk", "its Basic.Ack")),
)
HOWS: tuple[How, ...] = ("never", "late", "cut", "error")
CASES = list(itertools.product(WITHHELD, HOWS, ("classic", "quorum")))


def of_the_default_suite(at: int) -> bool:
    """Each frame once, each way and each kind of queue some times."""
    return at % 7 == 0


@pytest.fixture
def proxy(rabbitmq_server: RabbitServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[AmqpProxy]:
    monkeypatch.setattr(message_spout, "_START_S", 0.1)
    monkeypatch.setattr(queue_consumer, "_ASK_EVERY_S", 0.1)
    made = AmqpProxy(rabbitmq_server.port)
    try:
        yield made
    finally:
        made.close()


def spout_of(proxy: AmqpProxy, place: RabbitPlace, **options: Any) -> Any:
    url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/%2F"
    return RabbitMQSpout(url, place.queue, value=Json(FIELDS), **QUICK, **options)


class Reader:
    """Acknowledges all messages but 0, which is never done, and 5, which always fails; the others fail once."""

    def __init__(self, proxy: AmqpProxy, place: RabbitPlace) -> None:
        self._spout = spout_of(proxy, place, dead_letters=place.dead_queue, max_failures=12)
        self.task: Task | None = None
        self.seen, self.done, self.errors = set[int](), set[int](), list[str]()

    @property
    def said(self) -> list[str]:
        return [*self.errors, *(self.task.errors if self.task is not None else ())]

    @property
    def is_away(self) -> bool:
        """Whether it was said that the broker is away."""
        return any("is the broker up" in each for each in self.said)

    @property
    def has_buried(self) -> bool:
        return any("dead letter" in each for each in self.said)

    def until(self, condition: Callable[[], object]) -> None:
        """Go on until a condition holds; a worker that ends is started again."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{self.seen} {self.done} {self.said[-3:]}"
            try:
                self._turn()
            except SpoutError as error:
                self.errors.append(str(error))
                self.stop()

    def _turn(self) -> None:
        if self.task is None:
            self.task = Task(self._spout)
        self.task.spout.next_tuple()
        for (_, number), id_ in self.task.collector.emitted:
            if number == 5 or number not in self.seen:
                self.task.spout.fail(id_)
            elif number != 0:
                self.task.spout.ack(id_)
                self.done.add(number)
            self.seen.add(number)
        self.task.collector.emitted.clear()

    def stop(self) -> None:
        """Close the spout, as a worker does that ends."""
        if self.task is not None:
            self.errors += self.task.errors
            self.task.close()
        self.task = None


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("withheld", "how", "kind"),
    [
        pytest.param(
            *case,
            marks=() if of_the_default_suite(at) else pytest.mark.soak,
            id="-".join([*case[0], *case[1:]]),
        )
        for at, case in enumerate(CASES)
    ],
)
def test_no_message_is_lost_whichever_frame_is_withheld(
    rabbitmq_server: RabbitServer, proxy: AmqpProxy, withheld: tuple[str, str], how: How, kind: str
) -> None:
    place, (step, name) = RabbitPlace(rabbitmq_server.url, kind), withheld
    reader, method = Reader(proxy, place), name.removeprefix("its ")
    expected = set[int]()

    def fill(start: int, end: int) -> None:
        expected.update(set(range(start, end)) - {0, 5})
        place.fill(range(start, end))

    fill(0, 10)
    if step != "starting":
        reader.until(lambda: reader.done == expected)
        assert not reader.is_away
    with proxy.rule(how, method, is_client=name != method) as rule:
        if step == "connecting again":
            proxy.cut()
        elif step == "running":
            fill(10, 20)
        elif step == "resting":
            assert reader.task is not None
            reader.task.spout.deactivate()
            reader.task.spout.activate()
        elif step == "closing":
            fill(10, 20)
            reader.until(lambda: reader.done == expected)
            reader.stop()
        reader.until(rule.met.is_set)
        reader.until(lambda: reader.is_away or step == "closing")
    fill(20, 30)
    reader.until(lambda: reader.done == expected and reader.has_buried)
    reader.stop()
    until(lambda: 0 in on_queue(place), "the message that was never acknowledged is on the queue")
    assert on_queue(place) <= {0, 5}, "what was acknowledged"
    assert {json.loads(letter["content"])["n"] for letter in place.dead()} == {5}


def test_a_topology_does_not_say_that_all_is_processed_while_the_broker_is_silent(
    rabbitmq_server: RabbitServer, proxy: AmqpProxy
) -> None:
    place = RabbitPlace(rabbitmq_server.url)
    topology = TridentTopology("silent")
    spout = spout_of(proxy, place)
    counts = topology.new_stream("words", spout).persistent_aggregate(MemoryMapState(), Count(), "count")
    with topology.start(engine="in_process", allow_inexact=True) as running:
        running.process_all_available()
        with proxy.rule("never", "Basic.Deliver") as rule:
            place.fill(range(100))
            ended = threading.Thread(target=running.process_all_available)
            ended.start()
            rule.wait()
            until(lambda: running.status["waiting"], "it says what it waits for")
            waiting = running.status["waiting"]
            assert ended.is_alive()
        assert f"waiting for RabbitMQ at 127.0.0.1:{proxy.port} (step 'words') since 2" in waiting
        ended.join(LIMIT_S)
        assert not ended.is_alive()
        assert running.state(counts).get() == 100
        assert not running.status["waiting"]
    assert on_queue(place) == set()


def on_queue(place: RabbitPlace) -> set[int]:
    with place.channel() as channel:
        found = iter(lambda: channel.basic_get(place.queue)[2], None)
        return {json.loads(body)["n"] for body in found}
