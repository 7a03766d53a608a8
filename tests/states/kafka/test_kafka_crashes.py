"""A driver that writes to a topic dies at each point of a commit: its successor writes each record once, in order."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from spouts import FixedBatchSpout
from states.kafka import KafkaTopicState, ToTopic, topic_sink
from tests.harness import topology_runs
from tests.harness.forked import die, exit_code_of
from tests.harness.kafka_topics import Topics
from tests.harness.topology_runs import run_all
from trident import TridentTopology
from trident.spout.interfaces import TransactionAttempt

pytestmark = pytest.mark.server
TXID = 3
POINTS = ("began", "half written", "before the sentinel", "before Kafka's commit", "after Kafka's commit", "recorded")
BATCH, ROWS = 4, 20


def topology(bootstrap: str, topic: str, **options: Any) -> TridentTopology:
    declared = TridentTopology("numbers")
    spout = FixedBatchSpout("key: string, value: string", BATCH, *[(str(n % 3), str(n)) for n in range(ROWS)])
    sink = KafkaTopicState.transactional(bootstrap, topic, **options)
    declared.new_stream("numbers", spout).partition_persist(sink, ["key", "value"], ToTopic())
    return declared


class Fuse:
    """Kills this process where it is told to.

    `point` says where in a batch: after the transaction began, with half of the records in Kafka, before or after Kafka's
    commit of the transaction, after the record in the log.
    """

    def __init__(self, point: str, txid: int) -> None:
        self.point, self.txid, self.now = point, txid, 0

    def reach(self, point: str) -> None:
        if (point, self.now) == (self.point, self.txid):
            die()

    def observe(self, step: str, attempt: TransactionAttempt) -> None:
        self.now = attempt.txid if step == "recorded" else self.now
        self.reach(step)

    def arm(self) -> None:
        """Have the sink's producer come by the points."""
        fuse, begin = self, topic_sink.TopicSink.begin_commit

        def begin_commit(sink: Any, txid: int) -> None:
            fuse.now = int(txid)
            begin(sink, txid)
            fuse.reach("began")

        class FusedProducer(Producer):
            made = 0

            def produce(self, *args: Any, **named: Any) -> None:
                super().produce(*args, **named)
                self.made += 1
                if self.made % (BATCH // 2) == 0 and fuse.point == "half written":
                    self.flush()  # so that Kafka has them
                    fuse.reach("half written")

            def send_offsets_to_transaction(self, *args: Any) -> None:
                self.flush()
                fuse.reach("before the sentinel")
                super().send_offsets_to_transaction(*args)

            def commit_transaction(self, *args: Any) -> None:
                fuse.reach("before Kafka's commit")
                super().commit_transaction(*args)
                fuse.reach("after Kafka's commit")

        topic_sink.TopicSink.begin_commit = begin_commit  # type: ignore[method-assign, assignment]
        topic_sink.Producer = FusedProducer  # type: ignore[attr-defined]


def write_until(point: str, bootstrap: str, topic: str, log_dir: str) -> None:
    """Write numbers to a topic, and die at a point of a batch."""
    fuse = Fuse(point, TXID)
    fuse.arm()
    with topology_runs.start(topology(bootstrap, topic), "in_process", fuse.observe, log_dir=log_dir) as running:
        running.process_all_available()


@pytest.fixture
def topic(kafka_topics: Topics) -> str:
    return kafka_topics.create()


def values(topics: Topics, topic: str, committed: bool = True) -> list[int]:
    return [int(one.value or b"") for one in topics.read(topic, committed)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("point", POINTS)
def test_each_record_is_seen_once_and_in_order(point: str, kafka_topics: Topics, topic: str, tmp_path: Path) -> None:
    log_dir = str(tmp_path / "log")
    assert exit_code_of(write_until, point, kafka_topics.bootstrap, topic, log_dir) == -signal.SIGKILL
    written = TXID * BATCH if point in ("after Kafka's commit", "recorded") else (TXID - 1) * BATCH
    assert values(kafka_topics, topic) == list(range(written))
    run_all(topology(kafka_topics.bootstrap, topic), "in_process", log_dir=log_dir)
    assert values(kafka_topics, topic) == list(range(ROWS))
    aborted = {"half written": BATCH // 2, "before the sentinel": BATCH, "before Kafka's commit": BATCH}.get(point, 0)
    assert len(values(kafka_topics, topic, committed=False)) == ROWS + aborted
