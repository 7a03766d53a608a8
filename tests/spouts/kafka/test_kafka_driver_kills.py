"""Drivers and brokers that are killed at random moments: what was counted is what the topic itself says."""

import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spouts.kafka import Json, OpaqueTridentKafkaSpout, TransactionalTridentKafkaSpout
from states.kafka import KafkaTopicState, ToTopic
from states.redis import RedisState
from tests.harness.forked import ROOT, command_of
from tests.harness.kafka_servers import KafkaCluster
from tests.harness.kafka_topics import Record, Topics
from tests.harness.servers import Server
from tests.harness.topology_runs import QUICK, run_all
from tests.spouts.kafka.broker_kills import RECORDS, kill_a_broker
from trident import TridentTopology, TridentTuple, open_state
from trident.operations import ReducerAggregator, Sum
from trident.spout.interfaces import TransactionAttempt
from trident.state import StateType

PARTITIONS, ACCOUNTS = 4, 1000


OUT_OF_ORDER = -1_000_000_000


class InOrder(ReducerAggregator[int]):
    """The last id of a partition, whose ids are 0, 1, 2 …; far below 0 once one came twice, too early or never."""

    output_types = ("bigint",)

    def init(self) -> int:
        return -1

    def reduce(self, curr: int, tuple: TridentTuple) -> int:
        return curr + 1 if tuple[0] == curr + 1 else OUT_OF_ORDER


def topology(life: dict[str, Any]) -> TridentTopology:
    spout = {"transactional": TransactionalTridentKafkaSpout, "opaque": OpaqueTridentKafkaSpout}[life["promise"]]
    declared = TridentTopology(life["name"])
    entries = declared.new_stream(
        "ledger",
        spout(
            life["bootstrap"], life["topic"], key="text", value=Json("id: bigint, amount: bigint"),
            fields="key, value, partition", max_batch_records=life["batch"],
        ),
    )  # fmt: skip
    kind = StateType(life["promise"])
    entries.group_by("key").persistent_aggregate(RedisState.of_kind(kind, life["redis"], {}), "amount", Sum(), "total")
    entries.group_by("partition").persistent_aggregate(
        RedisState.of_kind(kind, life["redis"], {}), "id", InOrder(), "last"
    )
    if life["promise"] == "transactional":
        copy = KafkaTopicState.transactional(life["bootstrap"], life["copy"])
        entries.partition_persist(copy, ["key", "id", "amount", "partition"], ToTopic(), state_name="copy")
    return declared


def count_the_ledger(life: dict[str, Any]) -> None:
    """Sum up the amounts of each account, and follow the ids of each partition; print each batch that is recorded."""

    def say(step: str, attempt: TransactionAttempt) -> None:
        if step == "recorded":
            sys.stdout.write(f"{attempt.txid}\n")
            sys.stdout.flush()

    run_all(topology(life), life["engine"], observer=say, log_dir=life["log_dir"])


class Audit(NamedTuple):
    """What came of a run.

    Attributes
    ----------
    wrong_totals, wrong_partitions
        How many accounts, and the last ids of which partitions, are not what the topic says.
    copied, wrong_copies
        Records in the copy, and partitions of it that are not the same records in the same order.
    """

    kills: int
    wrong_totals: int
    wrong_partitions: dict[int, int | None]
    copied: int
    wrong_copies: int

    @property
    def is_exact(self) -> bool:
        return not (self.wrong_totals or self.wrong_partitions or self.wrong_copies)


