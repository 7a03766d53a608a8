"""Answers of Kafka that come late, never, with an error or from another broker: no record is skipped without a word."""

import datetime
import itertools
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext
from functools import partial
from typing import Any

import pytest
from confluent_kafka import TopicCollection

from spouts import KafkaSpout
from spouts import messages as message_spout
from spouts.kafka import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout, clients
from states.memory import MemoryMapState
from tests.harness.commands import until
from tests.harness.kafka_proxy import (
    COMMIT,
    COORDINATOR,
    EPOCH_END,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSETS_OF_GROUP,
    SETTINGS,
    How,
    KafkaProxy,
    asks_for_time,
)
from tests.harness.kafka_servers import KafkaCluster
from tests.harness.kafka_topics import Record, Topics
from tests.spouts.driving import Task
from tests.spouts.kafka.kafka_batches import BOTH, Kind, batches
from tests.spouts.reading import Life
from trident import TridentTopology
from trident.errors import SourceAwayError, SpoutError
from trident.operations import Count

NOON = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
QUICK = {"reconnect.backoff.max.ms": 100, "socket.timeout.ms": 2000}
NOON_MS = int(NOON.timestamp() * 1000)


@pytest.fixture
def proxy(kafka_server: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaProxy]:
    monkeypatch.setattr(clients, "_ASK_S", 0.5)
    with closing(KafkaProxy(kafka_server)) as proxy:
        yield proxy


def numbered(start: int, end: int) -> list[Record]:
    return [Record(b"%d" % n, timestamp_ms=NOON_MS + n) for n in range(start, end)]


