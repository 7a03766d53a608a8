"""The Redis state on a cluster whose slots are being moved while batches run."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import redis

from states.redis import RedisBackingMap, RedisOptions, RedisState
from tests.harness.crashing_stores import tuples_at
from tests.states.redis.redis_cluster import SLOTS, Cluster, Move, wait_for
from trident.errors import BackendError
from trident.state.interfaces import Key, StateConf
from trident.testing.backend.schedules import Log

pytestmark = pytest.mark.server

BUCKET = b"{words/counts:0}"
LAYOUTS = [{}, {"ttl_s": 90_000}, {"layout": "fields"}]


class Batches:
    """Counts keys of a state, batch by batch, beside a plain counter.

    Attributes
    ----------
    failures
        How many attempts failed; each is followed by another one.
    """

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        given = {"retries": 0, "cluster_buckets": 4, **options}
        self._make = RedisState.opaque(cluster.url, **given).factory.make_state
        self._conf = StateConf("words", "counts", (("word", "string"),), "bigint")
        self.state: Any = self._make(self._conf, 0, 1)
        self.state.map_state.backing._wire._patience_s = 0.05
        self.log, self.expected, self.failures = Log(), Counter[Key](), 0

    def attempt(self, keys: list[Key]) -> bool:
        """Try to add 1 to each key; return whether it was committed."""
        txid = self.log.next()
        try:
            self.state.begin_commit(txid)
            values = self.state.multi_get(keys)
            self.state.multi_put(keys, [(value or 0) + 1 for value in values])
            self.state.commit(txid)
        except BackendError as error:
            if not error.retryable:
                raise
            self.log.fail()
            self.failures += 1
            return False
        self.log.record()
        self.expected.update(keys)
        return True

    def check(self) -> None:
        """Check what the writer and a new reader see."""
        keys = list(self.expected)
        expected = [self.expected[key] for key in keys]
        assert self.state.multi_get(keys) == expected
        reader = self._make(replace(self._conf, read_only=True), 0, 1)
        assert reader.multi_get_at(keys, self.log.snapshot()) == expected
        listed = sorted(tuples_at(reader, self.log.snapshot()))
        assert listed == sorted((*key, count) for key, count in self.expected.items())
        reader.close()

    def close(self) -> None:
        self.state.reset()
        self.state.close()


@pytest.fixture
def move(cluster: Cluster) -> Iterator[Move]:
    move = Move(cluster, redis.crc.key_slot(BUCKET))
    yield move
    move.back()


@pytest.mark.sample(3)
@pytest.mark.parametrize("first", ["sentinel", "value"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_are_exact_through_every_step_of_a_move(
    cluster: Cluster, move: Move, layout: dict[str, Any], first: str
) -> None:
    batches = Batches(cluster, **layout)
    keys: list[Key] = [(f"word {number}",) for number in range(24)]
    assert batches.attempt(keys)

    def carry_one() -> None:
        move.carry([key for key in move.left() if key.endswith(b"sentinels") == (first == "sentinel")][:1])

    for number, step in enumerate((move.open, carry_one, move.carry_all, move.arrive, move.close)):
        step()
        batches.attempt([*keys, (f"new {number}",)])
        batches.attempt(keys)
    assert batches.attempt(keys)
    assert batches.failures > 0
    batches.check()
    batches.close()


def test_a_commit_waits_for_a_slot_that_is_on_its_way(cluster: Cluster, move: Move) -> None:
    batches = Batches(cluster)
    batches.state.map_state.backing._wire._patience_s = 10
    keys: list[Key] = [(f"word {number}",) for number in range(24)]
    assert batches.attempt(keys)
    source = cluster.clients[move.source]
    source.config_resetstat()
    move.open()
    move.carry([key for key in move.left() if not key.endswith(b":sentinels")][:1])

    def finish() -> None:
        wait_for(lambda: "errorstat_TRYAGAIN" in source.info("errorstats"))
        move.carry_all()
        move.close()

    with ThreadPoolExecutor(1) as another:
        finished = another.submit(finish)
        assert batches.attempt(keys)  # though `retries` is 0
        finished.result()
    batches.check()
    batches.close()


@pytest.mark.long
def test_batches_are_exact_while_redis_cli_moves_slots_there_and_back(cluster: Cluster) -> None:
    batches = Batches(cluster, cluster_buckets=256, retries=3, backoff_s=0.01)
    keys: list[Key] = [(f"word {number}",) for number in range(500)]
    assert batches.attempt(keys)
    batches.state.map_state.backing._wire._patience_s = 5
    during = 0
    for source, target in ((0, 1), (1, 0)):
        command = (
            "redis-cli", "--cluster", "reshard", cluster.nodes[0].address, "--cluster-from", cluster.id(source),
            "--cluster-to", cluster.id(target), "--cluster-slots", "200", "--cluster-pipeline", "1", "--cluster-yes",
        )  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as reshard:
            while reshard.poll() is None:
                during += batches.attempt([*keys, (f"new {during}",)])
        assert reshard.returncode == 0
    assert during > 1
    batches.check()
    batches.close()


def test_a_key_that_moves_to_a_node_that_is_listed_already_is_listed(cluster: Cluster) -> None:
    backing = RedisBackingMap(RedisOptions(cluster.url), StateConf("words", "counts"))
    keys: list[Key] = [(f"word {number}",) for number in range(200)]
    backing.multi_put(keys, [b"one"] * len(keys))
    pages = backing.key_pages()
    listed = list(next(pages))  # of the node that has the lowest slots
    last = next(slot for slot in map(redis.crc.key_slot, backing._layout.stems) if slot > SLOTS * 2 // 3)
    move = Move(cluster, last, cluster.owner(0))
    move.whole()
    try:
        assert sorted([*listed, *(key for page in pages for key in page)]) == sorted(keys)
    finally:
        backing.reset()
        assert cluster.sizes() == [0, 0, 0]
        move.back()
    backing.close()
