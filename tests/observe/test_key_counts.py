"""How many keys a batch reads from the store, finds in a cache, and writes: counted by the maps of each kind."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.harness.crashing_stores import DictMap
from tests.harness.topology_runs import dict_state, keep, operation
from tests.observe.watching import Kept, started, word_topology
from trident import TridentTopology
from trident.counts import NO_KEYS, KeyCounts, count_keys, counting_keys
from trident.operations import Count, MapGet
from trident.operations.interfaces import ReducerAggregator
from trident.state import CachedMap, StateType, map_state
from trident.state.interfaces import StateSpec

WORDS = "the cow the moon"  # two batches of two


def counted(topology: TridentTopology, folder: Path, state: str = "count", **conf: Any) -> list[KeyCounts]:
    """Run a topology; return the keys of a state in each batch."""
    kept = Kept()
    with started(topology, kept, max_spout_pending=1, log_dir=folder / "log", **conf) as running:
        running.process_all_available()
    return [batch.key_counts.get(state, NO_KEYS) for batch in kept.batches]


def cached_state(kind: str) -> StateSpec:
    entries: dict[Any, Any] = {}
    return map_state(lambda conf, partition, count: CachedMap(DictMap(entries), 10), kind)


KINDS = [kind.value for kind in StateType]
UNCACHED, CACHED = [KeyCounts(2, 0, 2)] * 2, [KeyCounts(2, 0, 2), KeyCounts(1, 1, 2)]
# The words of a batch, a state, and the keys of each batch.
COUNTED: dict[str, tuple[int, Callable[[], StateSpec], list[KeyCounts]]] = {
    **{kind: (2, partial(dict_state, {}, kind), UNCACHED) for kind in KINDS},
    **{f"{kind}, cached": (2, partial(cached_state, kind), CACHED) for kind in KINDS},
    "columns": (2, MemoryMapState.opaque, UNCACHED),
    "all partitions": (4, partial(dict_state, {}, partitions=3), [KeyCounts(3, 0, 3)]),
}


@pytest.mark.parametrize("case", COUNTED)
def test_each_kind_of_map_counts_what_it_reads_and_writes(case: str, tmp_path: Path) -> None:
    size, state, expected = COUNTED[case]
    assert counted(word_topology("kinds", size, WORDS, state()), tmp_path, allow_inexact=True) == expected


def test_a_query_counts_to_the_state_that_it_asks(tmp_path: Path) -> None:
    topology = TridentTopology("asked")
    words = topology.new_stream("words", FixedBatchSpout("word: string", 2, *([word] for word in WORDS.split())))
    counts = words.group_by("word").persistent_aggregate(dict_state({}), Count(), "count")
    keep(words.state_query(counts, "word", MapGet(), "before"))
    assert counted(topology, tmp_path) == [KeyCounts(4, 0, 2)] * 2


Longest = operation("Longest", ReducerAggregator, "string", init=str, reduce=lambda now, row: max(now, row[0], key=len))


def test_a_single_value_is_one_key(tmp_path: Path) -> None:
    topology = TridentTopology("single")
    words = topology.new_stream("words", FixedBatchSpout("word: string", 2, *([word] for word in WORDS.split())))
    words.persistent_aggregate(dict_state({}), "word", Longest(), "longest")
    assert counted(topology, tmp_path, "longest") == [KeyCounts(1, 0, 1)] * 2


def test_a_state_that_does_not_count_has_no_keys(tmp_path: Path) -> None:
    topology = TridentTopology("own")
    keep(topology.new_stream("words", FixedBatchSpout("word: string", 2, ["a"])), "kept")
    assert counted(topology, tmp_path, "kept") == [NO_KEYS]


def test_outside_of_a_commit_nothing_is_counted(tmp_path: Path) -> None:
    with counting_keys() as outer:
        count_keys(asked=3, written=1)
        with counting_keys() as inner:
            count_keys(asked=2, cached=2)
    count_keys(asked=100)
    assert (outer.counts, inner.counts) == (KeyCounts(3, 0, 1), KeyCounts(0, 2, 0))
    topology = word_topology("read", 4, WORDS, dict_state({}))
    with counting_keys() as here, started(topology, log_dir=tmp_path / "log") as running:
        running.process_all_available()
        assert running.state("count").multi_get(["the", "cow"]) == [2, 1]
    assert here.counts == KeyCounts(2, 0, 0)  # a reader that counts does not count what the commit's thread does


MANY = " ".join(f"word{number % 1500}" for number in range(3000))


def run(redis_url: str, folder: Path, placement: str, pending: int) -> Kept:
    kept = Kept()
    topology = word_topology(f"{placement}{pending}", 1500, MANY, RedisState.opaque(redis_url))
    conf: dict[str, Any] = {"state_placement": placement, "max_spout_pending": pending, "log_dir": folder / placement}
    with started(topology, kept, engine="spark", parallelism=2, **conf) as running:
        running.process_all_available()
    return kept


@pytest.mark.sample(1)
@pytest.mark.parametrize("pending", [1, 3])  # one job for processing and commit, or one for each
def test_tasks_report_what_they_read_and_wrote(spark: Any, redis_url: str, tmp_path: Path, pending: int) -> None:
    driver, executors = (run(redis_url, tmp_path, placement, pending) for placement in ("driver", "executors"))
    for kept, placement in ((driver, "driver"), (executors, "executors")):
        assert [batch.placements for batch in kept.batches] == [{"count": placement}] * 2
        assert [batch.key_counts for batch in kept.batches] == [{"count": KeyCounts(1500, 0, 1500)}] * 2
        assert [batch.keys_updated for batch in kept.batches] == [{"count": 1500}] * 2
    # Each word goes to the driver, or to the executor that has its key.
    assert min(batch.bytes_collected for batch in driver.batches) > 1500 * 4
    assert max(batch.bytes_collected for batch in executors.batches) < 1500 * 4
    assert [batch.bytes_shuffled for batch in driver.batches] == [0, 0]
    assert min(batch.bytes_shuffled for batch in executors.batches) > 1500 * 4
