"""Mail between two workers of one process: what arrives, what is refused, and who waits."""

import datetime as dt
import logging
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
import zmq

from tests.harness.commands import until
from trident.errors import TopologyError
from trident.spark.mailbox import Keys
from trident.storm import BaseRichBolt, BaseRichSpout, StreamDeclarer, TopologyBuilder, Tuple
from trident.storm.execution.messages import Body, Outcomes, Tracking
from trident.storm.spark.linked_mail import Decoder, Encoder, LinkedMail
from trident.storm.storm_topology import lay_out
from trident.storm.storm_tuples import Origin, SentTuple, sent_tuple

CAPACITY = 4
ROOT, EDGE = 2**64 - 1, 2**63


class Numbers(BaseRichSpout):
    def declare_output_fields(self, declarer: StreamDeclarer) -> None:
        declarer.declare("a", "b")
        declarer.declare_stream("side", "c")
        declarer.declare_stream("bare")


class Sink(BaseRichBolt):
    def execute(self, tuple: Tuple) -> None:
        self.collector.ack(tuple)


def topology() -> Any:
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers())
    builder.set_bolt("sink", Sink()).shuffle_grouping("numbers").shuffle_grouping("numbers", "side")
    return builder.create_topology()


TOPOLOGY = topology()
LAYOUT = lay_out(TOPOLOGY, 2, 1)
SPOUT, SINK = LAYOUT.tasks["numbers"][0], LAYOUT.tasks["sink"][0]
ORIGINS = {
    name: Origin("numbers", SPOUT, name, spec.fields) for name, spec in TOPOLOGY.spouts["numbers"].streams.items()
}


def tuples(*values: tuple[Any, ...], ids: dict[int, int] | None = None, stream: str = "default") -> list[SentTuple]:
    return [sent_tuple(each, ORIGINS[stream], ids or {}) for each in values]


def through(body: Body) -> Any:
    frame = Encoder(TOPOLOGY).encode(SINK, body)
    task, found = Decoder(TOPOLOGY, LAYOUT).decode(frame)
    assert task == SINK
    return found


@pytest.fixture
def keys() -> Keys:
    return Keys.new()


@pytest.fixture
def pair(keys: Keys) -> Iterator[tuple[LinkedMail, LinkedMail]]:
    mails = [LinkedMail(number, TOPOLOGY, LAYOUT, keys, CAPACITY, "127.0.0.1") for number in range(2)]
    for at, mail in enumerate(mails):
        mail.set_peers({1 - at: (mails[1 - at].address, "1")})
    spouts, sinks = sorted(mails, key=lambda mail: SINK in mail.inboxes)
    yield spouts, sinks
    for mail in mails:
        mail.close()


def received(mail: LinkedMail, task: int, number: int = 1) -> list[Any]:
    found: list[Any] = []

    def enough() -> bool:
        found.extend(mail.inboxes[task].take(0))
        return len(found) >= number

    until(enough, "what was sent has come")
    return found


def test_every_value_of_the_codec_arrives_as_it_was() -> None:
    values: list[Any] = [
        None, True, -1, 2**63, 2**90, 1.5, float("inf"), "é", b"\0", [1, [2]], {"a": {1: 2}}, (1, (2, "x")), {1, 2},
        frozenset([3]), Decimal("1.50"), dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, tzinfo=dt.UTC), dt.timedelta(1),
        uuid4(),
    ]  # fmt: skip
    sent = tuples(*[(value, 0) for value in values], ids={ROOT: EDGE})
    found = through(sent)
    assert [row for row, *_ in found] == [row for row, *_ in sent]
    assert [type(row[0]) for row, *_ in found] == [type(value) for value in values]
    assert all(origin.task == SPOUT and ids == [ROOT, EDGE] for _, origin, *ids in found)


def test_tuples_keep_their_trees_and_streams() -> None:
    sent = [
        *tuples((1, 2), ids=None),
        *tuples((3, 4), ids={1: 2, 3: 4}),
        *tuples((5,), ids={5: 6}, stream="side"),
        *tuples((), ids={7: 8}, stream="bare"),
        *tuples((6, 7), ids={9: 0}),
    ]
    found = through(sent)
    shown = {(row, origin.stream, str(ids)) for row, origin, *ids in found}
    assert shown == {(row, origin.stream, str(ids)) for row, origin, *ids in sent}
    assert [row for row, origin, *_ in found if origin.stream == "default"] == [(1, 2), (3, 4), (6, 7)]


def test_tuples_of_one_task_and_stream_share_their_origin() -> None:
    decoder, encoder = Decoder(TOPOLOGY, LAYOUT), Encoder(TOPOLOGY)
    frames = [encoder.encode(SINK, tuples((1, 2))) for _ in range(2)]
    assert len({each[1] for frame in frames for each in decoder.decode(frame)[1]}) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "body",
    [Tracking([ROOT, EDGE, 1], [ROOT, 0, 1, 2], [3], [4, 5]), Tracking(), Outcomes([ROOT], [1, 2], [3]), Outcomes()],
)
def test_news_of_trees_arrive_as_they_were(body: Body) -> None:
    assert through(body) == body


@pytest.mark.parametrize(("value", "said"), [("\ud800", "lone surrogate"), (object(), "encode a object")])
def test_what_cannot_be_sent_is_named(value: object, said: str) -> None:
    with pytest.raises(TopologyError, match=rf"'numbers' \(task 1\) emits to stream 'default', in field 'b', .*{said}"):
        through(tuples((1, 2), (1, value)))


