"""Exchanges in the plan: levels and phases, partitions, what travels, and what a merge shares."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import Fields, Stream, TopologyError, TridentTopology
from trident.operations import Aggregator, BaseStateUpdater, Count, FilterNull, MapGet, Sum
from trident.planner import Plan, make_plan


class Pass(BaseStateUpdater[Any]):
    output_types = ("string",)


class Own(Aggregator[Any]):
    output_types = ("bigint",)


@pytest.fixture
def topology() -> TridentTopology:
    return TridentTopology("t")


def lines(topology: TridentTopology, name: str = "lines") -> Stream:
    return topology.new_stream(name, FixedBatchSpout("line: string, n: bigint, m: bigint", 1, ["a", 1, 1]))


def plan_of(topology: TridentTopology) -> Plan:
    return make_plan(topology.graph())


def kept(stream: Stream, name: str) -> None:
    stream.partition_persist(MemoryMapState(), stream.fields, Pass(), "x: string", state_name=name)


def routes(plan: Plan, entry: str) -> list[tuple[str, int, str]]:
    """Of each sink: target, port, kind of routing."""
    return [(sink.target, sink.port, sink.routing.kind if sink.routing else "") for sink in plan.fragments[entry].sinks]


def test_a_topology_without_exchanges_has_no_level(topology: TridentTopology) -> None:
    lines(topology).group_by("line").persistent_aggregate(MemoryMapState(), Count(), "count")
    plan = plan_of(topology)
    assert (plan.levels, plan.exchanges) == ((), {})
    assert not any(fragment.blocking for fragment in plan.fragments.values())


def test_a_full_aggregate_of_a_combiner_is_in_part_first(topology: TridentTopology) -> None:
    lines(topology).group_by("line").aggregate("n", Sum(), "sum").peek(print)
    plan = plan_of(topology)
    before, behind = plan.fragments["lines"], plan.fragments["lines/Sum:exchange"]
    assert [step.id for step in before.steps] == ["lines/Sum:part"]
    assert before.steps[0].node.partial
    assert (before.blocking, behind.blocking) == (False, True)
    assert routes(plan, "lines") == [("lines/Sum:exchange", 0, "hash")]
    assert [step.id for step in behind.steps] == ["lines/Sum", "lines/Sum/print"]
    assert behind.fields == Fields("line: string, sum: bigint")
    assert not behind.steps[0].node.partial


def test_any_other_aggregate_sees_the_tuples_and_only_what_it_reads(topology: TridentTopology) -> None:
    lines(topology).chained_agg().aggregate("n", Own(), "x").aggregate(Count(), "y").chain_end().peek(print)
    plan = plan_of(topology)
    assert plan.fragments["lines"].steps == ()
    assert routes(plan, "lines") == [("lines/aggregate:exchange", 0, "global")]
    assert plan.exchanges["lines/aggregate:exchange"].inputs == (Fields("n: bigint"),)
    assert plan.exchanges["lines/aggregate:exchange"].partitions == 1


def test_exchanges_run_level_by_level(topology: TridentTopology) -> None:
    left, right = lines(topology, "left"), lines(topology, "right")
    counts = left.shuffle().group_by("line").aggregate(Count(), "count")
    joined = topology.join(counts, "line", right, "line", "line, count, n, m")
    joined.aggregate("count", Sum(), "sum").peek(print)
    right.broadcast().peek(print)
    plan = plan_of(topology)
    count = "left/shuffle/Count"
    assert plan.levels == (
        ("left/shuffle", "right/broadcast"),
        (f"{count}:exchange",),
        (f"{count}/join",),
        (f"{count}/join/Sum:exchange",),
    )
    assert plan.commits == ()
    assert routes(plan, "right") == [(f"{count}/join", 1, "hash"), ("right/broadcast", 0, "broadcast")]
    assert plan.exchanges[f"{count}/join"].inputs == (
        Fields("line: string, count: bigint"), Fields("line: string, n: bigint, m: bigint"),
    )  # fmt: skip


def test_what_comes_from_a_state_is_exchanged_where_it_is_committed(topology: TridentTopology) -> None:
    stream = lines(topology)
    counts = stream.group_by("line").persistent_aggregate(MemoryMapState(), Count(), "count")
    fresh = counts.new_values_stream()
    joined = topology.join(stream.shuffle(), "line", fresh, "line", "line, n, m, count")
    kept(joined, "joined")
    asked = fresh.shuffle().state_query(counts, "line", MapGet(), "before")
    kept(asked.project("line"), "asked")
    plan = plan_of(topology)
    assert plan.levels == (("lines/shuffle",),)
    assert [node.id for node in plan.commits] == [
        "lines/Count@count",
        "lines/shuffle/join",
        "lines/Count@count/shuffle",
        "lines/Count@count/shuffle/MapGet@count",
        "lines/shuffle/join/Pass@joined",
        "lines/Count@count/shuffle/MapGet@count/project/Pass@asked",
    ]
    assert routes(plan, "lines/shuffle") == [("lines/shuffle/join", 0, "hash")]
    assert routes(plan, "lines/Count@count")[0][0] == "lines/shuffle/join"


def test_a_step_behind_a_merge_is_in_the_fragment_of_every_source(topology: TridentTopology) -> None:
    first, second = lines(topology, "first"), lines(topology, "second").project("line", "m", "n")
    merged = topology.merge("k, v, w", first, second, first).filter("v", FilterNull())
    merged.group_by("k").persistent_aggregate(MemoryMapState(), "w", Sum(), "sum")
    plan = plan_of(topology)
    steps = {entry: [(step.id, step.sources) for step in plan.fragments[entry].steps] for entry in ("first", "second")}
    assert steps == {
        "first": [("first/merge", ("first", "first")), ("first/merge/FilterNull", ("first/merge",))],
        "second": [
            ("second/project", ("second",)),
            ("first/merge", ("second/project",)),
            ("first/merge/FilterNull", ("first/merge",)),
        ],
    }
    assert plan.fragments["second"].steps[0].keep == ("line", "m", "n")
    assert [sink.target for entry in ("first", "second") for sink in plan.fragments[entry].sinks] == [
        "first/merge/FilterNull/Sum@sum"
    ] * 2
    assert {spout.id for spout in topology.graph().sources_of("first/merge/FilterNull/Sum@sum")} == {"first", "second"}


def test_a_column_of_a_merge_that_nobody_reads_is_dropped_before(topology: TridentTopology) -> None:
    first, second = lines(topology, "first").filter(FilterNull()), lines(topology, "second").filter("n", FilterNull())
    topology.merge("k, v, w", first, second.project("line", "n", "m")).persistent_aggregate(
        MemoryMapState(), "v", Sum(), "sum"
    )
    plan = plan_of(topology)
    assert {step.id: step.keep for step in plan.fragments["second"].steps} == {
        "second/FilterNull": ("n",), "second/FilterNull/project": ("n",), "first/FilterNull/merge": ("v",),
    }  # fmt: skip


def test_the_partitions_of_an_exchange_are_the_largest_hint_behind_it(topology: TridentTopology) -> None:
    stream = lines(topology).parallelism_hint(9)
    none = stream.shuffle()
    two = stream.shuffle().parallelism_hint(2)
    four = stream.shuffle().parallelism_hint(1).filter("n", FilterNull()).parallelism_hint(4).project("n")
    one = stream.global_().parallelism_hint(5)
    six = stream.group_by("n").aggregate(Count(), "count").parallelism_hint(6)
    for other in (none, two, four, one, six):
        other.peek(print)
    assert [exchange.partitions for exchange in plan_of(topology).exchanges.values()] == [None, 2, 4, 1, 6]


def test_an_identity_partition_is_no_exchange_but_a_border_of_hints(topology: TridentTopology) -> None:
    stream = lines(topology).shuffle().parallelism_hint(2).identity_partition()
    stream.parallelism_hint(2).peek(print)
    plan = plan_of(topology)
    assert list(plan.exchanges) == ["lines/shuffle"]
    assert plan.exchanges["lines/shuffle"].partitions == 2
    stream.filter("n", FilterNull()).parallelism_hint(7).peek(print)
    with pytest.raises(TopologyError, match="identity_partition keeps every tuple .* 2 before, .* asks for 7 after"):
        plan_of(topology)


def test_an_identity_partition_of_unknown_width_takes_no_hint(topology: TridentTopology) -> None:
    lines(topology).identity_partition().parallelism_hint(2).peek(print)
    with pytest.raises(TopologyError, match="there are as many as the engine has cores before"):
        plan_of(topology)


def test_ids_of_many_merges_and_joins_are_found_quickly(topology: TridentTopology) -> None:
    stream = lines(topology)
    for _ in range(60):
        stream = topology.merge(stream, stream.project("line", "n", "m"))
    stream.filter(lambda row: False).group_by("line").persistent_aggregate(MemoryMapState(), Count(), "count")
    graph = topology.graph()
    assert len(make_plan(graph).fragments["lines"].steps) == 121
    assert [spout.id for spout in graph.sources_of(graph.nodes[-1].id)] == ["lines"]


def test_a_plan_with_exchanges_can_be_pickled(topology: TridentTopology) -> None:
    stream = lines(topology)
    topology.join(stream.shuffle(), "line", stream.partition(max), "line", "line, a, b, c, d").peek(print)
    plan = plan_of(topology)
    again = pickle.loads(pickle.dumps(plan))
    assert (again.levels, again.exchanges.keys()) == (plan.levels, plan.exchanges.keys())
