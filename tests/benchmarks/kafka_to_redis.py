"""Kafka to Redis, a count per key: a topology, and the same job in foreachBatch with an idempotent sink written by hand.

Spark's Kafka source is needed: `make build/services/spark-kafka`.

`python -m tests.benchmarks.kafka_to_redis [--batches 40] [--rounds 2]` starts a broker and a Redis and fills a topic of four
partitions. Each way counts it in batches of 10,000 records. Compare the ratios of one run.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from pyspark.sql import DataFrame, SparkSession

from spouts.kafka import TransactionalTridentKafkaSpout
from states.redis import RedisState
from tests.benchmarks._measuring import in_turns, medians
from tests.benchmarks.kafka_reading import spark_session
from tests.harness.kafka_servers import start_kafka
from tests.harness.kafka_topics import Record, Topics
from tests.harness.servers import start_redis
from trident import TridentTopology
from trident.operations import Count

PARTITIONS, BATCH, KEYS = 4, 10_000, 5_000
_WARM = 5  # batches that are not counted
_numbers = itertools.count()


class Job:
    """The topic, what is in it, and a Redis to count it in."""

    def __init__(self, kafka: str, redis_url: str, topic: str, expected: Counter[str]) -> None:
        self.kafka, self.redis_url, self.topic, self.expected = kafka, redis_url, topic, expected

    def topology(self, engine: str) -> float:
        """Run the topology; the seconds of a batch."""
        topology = TridentTopology(f"keys-{next(_numbers)}")
        spout = TransactionalTridentKafkaSpout(self.kafka, self.topic, value="text", max_batch_records=BATCH)
        counts = (
            topology.new_stream("records", spout)
            .group_by("value")
            .persistent_aggregate(RedisState.opaque(self.redis_url), Count(), "count")
        )
        with tempfile.TemporaryDirectory() as log, topology.start(engine=engine, log_dir=f"{log}/log") as running:
            running.process_all_available()
            ended = [batch["recordedAt"] for batch in running.recent_progress]
            assert running.state(counts).multi_get(list(self.expected)) == list(self.expected.values())
        return _per_batch(ended)

    def foreach_batch(self, spark: SparkSession) -> float:
        """Run the job in foreachBatch; the seconds of a batch."""
        client, prefix, ended = redis.Redis.from_url(self.redis_url), f"plain-{next(_numbers)}", []

        def add(batch: DataFrame, batch_id: int) -> None:
            counted = batch.selectExpr("CAST(value AS STRING) AS key").groupBy("key").count().toArrow()
            keys = [f"{prefix}:{key}" for key in counted["key"].to_pylist()]
            fields = [(stored or b"-1 0 0").split() for stored in client.mget(keys)]
            befores = [int(f[1] if int(f[0]) == batch_id else f[2]) for f in fields]
            values = (f"{batch_id} {b} {b + n}" for b, n in zip(befores, counted["count"].to_pylist(), strict=True))
            client.mset(dict(zip(keys, values, strict=True)))
            ended.append(time.monotonic())

        with tempfile.TemporaryDirectory() as checkpoint:
            source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.kafka)
            source = source.option("subscribe", self.topic).option("startingOffsets", "earliest")
            stream = source.option("maxOffsetsPerTrigger", BATCH).load()
            query: Any = stream.writeStream.foreachBatch(add).option("checkpointLocation", checkpoint)
            query = query.trigger(availableNow=True).start()
            query.awaitTermination()
        stored: Any = client.mget([f"{prefix}:{key}" for key in self.expected])
        assert [int(value.split()[2]) for value in stored] == list(self.expected.values())
        client.close()
        return _per_batch(ended)


def _per_batch(ended: list[float]) -> float:
    return (ended[-1] - ended[_WARM]) / (len(ended) - 1 - _WARM)


def _fill(topics: Topics, batches: int) -> tuple[str, Counter[str]]:
    draw = random.Random(3)
    values = [f"key-{int(draw.paretovariate(0.6)) % KEYS:04}" for _ in range(batches * BATCH)]
    topic = topics.create(PARTITIONS)
    filling = (Record(value.encode(), partition=at % PARTITIONS) for at, value in enumerate(values))
    topics.produce(topic, filling, linger_ms=50, batch_num_messages=10_000)
    return topic, Counter(values)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--batches", type=int, default=40)
    options.add_argument("--rounds", type=int, default=2)
    given = options.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="trident-bench-kafka-") as folder,
        start_kafka(Path(folder)) as cluster,
        start_redis(Path(folder)) as store,
        spark_session(),
    ):
        job = Job(cluster.bootstrap, f"redis://{store.address}/0", *_fill(Topics(cluster.bootstrap), given.batches))
        spark = SparkSession.active()
        spark.conf.set("spark.sql.shuffle.partitions", 2)  # Spark's 200 would be slower
        _measure(job, given.rounds, spark)


def _measure(job: Job, rounds: int, spark: SparkSession) -> None:
    ways: dict[str, Callable[[], float]] = {
        "foreachBatch": lambda: job.foreach_batch(spark),
        "Trident, engine=spark": lambda: job.topology("spark"),
        "Trident, engine=auto": lambda: job.topology("auto"),
    }
    took = medians(in_turns(ways, rounds, 0))
    for name, seconds in took.items():
        times = took["foreachBatch"] / seconds
        print(f"{name:24} {seconds * 1000:7.0f} ms a batch of {BATCH:,}   {times:.2f} times as fast")


if __name__ == "__main__":
    main()
