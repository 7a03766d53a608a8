"""Which commits executors can run, in which level of the job."""

from __future__ import annotations

from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.errors import TopologyError
from trident.operations import Count, MapGet
from trident.planner import make_plan
from trident.planner.plan import misplaced, place


@pytest.fixture
def topology() -> TridentTopology:
    return TridentTopology("t")


def words(topology: TridentTopology, name: str = "words") -> Any:
    return topology.new_stream(name, FixedBatchSpout("word: string", 1, ["a"]))


def counted(stream: Any, name: str) -> Any:
    return stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n", state_name=name)


def levels_of(topology: TridentTopology, *states: str) -> list[list[str]]:
    placed = place(make_plan(topology.graph()), states)
    return [sorted(level) for level in placed.levels[placed.processing :]]


def test_a_state_is_a_level_with_a_partition_for_each_of_the_states(topology: TridentTopology) -> None:
    counted(words(topology), "counts").parallelism_hint(3)
    placed = place(make_plan(topology.graph()), ["counts"])
    ((entry,),) = placed.levels
    assert placed.exchanges[entry].partitions == 3
    (sink,) = placed.fragments["words"].sinks
    assert sink.routing is not None
    assert (sink.target, sink.routing.kind, str(sink.routing.fields)) == (entry, "key", "word: string")


def test_states_that_do_not_feed_each_other_commit_in_one_stage_and_what_is_behind_a_state_later(
    topology: TridentTopology,
) -> None:
    stream = words(topology)
    first, _ = counted(stream, "first"), counted(stream, "second")
    counted(first.new_values_stream(), "behind")
    assert [len(level) for level in levels_of(topology, "first", "second", "behind")] == [2, 1]


def test_a_query_of_the_state_before_the_batch_runs_before_the_update(topology: TridentTopology) -> None:
    counts = counted(words(topology), "counts")
    words(topology, "asked").state_query(counts, "word", MapGet(), "n").peek(print)
    levels = levels_of(topology, "counts")
    assert ["asked" in level[0] for level in levels] == [True, False]


def test_a_query_that_sees_its_batch_runs_after_the_update(topology: TridentTopology) -> None:
    counts = counted(words(topology), "counts")
    words(topology, "asked").state_query(counts, "word", MapGet(), "n", sees="this_batch").peek(print)
    levels = levels_of(topology, "counts")
    assert ["asked" in level[0] for level in levels] == [False, True]


def test_every_query_that_sees_its_batch_runs_after_the_update(topology: TridentTopology) -> None:
    counts = counted(words(topology), "counts")
    for name in ("first", "second"):
        words(topology, name).state_query(counts, "word", MapGet(), "n", sees="this_batch").peek(print)
    update, queries = levels_of(topology, "counts")
    assert (len(update), len(queries)) == (1, 2)


def test_a_state_behind_one_of_the_driver_is_misplaced(topology: TridentTopology) -> None:
    first = counted(words(topology), "first")
    counted(first.new_values_stream(), "behind")
    plan = make_plan(topology.graph())
    assert list(misplaced(plan, ["behind"])) == ["behind"]
    assert "which the driver commits" in misplaced(plan, ["behind"])["behind"]
    assert misplaced(plan, ["first"]) == misplaced(plan, ["first", "behind"]) == {}


def test_what_the_driver_commits_behind_a_placed_state_stays_with_the_driver(topology: TridentTopology) -> None:
    first = counted(words(topology), "first")
    counted(first.new_values_stream(), "behind")
    placed = place(make_plan(topology.graph()), ["first"])
    (entry,) = placed.commits
    (sink,) = placed.fragments[entry].sinks
    assert sink.routing is None
    assert sink.target not in placed.fragments


def test_a_placement_that_does_not_exist_is_refused(topology: TridentTopology) -> None:
    counts = counted(words(topology), "counts")
    with pytest.raises(
        TopologyError, match=r"placement\('workers'\) of state 'counts': expected one of 'auto', 'driver'"
    ):
        counts.placement("workers")
