"""From the graph to the plan: what fuses, what is exchanged and when, which columns live, in which order a batch commits."""

import pickle
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import Fields, Stream, TopologyError, TridentTopology
from trident.operations import Aggregator, BaseQueryFunction, BaseStateUpdater, Count, FilterNull, MapGet, Split, Sum
from trident.plan import Plan, make_plan
from trident.plan.plan import misplaced_states, place
from trident.state import StateSpec


class Pass(BaseStateUpdater[Any]):
    output_types = ("string",)


class Towns(BaseQueryFunction[Any, Any]):
    output_types = ("string",)


@pytest.fixture
def topology() -> TridentTopology:
    return TridentTopology("t")


def lines(topology: TridentTopology, name: str = "lines") -> Stream:
    return topology.new_stream(name, FixedBatchSpout("line: string, n: bigint, m: bigint", 1, ["a", 1, 1]))


def plan_of(topology: TridentTopology) -> Plan:
    return make_plan(topology.graph())


def kept(plan: Plan, entry: str) -> dict[str, tuple[str, ...]]:
    return {step.id: step.keep for step in plan.fragments[entry].steps}


def order(plan: Plan) -> list[str]:
    return [node.id for node in plan.commits]


def test_a_topology_without_a_stream_is_refused(topology: TridentTopology) -> None:
    topology.new_static_state(MemoryMapState())
    with pytest.raises(TopologyError, match="topology 't' has no stream; begin with new_stream"):
        plan_of(topology)


def test_a_topology_that_keeps_nothing_is_refused(topology: TridentTopology) -> None:
    lines(topology).filter("n", FilterNull())
    with pytest.raises(TopologyError, match="topology 't' keeps nothing: no stream ends in a state or a peek"):
        plan_of(topology)


def test_a_peek_is_reason_enough_to_run(topology: TridentTopology) -> None:
    lines(topology).peek(print)
    plan = plan_of(topology)
    assert (plan.commits, plan.partitions, kept(plan, "lines")) == ((), {}, {"lines/print": ()})


def test_the_steps_before_a_state_are_one_fragment(topology: TridentTopology) -> None:
    state = lines(topology).each("line", Split(), "word").filter("word", FilterNull()).group_by("word")
    state.persistent_aggregate(MemoryMapState(), Count(), "count")
    plan = plan_of(topology)
    (fragment,) = [plan.fragments["lines"]]
    assert [(step.id, step.sources) for step in fragment.steps] == [
        ("lines/Split", ("lines",)),
        ("lines/Split/FilterNull", ("lines/Split",)),
    ]
    (sink,) = fragment.sinks
    assert (sink.target, sink.source, sink.fields) == (
        "lines/Split/FilterNull/Count@count", "lines/Split/FilterNull", Fields("word: string"),
    )  # fmt: skip
    assert sink.aggregation is not None
    assert sink.aggregation.combines
    assert plan.fragments["lines/Split/FilterNull/Count@count"].steps == ()


def test_a_column_that_nobody_reads_is_dropped_at_once(topology: TridentTopology) -> None:
    stream = lines(topology).each("line", Split(), "word").each("n", lambda n: n, "copy: bigint")
    stream.filter("m", FilterNull()).group_by("word").persistent_aggregate(MemoryMapState(), "copy", Sum(), "sum")
    assert kept(plan_of(topology), "lines") == {
        "lines/Split": ("n", "m", "word"),
        "lines/Split/each": ("m", "word", "copy"),
        "lines/Split/each/FilterNull": ("word", "copy"),
    }


def test_a_map_reads_all_and_a_project_what_is_needed_of_it(topology: TridentTopology) -> None:
    stream = lines(topology).filter("n", FilterNull()).map(lambda row: row).project("m", "n")
    stream.persistent_aggregate(MemoryMapState(), "n", Sum(), "sum")
    assert kept(plan_of(topology), "lines") == {
        "lines/FilterNull": ("line", "n", "m"),
        "lines/FilterNull/map": ("n",),
        "lines/FilterNull/map/project": ("n",),
    }


