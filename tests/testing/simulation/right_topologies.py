"""Topologies without a mistake, of many kinds; `simulate` must say nothing of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from states.memory import MemoryMapState
from states.redis import RedisState
from tests.harness.crashing_stores import DictMap
from tests.harness.topology_runs import RowsSpout
from tests.testing.simulation.mistaken_topologies import (
    FIELDS,
    AddCounts,
    InPlaceState,
    OwnFactory,
    counted,
    stream_of,
    updated,
)
from trident import TridentTopology
from trident.operations import Avg, Count, MapGet, Max, Sum, TopN
from trident.spout import SpoutType
from trident.state import Key, StateSpec, map_state
from trident.tuples import TridentCollector, TridentTuple

REDIS = "redis://no-such-host:6379/0"


def over_a_map_of_two_methods() -> TridentTopology:
    data: dict[Key, Any] = {}
    return counted(map_state(lambda conf, partition, partitions: DictMap(data), cache=10))


def several_states() -> TridentTopology:
    """One state behind the other, several aggregates in one value, a total, partitions."""
    topology = TridentTopology("several")
    rows = stream_of(topology)
    words = rows.group_by("word").persistent_aggregate(
        RedisState.opaque(REDIS), {"sum": Sum("weight"), "rows": Count(), "mean": Avg("weight")}, "facts"
    )
    words.parallelism_hint(3)
    rows.persistent_aggregate(MemoryMapState.opaque(), "weight", Max(), "heaviest")
    rows.persistent_aggregate(MemoryMapState.opaque(), TopN(2, "weight"), "top")
    return topology


def an_updater_and_a_query() -> TridentTopology:
    topology = TridentTopology("updated")
    rows = stream_of(topology)
    seen = rows.partition_persist(MemoryMapState.opaque(), "word", AddCounts(), state_name="seen")
    asked = rows.state_query(seen, "word", MapGet(), "before: bigint")
    asked.where("before IS NULL").group_by("word").persistent_aggregate(MemoryMapState.opaque(), Count(), "new")
    return topology


def two_streams() -> TridentTopology:
    topology = TridentTopology("two")
    first, second = (
        topology.new_stream(name, RowsSpout(FIELDS, {}, promise))
        for name, promise in (("rows", SpoutType.OPAQUE), ("more", SpoutType.TRANSACTIONAL))
    )
    topology.merge(first, second).group_by("word").persistent_aggregate(RedisState.opaque(REDIS), Count(), "count")
    return topology


def windows() -> TridentTopology:
    topology = TridentTopology("windows")
    sums = stream_of(topology).tumbling_window(2, MemoryMapState.opaque(), "weight", Sum(), "sum: double")
    sums.persistent_aggregate(MemoryMapState.opaque(), "sum", Sum(), "total")
    return topology


class TransactionalCounts(InPlaceState):
    """A state of its own that counts each batch of a transactional spout once."""

    def add(self, word: str, more: Any) -> None:
        written, count = self.data.get(word, (0, 0))
        if written < self.txid:
            self.data[word] = (self.txid, count + more)

    def get_tuples(self) -> Iterator[tuple[Any, ...]]:
        return ((word, count) for word, (_, count) in self.data.items())


class AddWords:
    def update_state(
        self, state: TransactionalCounts, tuples: Sequence[TridentTuple], collector: TridentCollector
    ) -> None:
        for word, more in Counter(row[0] for row in tuples).items():
            state.add(word, more)


def a_state_of_its_own() -> TridentTopology:
    state = StateSpec(OwnFactory(TransactionalCounts))
    return updated(state, AddWords(), "count", promise=SpoutType.TRANSACTIONAL)