def fill(topics: Topics, records: int, seed: int) -> str:
    """Make a ledger: each partition has the ids 0, 1, 2 …; accounts and amounts are drawn."""
    rng, topic = random.Random(seed), topics.create(PARTITIONS)

    def entry(n: int) -> Record:
        value = b'{"id":%d,"amount":%d}' % (n // PARTITIONS, rng.randint(-500, 1000))
        return Record(value, b"account-%d" % rng.randrange(ACCOUNTS), n % PARTITIONS)

    topics.produce(topic, map(entry, range(records)), linger_ms=20)
    return topic


def audit(topics: Topics, life: dict[str, Any], most_kills: int, longest_s: float, seed: int) -> Audit:
    """Run the driver over and over, each time killed after up to so many seconds with batches, at last to its end."""
    rng, kills = random.Random(seed), 0
    while code := _live(life, rng.uniform(0.05, longest_s) if kills < most_kills else None):
        assert code == -signal.SIGKILL, f"the driver ended with {code}"
        kills += 1
    return _compared(topics, life, kills)


def _live(life: dict[str, Any], kill_after_s: float | None) -> int:
    """Run a driver; kill it so many seconds after its first batch. Return how it ended."""
    with subprocess.Popen(command_of(count_the_ledger, life), stdout=subprocess.PIPE, text=True, cwd=ROOT) as driver:
        assert driver.stdout is not None
        for number, _ in enumerate(driver.stdout):
            if number == 0 and kill_after_s is not None:
                timer = threading.Timer(kill_after_s, driver.kill)
                timer.daemon = True
                timer.start()
    return driver.returncode


def _compared(topics: Topics, life: dict[str, Any], kills: int) -> Audit:
    source = topics.read(life["topic"])
    totals: Counter[str] = Counter()
    ends: Counter[int] = Counter()
    for one in source:
        entry = json.loads(one.value or b"")
        assert entry["id"] == ends[one.partition], "the ledger itself is out of order"
        totals[(one.key or b"").decode()] += entry["amount"]
        ends[one.partition] += 1
    names = sorted(totals)
    declared = topology(life)
    log_dir = Path(life["log_dir"])
    found = open_state(declared, "total", log_dir=str(log_dir), **QUICK).multi_get([(name,) for name in names])
    last = open_state(declared, "last", log_dir=str(log_dir), **QUICK).multi_get([(n,) for n in range(PARTITIONS)])
    copies = topics.read(life["copy"])
    wrong_copies = 0
    if life["promise"] == "transactional":
        wrong_copies = sum(_of(copies, n) != _of(source, n) for n in range(PARTITIONS))
    wrong_totals = sum(one != totals[name] for name, one in zip(names, found, strict=True))
    wrong_partitions = {n: one for n, one in enumerate(last) if one != ends[n] - 1}
    return Audit(kills, wrong_totals, wrong_partitions, len(copies), wrong_copies)


def _of(records: list[Record], partition: int) -> list[tuple[bytes | None, bytes | None]]:
    return [(one.key, one.value) for one in records if one.partition == partition]


def run(
    topics: Topics, redis: Server, folder: Path, promise: str, records: int, batch: int, kills: int, longest_s: float, seed: int
) -> Audit:  # fmt: skip
    topic = fill(topics, records, seed)
    life = {
        "name": f"ledger-{topic}", "bootstrap": topics.bootstrap, "topic": topic, "copy": topics.create(4), "batch": batch,
        "redis": f"redis://{redis.address}", "log_dir": str(folder / "log"), "promise": promise, "engine": "in_process",
    }  # fmt: skip
    return audit(topics, life, kills, longest_s, seed)


@pytest.mark.long
def test_a_ledger_is_exact_although_its_driver_is_killed(
    kafka_topics: Topics, redis_server: Server, tmp_path: Path
) -> None:
    found = run(kafka_topics, redis_server, tmp_path, "transactional", 20_000, 200, 2, 0.3, seed=1)
    assert found.kills == 2
    assert found.is_exact, found
    assert found.copied == 20_000


@pytest.mark.long
def test_an_opaque_spout_goes_on_without_the_killed_broker_and_is_exact_in_the_end(kafka_cluster: KafkaCluster) -> None:
    outcome = kill_a_broker(kafka_cluster, "opaque", "processing", copies=1, seed=1)
    assert outcome.exact, outcome
    assert outcome.meanwhile, "no batch was recorded while the broker was away"
    assert outcome.records == RECORDS