def test_a_fork_needs_what_any_branch_needs(topology: TridentTopology) -> None:
    words = lines(topology).each("line", Split(), "word")
    words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    words.persistent_aggregate(MemoryMapState(), "m", Sum(), "sum")
    words.filter("n", FilterNull()).partition_persist(MemoryMapState(), "line", Pass(), "x")
    plan = plan_of(topology)
    assert kept(plan, "lines") == {"lines/Split": ("line", "n", "m", "word"), "lines/Split/FilterNull": ("line",)}
    assert [sink.target for sink in plan.fragments["lines"].sinks] == [
        "lines/Split/Count@count", "lines/Split/Sum@sum", "lines/Split/FilterNull/Pass@lines-persist",
    ]  # fmt: skip


def test_the_fields_of_a_sink_name_each_column_once(topology: TridentTopology) -> None:
    lines(topology).group_by("n").persistent_aggregate(MemoryMapState(), "n", Sum(), "sum")
    lines(topology, "more").partition_persist(MemoryMapState(), ["n", "line"], Pass())
    plan = plan_of(topology)
    assert plan.fragments["lines"].sinks[0].fields == Fields("n: bigint")
    assert plan.fragments["more"].sinks[0].fields == Fields("n: bigint, line: string")
    assert plan.fragments["more"].sinks[0].aggregation is None


def test_new_values_begin_a_fragment_of_their_own(topology: TridentTopology) -> None:
    counts = lines(topology).group_by("line").persistent_aggregate(MemoryMapState(), Count(), "count")
    counts.new_values_stream().filter("count", FilterNull()).persistent_aggregate(
        MemoryMapState(), "count", Sum(), "all"
    )
    plan = plan_of(topology)
    assert kept(plan, "lines") == {}
    assert [sink.target for sink in plan.fragments["lines"].sinks] == ["lines/Count@count"]
    assert kept(plan, "lines/Count@count") == {"lines/Count@count/FilterNull": ("count",)}
    assert plan.fragments["lines/Count@count"].fields == Fields("line: string, count: bigint")
    assert order(plan) == ["lines/Count@count", "lines/Count@count/FilterNull/Sum@all"]


def test_queries_run_before_persists_wherever_they_can(topology: TridentTopology) -> None:
    counts = lines(topology).group_by("line").persistent_aggregate(MemoryMapState(), Count(), "count")
    asked = lines(topology, "ask").state_query(counts, "line", MapGet(), "before")
    asked.partition_persist(MemoryMapState(), ["line", "before"], Pass())
    plan = plan_of(topology)
    assert order(plan) == ["ask/MapGet@count", "lines/Count@count", "ask/MapGet@count/Pass@ask-persist"]
    assert plan.fragments["ask"].sinks[0].fields == Fields("line: string, n: bigint, m: bigint")


def test_a_query_of_new_values_waits_for_them(topology: TridentTopology) -> None:
    counts = lines(topology).group_by("line").persistent_aggregate(MemoryMapState(), Count(), "count")
    counts.new_values_stream().state_query(counts, "line", MapGet(), "before").peek(print)
    plan = plan_of(topology)
    assert order(plan) == ["lines/Count@count", "lines/Count@count/MapGet@count"]
    assert kept(plan, "lines/Count@count/MapGet@count") == {"lines/Count@count/MapGet@count/print": ()}


def test_a_query_of_a_static_state_is_an_ordinary_step(topology: TridentTopology) -> None:
    towns = topology.new_static_state(MemoryMapState(), "towns")
    asked = lines(topology).state_query(towns, "line", Towns(), "town")
    asked.group_by("town").persistent_aggregate(MemoryMapState(), Count(), "count")
    plan = plan_of(topology)
    assert kept(plan, "lines") == {"lines/Towns@towns": ("town",)}
    assert order(plan) == ["lines/Towns@towns/Count@count"]
    assert plan.states["towns"].static
    assert "towns" not in plan.partitions


def test_every_spout_has_its_fragment(topology: TridentTopology) -> None:
    for name in ("one", "two"):
        lines(topology, name).persistent_aggregate(MemoryMapState(), Count(), name)
    plan = plan_of(topology)
    assert [spout.id for spout in plan.spouts] == ["one", "two"]
    assert [plan.fragments[name].sinks[0].target for name in ("one", "two")] == ["one/Count@one", "two/Count@two"]
    assert [spout.id for spout in topology.graph().sources_of("two/Count@two")] == ["two"]


