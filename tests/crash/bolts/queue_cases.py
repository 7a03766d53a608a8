"""The queues of the kill campaign: filled, read by a spout, and asked what is left in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import redis
from confluent_kafka import Consumer, TopicPartition

from spouts import KafkaSpout, RedisStreamRichSpout
from tests.harness.kafka_servers import start_kafka
from tests.harness.kafka_topics import Record, Topics
from tests.harness.servers import start_redis

PENDING = 500  # messages that a spout's task takes from its queue before they are acknowledged there
_NAME, _GROUP, _PARTITIONS = "kills", "kills", 2


class Queue(Protocol):
    """A queue with its server, as the campaign sees it."""

    address: str

    def add(self, first: int, last: int) -> None:
        """Put messages in: the numbers from `first`, without `last`."""

    def left(self) -> int:
        """How many messages are not acknowledged; asked when no spout is connected."""


def spout_of(kind: str, address: str) -> Any:
    """Return the spout over a queue."""
    retries: dict[str, Any] = {"max_pending": PENDING, "first_pause_s": 0.1, "longest_pause_s": 1.0}
    if kind == "redis":
        return RedisStreamRichSpout(address, _NAME, "n: bigint", group=_GROUP, **retries)
    return KafkaSpout(address, _NAME, group_id=_GROUP, value="text", **retries)


class _Redis:
    def __init__(self, address: str) -> None:
        self.address = address
        self._client = redis.Redis.from_url(address)

    def add(self, first: int, last: int) -> None:
        pipe = self._client.pipeline(transaction=False)
        for number in range(first, last):
            pipe.xadd(_NAME, {"n": number})
        pipe.execute()

    def left(self) -> int:
        (group,) = self._client.xinfo_groups(_NAME)
        return int(group["pending"]) + int(group["lag"])


class _Kafka:
    def __init__(self, address: str) -> None:
        self.address, self._topics = address, Topics(address)
        self._topics.create(_PARTITIONS, _NAME)

    def add(self, first: int, last: int) -> None:
        records = [Record(str(number).encode(), partition=number % _PARTITIONS) for number in range(first, last)]
        self._topics.produce(_NAME, records)

    def left(self) -> int:
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": _GROUP})
        committed = consumer.committed([TopicPartition(_NAME, number) for number in range(_PARTITIONS)], timeout=30)
        consumer.close()
        return sum(self._topics.ends(_NAME)) - sum(max(0, each.offset) for each in committed)


@contextmanager
def _redis(work: Path) -> Iterator[Queue]:
    server = start_redis(work)
    try:
        yield _Redis(f"redis://{server.address}/0")
    finally:
        server.stop()


@contextmanager
def _kafka(work: Path) -> Iterator[Queue]:
    cluster = start_kafka(work)
    try:
        yield _Kafka(cluster.bootstrap)
    finally:
        cluster.stop()


QUEUES = {"redis": _redis, "kafka": _kafka}
