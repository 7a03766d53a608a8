"""Sources on real servers, for the suite of `trident.testing`: topics of Kafka, streams of Redis."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from spouts import FeederBatchSpout, StateChangesSpout, StructuredStreamingSpout, TransactionalRedisStreamSpout
from spouts.kafka import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from states.redis import RedisState
from tests.harness.kafka_servers import KafkaCluster
from tests.harness.kafka_topics import Record, Topics
from tests.harness.servers import Server
from tests.spouts.redis.streams import FIELDS, client_of, url_of
from trident import TridentTopology
from trident.operations import Sum
from trident.testing import SpoutSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["OpaqueTopics", "StateFeed", "StreamRanges", "Streamed", "TransactionalTopics"]

LIMIT = 6


class _Topic(SpoutSource):
    """A topic; its partitions are those of Kafka."""

    limit = LIMIT
    partitions = 2
    adds_partitions = True
    patience_s = 30.0
    idle_s = 1.0
    opaque: ClassVar[bool]

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster, self.topics = cluster, Topics(cluster.bootstrap)
        self.topic, self.number = self._led_apart(), self.partitions
        self.leaders = self._leaders() if self.offers("lost") else {}

    def spout(self) -> Any:
        kind = OpaqueTridentKafkaSpout if self.opaque else TransactionalTridentKafkaSpout
        return kind(
            self.cluster.bootstrap, self.topic, value="text", fields="value, partition", max_batch_records=LIMIT,
            refresh_s=0.05, partition_timeout_s=10.0,
        )  # fmt: skip

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        if partition >= self.number:
            self.topics.add_partitions(self.topic, partition + 1)
            self.number = partition + 1
        self.topics.produce(self.topic, [Record(f"row {number}".encode(), None, partition) for number in numbers])
        return [(f"row {number}", partition) for number in numbers]

    @contextmanager
    def outage(self) -> Iterator[None]:
        for broker in self.cluster.brokers:
            broker.pause()
        try:
            yield
        finally:
            for broker in self.cluster.brokers:
                broker.resume()

    def offers(self, method: str) -> bool:
        return super().offers(method) and (method != "lost" or len(self.cluster.brokers) > 1)

    @contextmanager
    def lost(self, partition: int) -> Iterator[None]:
        """The broker that has its only copy is killed."""
        broker = self.leaders[partition]
        broker.kill()
        try:
            yield
        finally:
            broker.start()

    def _leaders(self) -> dict[int, Any]:
        found = self.topics.admin.list_topics(timeout=60).topics[self.topic].partitions
        by_id = {broker.node: broker for broker in self.cluster.brokers}
        return {partition: by_id[each.leader] for partition, each in found.items()}

    def _led_apart(self) -> str:
        """Make a topic without copies; with two brokers, each leads a partition."""
        while True:
            topic = self.topics.create(self.partitions, copies=1)
            found = self.topics.admin.list_topics(timeout=60).topics[topic].partitions.values()
            if len({each.leader for each in found}) == min(self.partitions, len(self.cluster.brokers)):
                return topic
            self.topics.delete(topic)

    def change(self) -> None:
        """The retention passes."""
        for partition in range(self.number):
            self.topics.delete_records(self.topic, 2, partition)

    def close(self) -> None:
        self.topics.delete(self.topic)


class TransactionalTopics(_Topic):
    opaque = False


class OpaqueTopics(_Topic):
    opaque = True


class _OnRedis(SpoutSource):
    """A source on one server, which can be paused."""

    def __init__(self, server: Server) -> None:
        self.server, self.client = server, client_of(server)
        self.client.flushall()

    @contextmanager
    def outage(self) -> Iterator[None]:
        self.server.pause()
        try:
            yield
        finally:
            self.server.resume()

    def close(self) -> None:
        self.client.flushall()
        self.client.close()


class StreamRanges(_OnRedis):
    """Two streams, read as logs by their ids; they are there from the beginning."""

    limit = LIMIT
    partitions = 2
    idle_s = 1.0

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.streams = [f"s{partition}" for partition in range(self.partitions)]

    def spout(self) -> Any:
        return TransactionalRedisStreamSpout(url_of(self.server), self.streams, FIELDS, max_entries=LIMIT, timeout_s=1)

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        for number in numbers:
            self.client.xadd(self.streams[partition], {"word": f"w{number}", "n": number}, id=f"{number}-0")
        return [(f"w{number}", number, f"{number}-0", self.streams[partition]) for number in numbers]

    def change(self) -> None:
        """The streams are trimmed."""
        for stream in self.streams:
            self.client.xtrim(stream, maxlen=1, approximate=False)


class StateFeed(_OnRedis):
    """A state of another topology, in which each batch changes one key."""

    limit = LIMIT
    idle_s = 1.0

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.home, self.rows = tempfile.mkdtemp(prefix="trident-feed-"), FeederBatchSpout("word: string, n: bigint")
        self.topology = TridentTopology("fed")
        state = RedisState.opaque(url_of(server), changes="1d", timeout_s=1, connect_timeout_s=1, retries=0)
        words = self.topology.new_stream("words", self.rows).group_by("word")
        words.persistent_aggregate(state, "n", Sum(), "sum", state_name="sums")
        self.running = self.topology.start(engine="in_process", log_dir=self.home, poll_interval_ms=1)

    def spout(self) -> Any:
        return StateChangesSpout(self.topology, "sums", self.home, since=0, max_batches=LIMIT)

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        for number in numbers:
            self.rows.feed([(f"w{number}", number)])
        self.running.process_all_available()
        return [(f"w{number}", None, number) for number in numbers]

    def row_of(self, emitted: tuple[Any, ...]) -> tuple[Any, ...]:
        return emitted[:-1]

    def change(self) -> None:
        """The stream is trimmed, as a state that keeps fewer changes does it."""
        self.client.hset("fed/sums:sentinels", "changes:gone", 2)
        self.client.xtrim("fed/sums:changes", minid="3-0")

    def close(self) -> None:
        self.running.stop()
        shutil.rmtree(self.home)
        super().close()


class Streamed(SpoutSource):
    """A folder that Spark streams, one file a batch."""

    limit = LIMIT
    patience_s = 30.0
    idle_s = 1.0
    crashes = False  # Spark refuses two queries on one checkpoint

    def __init__(self, spark: SparkSession) -> None:
        self.spark, self.files = spark, 0
        self.home = Path(tempfile.mkdtemp(prefix="trident-streamed-"))
        self.folder = self.home / "in"
        self.folder.mkdir()

    def spout(self) -> Any:
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder))
        return StructuredStreamingSpout(lines, self.home / "checkpoint")

    def fill(self, numbers: Sequence[int], partition: int) -> list[tuple[Any, ...]]:
        rows = [(f"row {number}",) for number in numbers]
        for start in range(0, len(rows), LIMIT):
            self.files += 1
            part = self.home / "part"
            part.write_text("".join(f"{line}\n" for (line,) in rows[start : start + LIMIT]), encoding="utf-8")
            os.utime(part, (1_700_000_000 + self.files,) * 2)  # Spark reads files in the order of their times
            part.rename(self.folder / f"{self.files:06}.txt")
        return rows

    def close(self) -> None:
        shutil.rmtree(self.home)