def test_a_state_says_its_number_of_partitions_or_the_hint_does(topology: TridentTopology) -> None:
    stream = lines(topology)
    stream.group_by("line").persistent_aggregate(MemoryMapState(), Count(), "one")
    stream.group_by("line").persistent_aggregate(MemoryMapState(), Count(), "four").parallelism_hint(4)
    stream.group_by("line").persistent_aggregate(StateSpec(MemoryMapState(), 2), Count(), "two").parallelism_hint(4)
    assert plan_of(topology).partitions == {"one": 1, "four": 4, "two": 2}


class Own(Aggregator[Any]):
    output_types = ("bigint",)


def keep_rows(stream: Stream, name: str) -> None:
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
    keep_rows(joined, "joined")
    asked = fresh.shuffle().state_query(counts, "line", MapGet(), "before")
    keep_rows(asked.project("line"), "asked")
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


def test_a_plan_holds_no_engine_and_can_be_pickled(topology: TridentTopology) -> None:
    stream = lines(topology)
    topology.join(stream.shuffle(), "line", stream.partition(max), "line", "line, a, b, c, d").peek(print)
    plan = plan_of(topology)
    again = pickle.loads(pickle.dumps(plan))
    assert (again.levels, again.exchanges.keys()) == (plan.levels, plan.exchanges.keys())


def counted(stream: Any, name: str) -> Any:
    return stream.group_by("line").persistent_aggregate(MemoryMapState(), Count(), "n", state_name=name)


def levels_of(topology: TridentTopology, *states: str) -> list[list[str]]:
    placed = place(make_plan(topology.graph()), states)
    return [sorted(level) for level in placed.levels[placed.processing :]]


def test_a_state_is_a_level_with_a_partition_for_each_of_the_states(topology: TridentTopology) -> None:
    counted(lines(topology), "counts").parallelism_hint(3)
    placed = place(make_plan(topology.graph()), ["counts"])
    ((entry,),) = placed.levels
    assert placed.exchanges[entry].partitions == 3
    (sink,) = placed.fragments["lines"].sinks
    assert sink.routing is not None
    assert (sink.target, sink.routing.kind, str(sink.routing.fields)) == (entry, "key", "line: string")


def test_independent_states_commit_in_one_stage_what_is_behind_one_later(topology: TridentTopology) -> None:
    stream = lines(topology)
    first, _ = counted(stream, "first"), counted(stream, "second")
    counted(first.new_values_stream(), "behind")
    assert [len(level) for level in levels_of(topology, "first", "second", "behind")] == [2, 1]


@pytest.mark.parametrize(("sees", "asked_first"), [("batch_before", True), ("this_batch", False)])
def test_queries_run_before_the_update_or_after_it_as_they_say(
    sees: Any, asked_first: bool, topology: TridentTopology
) -> None:
    counts = counted(lines(topology), "counts")
    for name in ("asked", "asked-too"):
        lines(topology, name).state_query(counts, "line", MapGet(), "c", sees=sees).peek(print)
    levels = levels_of(topology, "counts")
    assert [[("asked" in entry) for entry in level] for level in levels] == (
        [[True, True], [False]] if asked_first else [[False], [True, True]]
    )


def test_a_state_behind_one_of_the_driver_is_misplaced(topology: TridentTopology) -> None:
    first = counted(lines(topology), "first")
    counted(first.new_values_stream(), "behind")
    plan = make_plan(topology.graph())
    assert list(misplaced_states(plan, ["behind"])) == ["behind"]
    assert "which the driver commits" in misplaced_states(plan, ["behind"])["behind"]
    assert misplaced_states(plan, ["first"]) == misplaced_states(plan, ["first", "behind"]) == {}


def test_what_the_driver_commits_behind_a_placed_state_stays_with_the_driver(topology: TridentTopology) -> None:
    first = counted(lines(topology), "first")
    counted(first.new_values_stream(), "behind")
    placed = place(make_plan(topology.graph()), ["first"])
    (entry,) = placed.commits
    (sink,) = placed.fragments[entry].sinks
    assert sink.routing is None
    assert sink.target not in placed.fragments


def test_a_placement_that_does_not_exist_is_refused(topology: TridentTopology) -> None:
    counts = counted(lines(topology), "counts")
    with pytest.raises(
        TopologyError, match=r"placement\('workers'\) of state 'counts': expected one of 'auto', 'driver'"
    ):
        counts.placement("workers")