def test_a_full_queue_holds_up_its_senders_and_not_the_news(pair: tuple[LinkedMail, LinkedMail]) -> None:
    spouts, sinks = pair
    assert spouts.is_open(SINK)
    for number in range(CAPACITY):
        spouts.send(SINK, tuples((number, 0)))
    until(lambda: not spouts.is_open(SINK), "the sender has heard that the queue is full")
    sinks.send(SPOUT, Outcomes([1]))
    assert received(spouts, SPOUT) == [(SPOUT, Outcomes([1]))]
    assert not spouts.is_open(SINK)
    received(sinks, SINK)
    spouts.wait_until_open(SINK)
    assert spouts.is_open(SINK)


def test_a_mark_without_repeat_is_forgotten(
    pair: tuple[LinkedMail, LinkedMail], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trident.storm.spark.linked_mail._MARK_S", 0.3)
    monkeypatch.setattr("trident.storm.spark.linked_mail._REPEATED_S", 1000.0)
    spouts, sinks = pair
    for number in range(CAPACITY):
        spouts.send(SINK, tuples((number, 0)))
    until(lambda: not spouts.is_open(SINK), "the sender has heard that the queue is full")
    until(lambda: spouts.is_open(SINK), "the mark has expired")
    assert not sinks.is_open(SINK)


def test_a_worker_that_is_away_is_closed_and_what_is_for_it_is_dropped(pair: tuple[LinkedMail, LinkedMail]) -> None:
    spouts, sinks = pair
    spouts.set_peers({})
    assert not spouts.is_open(SINK)
    spouts.send(SINK, Tracking([1, 2, 3]))
    assert spouts.dropped == 1
    spouts.set_peers({SINK_WORKER: (sinks.address, "2")})
    assert spouts.is_open(SINK)
    spouts.send(SINK, tuples((9, 9)))
    assert received(sinks, SINK)[0][1][0][0] == (9, 9)


SINK_WORKER = LAYOUT.worker_of[SINK]


def test_what_is_sent_to_a_process_that_does_not_read_is_bounded(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trident.storm.spark.linked_mail._QUEUED", 10)
    monkeypatch.setattr("trident.storm.spark.linked_mail._OVERFLOW", 20)
    mail = LinkedMail(LAYOUT.worker_of[SPOUT], TOPOLOGY, LAYOUT, keys, CAPACITY, "127.0.0.1")
    mail.set_peers({SINK_WORKER: ("127.0.0.1:1", "1")})  # nothing listens there
    for _ in range(100):
        mail.send(SINK, Tracking([1, 2, 3]))
    assert mail.dropped == 70
    assert not mail.is_open(SINK)
    mail.close()


@pytest.mark.parametrize("wrong", ["the topology", "the client", "plain"])
def test_a_client_without_the_secret_is_refused(keys: Keys, pair: tuple[LinkedMail, LinkedMail], wrong: str) -> None:
    _, sinks = pair
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PUSH)
    other = Keys.new()
    monitor = socket.get_monitor_socket()
    if wrong == "plain":
        socket.connect(f"tcp://{sinks.address}")
    else:
        # An enemy may know the public key of the topology, and still has no secret for it.
        socket.curve_publickey, socket.curve_secretkey = other.public, other.secret
        socket.curve_serverkey = keys.public if wrong == "the client" else other.public
        socket.connect(f"tcp://{sinks.address}")
    socket.send(Encoder(TOPOLOGY).encode(SINK, tuples((6, 6))))
    from zmq.utils.monitor import parse_monitor_message

    failures = (
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_AUTH,
        zmq.EVENT_DISCONNECTED,
    )  # fmt: skip
    until(lambda: parse_monitor_message(monitor.recv_multipart())["event"] in failures, "it is refused")
    pair[0].send(SINK, tuples((7, 7)))
    assert [body[0][0] for _, body in received(sinks, SINK)] == [(7, 7)]
    socket.disable_monitor()
    context.destroy(linger=0)


def test_damaged_frames_are_counted_dropped_and_shown(
    keys: Keys, pair: tuple[LinkedMail, LinkedMail], caplog: pytest.LogCaptureFixture
) -> None:
    spouts, sinks = pair
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PUSH)
    keys.connect(socket, sinks.address)
    good = Encoder(TOPOLOGY).encode(SINK, tuples((1, 2), ids={1: 2}))
    news = Encoder(TOPOLOGY).encode(SINK, Tracking([1, 2, 3]))
    frames = [b"", b"\0", b"\x09" + good[1:], b"\x03" + b"123", good[:-3], good + b"x", news[:-1], news + b"12345678"]
    frames += [good[:5] + bytes([each ^ 0xFF for each in good[5:]]), good[:5] + b"\x91" * 3000]
    with caplog.at_level(logging.WARNING, "trident.storm"):
        for frame in frames:
            socket.send(frame)
        socket.send(b"\0\xff\0\0\0" + good[5:])
        until(lambda: sinks.corrupt == len(frames) and sinks.unknown == 1, "all are counted")
    assert sinks.inboxes[SINK].take(0) == []
    assert "is damaged (" in caplog.text
    spouts.send(SINK, tuples((7, 7)))
    assert received(sinks, SINK)[0][1][0][0] == (7, 7)
    context.destroy(linger=0)
