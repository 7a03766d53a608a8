"""Topologies with DRPC functions, and what requests are answered with."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import Config, Stream, TridentState, TridentTopology
from trident.drpc.batching import RequestExecutor
from trident.operations import Count, FilterNull, MapGet, Split, Sum
from trident.plan import make_request_plan

LINES = (["the cow jumped over the moon"], ["the man went to the store"], ["four score and seven years ago"])


def word_counts(state: Any = None, cycle: bool = False) -> tuple[TridentTopology, TridentState]:
    """The tutorial's topology, with its DRPC function `words`."""
    topology = TridentTopology("word-count")
    counts = (
        topology.new_stream("lines", FixedBatchSpout("line: string", 2, *LINES, cycle=cycle))
        .each("line", Split(), "word")
        .group_by("word")
        .persistent_aggregate(state or MemoryMapState(), Count(), "count")
    )
    words(topology.new_drpc_stream("words"), counts)
    return topology, counts


def words(requests: Stream, counts: TridentState) -> Stream:
    return (
        requests.each("args", Split(), "word")
        .group_by("word")
        .state_query(counts, "word", MapGet(), "count")
        .each("count", FilterNull())
        .aggregate("count", Sum(), "sum")
    )


def echo() -> TridentTopology:
    """Answers every request with its text."""
    topology = TridentTopology("echo")
    topology.new_drpc_stream("echo")
    return topology


def answers(topology: TridentTopology, args: Sequence[str], function: str = "f") -> list[Any]:
    with closing(RequestExecutor(make_request_plan(topology.graph(), function), Config(), None)) as executor:
        return list(executor.answers(args))
