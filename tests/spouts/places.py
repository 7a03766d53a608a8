"""Queues that tests fill, and what they show of themselves: the same questions to Redis and Kafka."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import redis
from confluent_kafka import Consumer, KafkaException, TopicPartition

from spouts import KafkaSpout, RedisStreamRichSpout
from spouts.kafka import Json
from tests.harness.kafka_topics import Record, Topics
from trident.storekit import Retries

__all__ = ["GROUP", "KafkaPlace", "Place", "RedisPlace"]

GROUP = "readers"
FIELDS = "word: string, n: bigint"


class RedisPlace:
    """A stream, and one for its dead letters.

    Attributes
    ----------
    successor
        Task and number of tasks that take over from task 0 of 1.
    for_kills
        Options of a spout whose tasks are killed again and again.
    """

    successor = (1, 2)
    for_kills: Mapping[str, Any] = {"claim_idle_s": 5.0}

    def spread(self, tasks: int) -> None:
        """Have so many tasks something to read, before anything is filled: whoever asks gets something."""

    def __init__(self, port: int) -> None:
        self.client: Any = redis.Redis(port=port, protocol=2)
        self.url, self.stream, self.dead_stream = f"redis://127.0.0.1:{port}/0", _name("s"), _name("dead")

    def fill(self, numbers: Sequence[int]) -> None:
        with self.client.pipeline(transaction=False) as commands:
            for number in numbers:
                commands.xadd(self.stream, {"word": f"w{number}", "n": number})
                if len(commands) == 10_000:
                    commands.execute()
            commands.execute()

    def fill_bad(self) -> None:
        self.client.xadd(self.stream, {"word": "bad", "n": "many"})

    def spout(self, **options: Any) -> Any:
        given = {"group": GROUP, "claim_idle_s": 0.5, **self._dead(options)}
        return RedisStreamRichSpout(self.url, self.stream, FIELDS, **given)

    def _dead(self, options: dict[str, Any]) -> dict[str, Any]:
        return {**options, "dead_letters": self.dead_stream} if options.get("dead_letters") else options

    def left(self) -> int:
        if not self.client.exists(self.stream):
            return 0
        (group,) = self.client.xinfo_groups(self.stream)
        return int(group["pending"] + group["lag"])

    def wait_for_acks(self, left: int) -> None:
        assert self.left() == left  # the spout had its answer

    def pending(self) -> list[Any]:
        """Return what Redis knows of each pending entry."""
        return list(self.client.xpending_range(self.stream, GROUP, "-", "+", 1000))

    def dead(self) -> list[Mapping[str, Any]]:
        return [
            {
                "content": (letter[b"word"].decode(), letter[b"n"].decode()),
                "reason": letter[b"dead_letter.reason"].decode(),
                "failures": int(letter[b"dead_letter.failures"]),
            }
            for _, letter in self.client.xrange(self.dead_stream)
        ]


class KafkaPlace:
    """A topic of one partition, or more."""

    successor = (0, 1)
    for_kills: Mapping[str, Any] = {"commit_every_s": 0.1}

    def spread(self, tasks: int) -> None:
        self.topic = self.topics.create(tasks)
        self._partitions = tasks

    def __init__(self, topics: Topics, partitions: int = 1) -> None:
        self.topics, self.topic, self.dead_topic = topics, topics.create(partitions), topics.create()
        self.group, self._partitions = _name("g"), 1

    def fill(self, numbers: Sequence[int], partition: int | None = None) -> None:
        def records() -> Iterator[Record]:
            for number in numbers:
                where = number % self._partitions if partition is None else partition
                yield Record(b'{"word": "w%d", "n": %d}' % (number, number), None, where)

        self.topics.produce(self.topic, records())

    def fill_bad(self) -> None:
        self.topics.produce(self.topic, [b'{"word": "bad", "n": "many"}'])

    def spout(self, **options: Any) -> Any:
        given = {"group_id": self.group, "commit_every_s": 0.02, "value": Json(FIELDS), **options}
        if options.get("dead_letters"):
            given["dead_letters"] = self.dead_topic
        return KafkaSpout(self.topics.bootstrap, self.topic, **given)

    def left(self) -> int:
        return sum(self.topics.ends(self.topic)) - sum(max(0, int(each.offset)) for each in self.committed())

    def wait_for_acks(self, left: int) -> None:
        deadline = time.monotonic() + 30
        while self.left() != left:
            assert time.monotonic() < deadline, self.committed()

    def committed(self) -> list[Any]:
        """Return what the group has committed, offsets and metadata."""
        consumer = Consumer({"bootstrap.servers": self.topics.bootstrap, "group.id": self.group, "log_level": 0})
        try:
            spots = [TopicPartition(self.topic, each) for each in range(self.topics.partitions(self.topic))]
            # A broker that was just started may not have the group yet.
            return list(Retries(30, 0.1, 1.0).run(lambda: consumer.committed(spots, timeout=30), KafkaException))
        finally:
            consumer.close()

    def dead(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for record in self.topics.read(self.dead_topic):
            headers = {name: (value or b"").decode() for name, value in record.headers}
            failures = int(headers["dead_letter.failures"])
            found.append({"content": record.value, "reason": headers["dead_letter.reason"], "failures": failures})
        return found


def _name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:12]}"


Place = RedisPlace | KafkaPlace
"""A queue, a place for its dead letters, and spouts that read it."""
