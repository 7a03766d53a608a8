"""Topologies to be explained; between them they have every kind of step."""

from collections.abc import Sequence
from typing import Any

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.topology_runs import Keep, RowsState
from trident import Fields, JoinType, Stream, TridentTopology, TridentTuple
from trident.operations import BaseMultiReducer, Count, FilterNull, MapGet, Split, Sum
from trident.spout import SpoutType


class Pairs(BaseMultiReducer[list[Any]]):
    """Gives nothing; what counts is that it is there."""

    output_types = ("bigint",)

    def init(self, collector: Any) -> list[Any]:
        return []

    def execute(self, state: list[Any], stream_index: int, tuple: TridentTuple, collector: Any) -> None: ...

    def complete(self, state: list[Any], collector: Any) -> None: ...


def rows(topology: TridentTopology, name: str, fields: str, *values: Sequence[Any]) -> Stream:
    return topology.new_stream(name, FixedBatchSpout(fields, 2, *values))


def word_count() -> TridentTopology:
    """One stage, one state."""
    topology = TridentTopology("word-count")
    words = rows(topology, "lines", "line: string, at: bigint", ("the cow", 1)).each("line", Split(), "word")
    words.group_by("word").persistent_aggregate(DeltaState.opaque("counts"), Count(), "count")
    return topology


def with_requests() -> TridentTopology:
    """A DRPC function that asks a state which no stream updates."""
    topology = word_count()
    known = topology.new_static_state(MemoryMapState(), "known")
    words = topology.new_drpc_stream("words").each("args", Split(), "word")
    words.state_query(known, "word", MapGet(), "count: bigint").aggregate("count", Sum(), "sum")
    return topology


def stock() -> TridentTopology:
    """A join, a merge, an aggregate, and a query whose answers are needed after the states."""
    topology = TridentTopology("stock")
    came = rows(topology, "came", "item: string, n: int", ("bolt", 10))
    went = rows(topology, "went", "name: string, n: int", ("bolt", 4))
    kinds = JoinType.mixed(JoinType.INNER, JoinType.OUTER)
    joined = topology.join(came, "item", went, "name", "item, came, went", kinds)
    left = joined.each(["came", "went"], lambda came, went: came - (went or 0), "left: int").parallelism_hint(4)
    stock = left.group_by("item").persistent_aggregate(MemoryMapState(), "left", Sum(), "stock")
    topology.merge("item, n", came, went).persistent_aggregate(MemoryMapState.transactional(), "n", Sum(), "moved")
    sold = went.group_by("name").aggregate("n", Sum(), "sold")
    sold.state_query(stock, "name", MapGet(), "in_stock").peek(print)
    return topology


def everything() -> TridentTopology:
    """All the other kinds of steps, and pairings that are not exact."""
    topology = TridentTopology("everything")
    spout = FixedBatchSpout("a: string, b: bigint", 2, ("x", 1))
    spout.spout_type = SpoutType.NON_TRANSACTIONAL
    stream = topology.new_stream("in", spout).parallelism_hint(3)
    towns = topology.new_static_state(MemoryMapState(), "towns").parallelism_hint(2)
    plain = stream.filter("a", FilterNull()).filter(lambda row: True).map(_same).flat_map(_twice).project("b", "a")
    known = plain.state_query(towns, "a", MapGet(), "town: string").identity_partition().min_by("b")
    spread = known.shuffle().partition_by("a").broadcast().global_().partition(lambda row, count: 0)
    top = spread.partition_aggregate("b", Sum(), "s")
    pairs = topology.multi_reduce(top, stream.project("b"), Pairs(), "pairs")
    pairs.partition_persist(RowsState(), Keep(), Fields("pairs: bigint"), state_name="mine")
    stream.group_by("a").persistent_aggregate(MemoryMapState.non_transactional(), Count(), "loose")
    return topology


def _same(row: TridentTuple) -> Any:
    return row.values


def _twice(row: TridentTuple) -> Any:
    return [row.values, row.values]
