"""A broker that leads a partition is killed while a topology processes or commits a batch: how it goes on, and what is counted.

With two copies of each partition the other broker takes over, and the killed one stays away until all is counted. With one
copy its partitions are away until it is back.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from spouts.kafka import OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from states.memory import MemoryMapState
from tests.harness.kafka_servers import KafkaCluster
from tests.harness.kafka_topics import Record, Topics
from tests.harness.topology_runs import Keep, Points, RowsState, start
from trident import TridentCollector, TridentTopology, TridentTuple
from trident.operations import Count, Function
from trident.state import StateType

__all__ = ["POINTS", "RECORDS", "Outcome", "kill_a_broker"]

POINTS = ("processing", "commit")
PARTITIONS, RECORDS, BATCH = 4, 4000, 200
_LIMIT_S = 100.0


class Outcome(NamedTuple):
    """What came of a run: `meanwhile` batches were recorded before the broker was back, or at all if it stayed away."""

    meanwhile: int
    records: int
    exact: bool


class _Killer:
    """Kills the broker that leads a partition, once, when so many tuples have come by."""

    def __init__(self, kill: Callable[[], None], at: int) -> None:
        self._kill, self._left = kill, at
        self._lock = threading.Lock()  # tuples come by in several threads
        self.done = threading.Event()

    def count(self, tuples: int) -> None:
        with self._lock:
            self._left -= tuples
            if self._left <= 0 and not self.done.is_set():
                self._kill()
                self.done.set()


_killers: dict[str, _Killer] = {}


class _Passing(Function):
    """Lets tuples through; the processing of a batch comes by here."""

    output_types = ("boolean",)

    def __init__(self, topic: str, is_armed: bool) -> None:
        self.topic, self.is_armed = topic, is_armed

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        if self.is_armed:
            _killers[self.topic].count(1)
        collector.emit([True])


class _KillingKeep(Keep):
    """Keeps the tuples; the commit of a batch comes by here."""

    def __init__(self, topic: str, is_armed: bool) -> None:
        self.topic, self.is_armed = topic, is_armed

    def update_state(self, state: RowsState, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        super().update_state(state, tuples, collector)
        if self.is_armed:
            _killers[self.topic].count(len(tuples))


def _topology(bootstrap: str, topic: str, promise: str, point: str) -> tuple[TridentTopology, RowsState, Any]:
    spouts = {"transactional": TransactionalTridentKafkaSpout, "opaque": OpaqueTridentKafkaSpout}
    spout = spouts[promise](
        bootstrap, topic, key="text", value="text", fields="key, value, partition", max_batch_records=BATCH, refresh_s=0.5,
        partition_timeout_s=60 if promise == "transactional" else 2,
    )  # fmt: skip
    topology, kept = TridentTopology("counts"), RowsState()
    records = topology.new_stream("records", spout).each("key", _Passing(topic, point == "processing"), "passed")
    keeping = _KillingKeep(topic, point == "commit")
    records.partition_persist(kept, ["partition", "value"], keeping, "at: int, kept: string", state_name="kept")
    return (
        topology,
        kept,
        records.group_by("key").persistent_aggregate(MemoryMapState(kind=StateType(promise)), Count(), "count"),
    )


def kill_a_broker(cluster: KafkaCluster, promise: str, point: str, copies: int, seed: int) -> Outcome:
    """Run a topology over a topic, kill a broker on the way, and compare what was counted with the topic itself."""
    rng, topics, seen = random.Random(seed), Topics(cluster.bootstrap), Points()
    topic = topics.create(PARTITIONS, copies=copies)
    topics.produce(
        topic, [Record(b"%d" % n, b"key-%d" % (n % 17), n // 7 % PARTITIONS) for n in range(RECORDS)]
    )  # runs of records, so that partitions end at different times
    victim = cluster.leader(topic, rng.randrange(PARTITIONS))
    killer = _killers[topic] = _Killer(victim.kill, rng.randrange(RECORDS // 5, RECORDS * 3 // 5))
    topology, kept, counts = _topology(cluster.bootstrap, topic, promise, point)
    try:
        with start(topology, "in_process", seen) as running:
            while not killer.done.wait(0.1):
                assert running.is_active, "it ended before the broker was killed"
            killed, recorded = time.monotonic(), _recorded(seen)
            if copies == 1:
                victim.start()
            meanwhile = _recorded(seen) - recorded
            while len(kept.rows) < RECORDS and time.monotonic() < killed + _LIMIT_S:
                running.process_all_available()
            if copies > 1:
                meanwhile = _recorded(seen) - recorded
            found = dict(zip(_keys(), running.state(counts).multi_get(_keys()), strict=True))
    finally:
        cluster.restart()
    return Outcome(meanwhile, len(kept.rows), _is_exact(topics, topic, kept, found))


def _recorded(seen: Points) -> int:
    return sum(point == "recorded" for point, _ in seen.reached)


def _keys() -> list[tuple[str]]:
    return [(f"key-{n}",) for n in range(17)]


def _is_exact(topics: Topics, topic: str, kept: RowsState, found: dict[tuple[str], Any]) -> bool:
    """Whether each record was kept once, in the order of its partition, and counted once; by what the topic holds."""
    wanted: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
    counts: Counter[tuple[str]] = Counter()
    for one in topics.read(topic):
        wanted[one.partition].append((one.value or b"").decode())
        counts[((one.key or b"").decode(),)] += 1
    rows: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
    for partition, value in kept.rows:
        rows[partition].append(value)
    return rows == wanted and found == dict(counts)
