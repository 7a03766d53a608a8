"""What a topology can do with a state, it does in both placements: the same values, letters and metrics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from spouts import FixedBatchSpout
from states.redis import RedisState
from tests.harness.servers import Server
from tests.harness.topology_runs import QUICK
from trident import TridentCollector, TridentTopology, TridentTuple
from trident.operations import BaseQueryFunction, BaseStateUpdater, Count, Filter, Function, MapGet
from trident.state import MapState
from trident.testing.backend.schedules import Add

TTL_S = 90_000
BATCH = 15
ROWS: list[tuple[Any, ...]] = [
    (None if number % 5 == 0 else f"ü{number % 3}", b"\x00\xff" * (number % 2), number) for number in range(30)
]


class KeepOrRemove(BaseStateUpdater[Any]):
    """Adds up the values of each pair of keys; one that is divisible by seven removes its key. Emits what it removed."""

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        added: dict[tuple[Any, ...], int] = {}
        removed: set[tuple[Any, ...]] = set()
        for name, data, number in tuples:
            if number % 7 == 0:
                removed.add((name, data))
            else:
                added[name, data] = added.get((name, data), 0) + number
        state.multi_update(list(added), [Add(number) for number in added.values()])
        state.multi_remove(sorted(removed, key=str))
        for key in sorted(removed, key=str):
            collector.emit([*key])


class Doubled(BaseQueryFunction[MapState[int], Any]):
    """Reads in bulk, and emits twice what it found; nothing where there is nothing."""

    output_types = ("bigint",)

    def batch_retrieve(self, state: MapState[int], args: Sequence[TridentTuple]) -> Sequence[Any]:
        return state.multi_get([tuple(row.values) for row in args])

    def execute(self, tuple: TridentTuple, result: Any, collector: TridentCollector) -> None:
        if result is not None:
            collector.emit([result * 2])


class Refuses(Function):
    """Raises at the count 3 of a key, behind a state."""

    output_types = ("bigint",)

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        if tuple[0] == 3:
            raise ValueError("three")
        collector.emit([tuple[0]])


class Counting(Filter):
    """Counts the tuples that it sees."""

    def prepare(self, conf: Any, context: Any) -> None:
        self.seen = context.register_counter("seen")

    def is_keep(self, tuple: TridentTuple) -> bool:
        self.seen.incr()
        return True


def declare(url: str, name: str, placement: str) -> tuple[TridentTopology, dict[str, Any]]:
    topology = TridentTopology(name)
    spout = FixedBatchSpout("name: string, data: binary, number: bigint", BATCH, *ROWS)
    rows = topology.new_stream("rows", spout)
    state = RedisState.opaque(url, ttl_s=TTL_S)
    pairs = rows.group_by("name", "data")
    counts = pairs.persistent_aggregate(state, Count(), "n", state_name="counts").parallelism_hint(2)
    sums = rows.partition_by("name", "data").partition_persist(
        RedisState.opaque(url), ["name", "data", "number"], KeepOrRemove(), "a: string, b: binary", state_name="sums"
    )
    removed = sums.new_values_stream().group_by("a").persistent_aggregate(state, Count(), "r", state_name="removed")
    behind = counts.new_values_stream().each("n", Counting()).each("n", Refuses(), "kept")
    kept = behind.group_by("kept").persistent_aggregate(state, Count(), "k", state_name="kept")
    found = rows.state_query(counts, ["name", "data"], Doubled(), "twice").group_by("twice")
    twice = found.persistent_aggregate(RedisState.transactional(url), Count(), "t", state_name="twice")
    now = counts.new_values_stream().state_query(counts, ["name", "data"], MapGet(), "now", sees="this_batch")
    same = now.group_by("now").persistent_aggregate(state, Count(), "s", state_name="same")
    states = {"counts": counts, "sums": sums, "removed": removed, "kept": kept, "twice": twice, "same": same}
    for each in states.values():
        each.placement(placement)
    return topology, states


def outcome(url: str, placement: str, folder: Path) -> dict[str, Any]:
    topology, states = declare(url, placement, placement)
    letters = folder / "letters"
    with topology.start(
        **QUICK, engine="spark", log_dir=str(folder / "log"), parallelism=1, max_batch_attempts=2,
        on_poison="dead_letter", dead_letter_dir=letters,
    ) as running:  # fmt: skip
        running.process_all_available()
        assert {placed.where for placed in running.placements.values()} == {placement}
        found: dict[str, Any] = {
            name: sorted(running.state(state).get_tuples(), key=str) for name, state in states.items()
        }
        found["metrics"] = running.status["metrics"]
        found["left out"] = running.log_state.totals["dead_letters"]
    read = [json.loads(line) for file in letters.iterdir() for line in file.read_text("utf-8").splitlines()]
    found["letters"] = sorted((each["txid"], each["step"], each["tuple"], each["error"]) for each in read)
    return found


@pytest.mark.long
def test_states_do_the_same_in_both_placements(spark: Any, redis_server: Server, tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{redis_server.port}/0"
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
        driver = outcome(url, "driver", tmp_path / "driver")
        executors = outcome(url, "executors", tmp_path / "executors")
        assert executors == driver
        ttls = {client.ttl(name) for name in client.scan_iter("executors/counts:[\x01-\x1f]*")}
    assert ttls
    assert all(TTL_S - 600 < ttl <= TTL_S for ttl in ttls)
    assert (None, b"", 3) in driver["counts"]
    assert driver["letters"]
    assert driver["left out"] == len(driver["letters"])
    assert driver["metrics"]["Counting/seen"] == sum(n for _, n in driver["same"])
    removed = {(name, data) for name, data, number in ROWS if number % 7 == 0}
    assert removed
    assert sum(n for _, n in driver["removed"]) >= len(removed)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_cache_in_front_of_a_state_changes_nothing(
    spark: Any, redis_server: Server, tmp_path: Path, kind: str
) -> None:
    url = f"redis://127.0.0.1:{redis_server.port}/0"
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
    topology = TridentTopology(f"cached-{kind}")
    lines = [(f"word {number % 11}",) for number in range(400)]
    words = topology.new_stream("lines", FixedBatchSpout("word: string", 10, *lines)).group_by("word")
    spec = {"opaque": RedisState.opaque, "transactional": RedisState.transactional}[kind](url, cache=100)
    state = words.persistent_aggregate(spec, Count(), "n", state_name="counts").parallelism_hint(3)
    with topology.start(
        **QUICK, engine="spark", log_dir=str(tmp_path), parallelism=2, state_placement="executors", max_spout_pending=2
    ) as running:
        running.process_all_available()
        found = dict(running.state(state).get_tuples())
    assert found == {f"word {left}": len(range(left, 400, 11)) for left in range(11)}
