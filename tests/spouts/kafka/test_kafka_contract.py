"""The Kafka spouts keep the contract of spouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from spouts.kafka import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from tests.harness.kafka_topics import Record, Topics
from trident.testing import SpoutContract
from trident.testing.spout.source_under_test import Row, SpoutSource


class TopicSource(SpoutSource):
    """A topic that begins with two partitions; its records are deleted by `change`, as retention does."""

    limit, partitions, adds_partitions = 10, 2, True
    topics: ClassVar[Topics]
    kind: ClassVar[type[OpaqueTridentKafkaSpout] | type[TransactionalTridentKafkaSpout]] = OpaqueTridentKafkaSpout

    def __init__(self) -> None:
        self.topic, self.there = self.topics.create(self.partitions), self.partitions

    def spout(self) -> OpaqueTridentKafkaSpout | TransactionalTridentKafkaSpout:
        return self.kind(
            self.topics.bootstrap,
            self.topic,
            value="text",
            fields="partition, value",
            max_batch_records=10,
            refresh_s=0.01,
        )

    def fill(self, numbers: Sequence[int], partition: int) -> Sequence[Row]:
        if partition >= self.there:
            self.there = partition + 1
            self.topics.add_partitions(self.topic, self.there)
        self.topics.produce(self.topic, [Record(b"%d" % number, partition=partition) for number in numbers])
        return [(partition, str(number)) for number in numbers]

    def change(self) -> None:
        for partition, end in enumerate(self.topics.ends(self.topic)):
            if end:
                self.topics.delete_records(self.topic, end, partition)


class TransactionalTopicSource(TopicSource):
    kind = TransactionalTridentKafkaSpout


@pytest.fixture(autouse=True)
def _topics(kafka_topics: Topics) -> None:
    TopicSource.topics = kafka_topics


@pytest.mark.soak
class TestOpaque(SpoutContract):
    source = TopicSource


@pytest.mark.soak
class TestTransactional(SpoutContract):
    source = TransactionalTopicSource