@pytest.mark.long
@BOTH
def test_a_time_to_begin_at_that_is_not_answered_is_asked_for_again(
    kafka_topics: Topics, proxy: KafkaProxy, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka_topics.filled(numbered(0, 100))
    with batches(kind(proxy.bootstrap, topic, first_poll=NOON)) as made:
        with proxy.rule("never", LIST_OFFSETS, only=partial(asks_for_time, ms=NOON_MS)) as rule:
            assert made.next() is None
            rule.wait()
            assert made.coordinator.may_have_more()
        assert [int(value) for (value,) in made.until(100)] == list(range(100))
    assert f"asking for the first record of partition 0 of topic '{topic}'" in caplog.text


@pytest.mark.sample(1)
@BOTH
def test_a_topology_does_not_say_that_all_is_processed_while_the_broker_is_silent(
    kafka_topics: Topics, proxy: KafkaProxy, kind: Kind
) -> None:
    topic = kafka_topics.filled(numbered(0, 100))
    topology = TridentTopology("silent")
    spout = kind(proxy.bootstrap, topic)
    counts = topology.new_stream("records", spout).persistent_aggregate(MemoryMapState(), Count(), "count")
    with proxy.rule("never", LIST_OFFSETS) as rule, topology.start(engine="in_process") as running:
        ended = threading.Thread(target=running.process_all_available)
        ended.start()
        rule.wait()
        ended.join(2)
        assert ended.is_alive()
        proxy.lift(rule)
        ended.join(30)
        assert not ended.is_alive()
        assert running.state(counts).get() == 100


@pytest.mark.sample(1)
@pytest.mark.parametrize("withheld", [None, FETCH, LIST_OFFSETS])
def test_a_topology_with_a_spout_of_messages_does_not_say_so_either(
    kafka_topics: Topics, proxy: KafkaProxy, withheld: int | None
) -> None:
    topic = kafka_topics.filled(numbered(0, 100))
    topology = TridentTopology("silent")
    spout: Any = KafkaSpout(proxy.bootstrap, topic, group_id="group-" + topic, config=QUICK)
    counts = topology.new_stream("records", spout).persistent_aggregate(MemoryMapState(), Count(), "count")
    with topology.start(engine="in_process", allow_inexact=True) as running:
        running.process_all_available()
        assert running.state(counts).get() == 100
        if withheld is None:
            return
        with proxy.rule("never", withheld) as rule:
            kafka_topics.produce(topic, numbered(100, 150))
            ended = threading.Thread(target=running.process_all_available)
            ended.start()
            rule.wait()
            ended.join(1)
            assert ended.is_alive()
        ended.join(120)
        assert running.state(counts).get() == 150


ASKED = {
    "offsets": LIST_OFFSETS, "topics": METADATA, "settings": SETTINGS, "coordinator": COORDINATOR,
    "group": OFFSETS_OF_GROUP, "epochs": EPOCH_END, "records": FETCH, "commit": COMMIT,
}  # fmt: skip
HOWS: tuple[How, ...] = ("never", "late", "cut", "error", "other broker")
STEPS = ("first look", "definition", "reading", "after a restart")
SPOUTS = ("opaque", "transactional", "messages")
CASES = list(itertools.product(SPOUTS, ASKED, HOWS, STEPS))
OLDER, FIRST, LATER = numbered(-20, 0), numbered(0, 50), numbered(50, 90)


@pytest.fixture
def pair(kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaProxy]:
    monkeypatch.setattr(clients, "_ASK_S", 0.4)
    monkeypatch.setattr(message_spout, "_START_S", 0.5)
    with closing(KafkaProxy(kafka_cluster)) as proxy:
        yield proxy


def test_a_silence_is_told_by_its_partition_also_if_no_broker_answers(kafka_topics: Topics, proxy: KafkaProxy) -> None:
    topic = kafka_topics.filled(numbered(0, 10))
    spout = OpaqueTridentKafkaSpout(proxy.bootstrap, topic, partition_timeout_s=0.5, config=QUICK)
    with batches(spout) as made:
        defined = made.define()
        assert defined is not None
        proxy.close()
        with pytest.raises(SourceAwayError, match=f"{topic}', offset 0: no record came within partition_timeout_s=0.5"):
            made.read(defined)


@pytest.mark.long
@pytest.mark.parametrize(
    ("spout", "asked", "how", "step"),
    [
        # Each spout, kind of request, way and step at least once, in few cases.
        pytest.param(*case, marks=() if at % 61 == 7 else pytest.mark.soak, id="-".join(case))
        for at, case in enumerate(CASES)
    ],
)
def test_no_record_is_skipped_whatever_is_not_answered(
    kafka_cluster: KafkaCluster, pair: KafkaProxy, spout: str, asked: str, how: How, step: str
) -> None:
    topics = Topics(kafka_cluster.bootstrap)
    topic = topics.filled([*OLDER, *FIRST], copies=2)
    (found,) = topics.admin.describe_topics(TopicCollection([topic])).values()
    id_ = found.result(30).topic_id
    names = (
        topic.encode(),
        struct.pack(">QQ", id_.get_most_significant_bits() % 2**64, id_.get_least_significant_bits() % 2**64),
    )
    rule = partial(pair.rule, how, ASKED[asked], names=names)
    run = Messages(pair, topic) if spout == "messages" else Ranges(pair, topic, spout)
    for at, records in (("first look", FIRST), ("definition", LATER)):
        if at == "definition":
            topics.produce(topic, LATER)
        with rule() if step == at else nullcontext():
            run.try_once()
        if at == "first look":
            with rule() if step == "reading" else nullcontext():
                run.try_once()
        run.read(len(records))
    run.restart()
    topics.produce(topic, numbered(90, 100))
    with rule() if step == "after a restart" else nullcontext():
        run.try_once()
    run.read(10)
    assert run.found == [b"%d" % n for n in range(100)]
    run.restart()


class Reader:
    """Reads until all has come that is expected; what it has opened is opened again after an error or a restart."""

    def __init__(self) -> None:
        self._wanted = 0
        self.found: list[bytes] = []

    def try_once(self) -> None:
        raise NotImplementedError

    def restart(self) -> None:
        raise NotImplementedError

    def read(self, count: int) -> None:
        """Go on until so many more records than were expected before have come."""
        self._wanted += count

        def all_came() -> bool:
            self.try_once()
            return len(self.found) >= self._wanted

        until(all_came, f"{self._wanted} records have come")


class Ranges(Reader):
    """Reads batches, each counted once it is read whole; an error is said, so it is no silence."""

    def __init__(self, proxy: KafkaProxy, topic: str, kind: str) -> None:
        made = OpaqueTridentKafkaSpout if kind == "opaque" else TransactionalTridentKafkaSpout
        self._life = Life(made(
            proxy.bootstrap, topic, first_poll=NOON, partition_timeout_s=1, refresh_s=0.05, group_id="group-" + topic,
            config=QUICK,
        ))  # fmt: skip
        super().__init__()

    def try_once(self) -> None:
        self._life.step()
        self.found = [value for (value,) in self._life.rows]

    def restart(self) -> None:
        self._life.restart()


class Messages(Reader):
    """Takes messages and acknowledges them; one that comes twice counts once."""

    def __init__(self, proxy: KafkaProxy, topic: str) -> None:
        self._spout = KafkaSpout(
            proxy.bootstrap, topic, group_id="group-" + topic, first_poll=NOON, commit_every_s=0.02, refresh_s=0.05,
            config=QUICK,
        )  # fmt: skip
        super().__init__()
        self._task: Task | None = None

    def restart(self) -> None:
        if self._task is not None:
            self._task.close()
        self._task = None

    def try_once(self) -> None:
        """Take what comes within some calls; a worker that ends is started again."""
        try:
            task = self._task = self._task or Task(self._spout)
            for _ in range(100):
                task.spout.next_tuple()
                for (value,), id_ in task.collector.emitted:
                    if value not in self.found:
                        self.found.append(value)
                    task.spout.ack(id_)
                task.collector.emitted.clear()
        except SpoutError:
            self.restart()
