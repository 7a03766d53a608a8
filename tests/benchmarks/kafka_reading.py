"""How fast Kafka is read: the opaque spout in Spark's tasks, Spark's own Kafka source, and bare loops of confluent-kafka.

`python -m tests.benchmarks.kafka_reading [--records 4000000] [--rounds 3]` starts a broker, fills a topic of 4 partitions
with values of 100 bytes, and reads it with each in turn; as many processes read in the loops as Spark has cores. Compare
the ratios of one run.
"""

import itertools
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Self

import psutil
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from spouts import OpaqueTridentKafkaSpout
from states.memory import MemoryMapState
from tests.benchmarks._measuring import Figures, in_turns, run_rows, work_folder
from tests.harness.kafka_servers import KafkaCluster, start_kafka
from tests.harness.kafka_topics import Record, Topics
from tests.harness.servers import ROOT
from trident import TridentTopology
from trident.operations import Count
from trident.spark.environment import pin_worker_python

PARTITIONS, CORES, VALUE = 4, 2, bytes(range(100))
_JARS = ROOT / "build" / "services" / "spark-kafka"
_TUNED = {"fetch.queue.backoff.ms": 1, "queued.max.messages.kbytes": 16 << 10}
_numbers = itertools.count()


@contextmanager
def spark_session() -> Iterator[None]:
    """Start Spark with its Kafka source; `make build/services/spark-kafka` fetches that."""
    jars = ",".join(str(path) for path in sorted(_JARS.glob("*.jar")))
    assert jars, "Spark's Kafka source is missing: make build/services/spark-kafka"
    pin_worker_python()
    builder: Any = SparkSession.builder
    builder = builder.master(f"local[{CORES}]").config("spark.jars", jars).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark: Any = builder.config("spark.log.level", "ERROR").getOrCreate()
    try:
        yield
    finally:
        spark.stop()


class Cost(NamedTuple):
    """What reading a topic took: seconds by the clock, and of the processors, the broker's not counted."""

    seconds: float
    processor: float


class Meter:
    """Measures what happens inside of it, in this process and those that it started."""

    def __init__(self, but: Sequence[int]) -> None:
        self._but, self.cost = but, Cost(0.0, 0.0)

    def __enter__(self) -> Self:
        self._began, self._used = time.monotonic(), self._processor()
        return self

    def __exit__(self, *_: object) -> None:
        self.cost = Cost(time.monotonic() - self._began, self._processor() - self._used)

    def _processor(self) -> float:
        """Count those that have ended too: their parents have it."""
        own = psutil.Process()
        total = 0.0
        for process in [own, *own.children(recursive=True)]:
            if process.pid not in self._but:
                with suppress(psutil.NoSuchProcess):
                    total += sum(process.cpu_times()[:4])
        return total


def trident(bootstrap: str, topic: str, records: int, meter: Meter) -> None:
    """Count a topic with a topology on Spark."""
    topology = TridentTopology(f"reading-{next(_numbers)}")
    spout = OpaqueTridentKafkaSpout(bootstrap, topic)
    total = topology.new_stream("records", spout).persistent_aggregate(MemoryMapState(), Count(), "count")
    with topology.start(engine="spark") as running:
        with meter:
            running.process_all_available()
        assert running.state(total).get() == records


def spark_source(bootstrap: str, topic: str, records: int, meter: Meter) -> None:
    """Count a topic with Spark's own source."""
    spark = SparkSession.active()
    with meter:
        read = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        counted = read.load().agg(fn.count("value"), fn.sum(fn.length("value"))).collect()
    assert tuple(counted[0]) == (records, records * len(VALUE))


def loops(bootstrap: str, topic: str, records: int, meter: Meter, settings: dict[str, Any]) -> None:
    """Read a topic with a bare loop in each of several processes, which are ready when it begins."""
    context = multiprocessing.get_context("spawn")
    barrier, ended = context.Barrier(CORES + 1), context.Barrier(CORES + 1)
    each = records // PARTITIONS
    workers: list[Any] = [
        context.Process(
            target=_loop, args=(bootstrap, topic, list(range(first, PARTITIONS, CORES)), each, settings, barrier, ended)
        )
        for first in range(CORES)
    ]
    for worker in workers:
        worker.start()
    barrier.wait()
    with meter:
        ended.wait()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0


def _loop(
    bootstrap: str, topic: str, partitions: list[int], each: int, settings: dict[str, Any], barrier: Any, ended: Any
) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "loop", "enable.auto.commit": False, **settings})
    consumer.list_topics(topic)
    left, size = each * len(partitions), 0
    barrier.wait()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    while left:
        messages = consumer.consume(min(left, 10_000), 1.0)
        values = [message.value() or b"" for message in messages]
        size += sum(map(len, values))
        left -= len(values)
    ended.wait()
    consumer.close()
    assert size == each * len(partitions) * len(VALUE)


def reading(records: int = 4_000_000, rounds: int = 3) -> Iterator[Figures]:
    """Ways to read `--records`, in turns; times and cores are those of a way by Trident's."""
    with work_folder() as folder, start_kafka(folder) as cluster:
        topics = Topics(cluster.bootstrap)
        topic = topics.create(PARTITIONS)
        filling = (Record(VALUE, partition=number % PARTITIONS) for number in range(records))
        topics.produce(topic, filling, linger_ms=50, batch_num_messages=10_000)
        with spark_session():
            yield from _measure(cluster, topic, records, rounds)


def _measure(cluster: KafkaCluster, topic: str, records: int, rounds: int) -> Iterator[Figures]:
    ways: dict[str, Callable[..., None]] = {
        "Trident": trident,
        "Spark's own source": spark_source,
        "loops, librdkafka's defaults": partial(loops, settings={}),
        "loops, tuned as the spout is": partial(loops, settings=_TUNED),
    }

    def cost_of(run: Callable[..., None]) -> Cost:
        meter = Meter([broker.pid for broker in cluster.brokers])
        run(cluster.bootstrap, topic, records, meter)
        return meter.cost

    costs = in_turns({name: partial(cost_of, run) for name, run in ways.items()}, rounds)
    of = {name: Cost(*map(statistics.median, zip(*each, strict=True))) for name, each in costs.items()}
    for name, cost in of.items():
        yield {
            "way": name, "krecords_per_s": round(records / cost.seconds / 1000),
            "time": round(cost.seconds / of["Trident"].seconds, 2),
            "ns_of_a_core": round(cost.processor / records * 1e9), "cores": round(cost.processor / of["Trident"].processor, 2),
        }  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_rows(__doc__, {"reading": reading}))
