"""What states and streams mean: what belongs to it, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spouts import FeederBatchSpout, FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import Keep, RowsState
from trident import Stream, TridentTopology
from trident.operations import Count, FilterNull, Max, Split, Sum
from trident.planner.meaning import Meaning, compare, meaning_of
from trident.spout import SpoutType
from trident.state.winners import renamed_facts


def meaning(
    field: str = "word",
    state: Any = None,
    aggregate: tuple[Any, ...] = ("n", Sum(), "total"),
    spout: Any = None,
    more: Callable[[TridentTopology, Stream], Stream] = lambda topology, stream: stream,
) -> Meaning:
    topology = TridentTopology("t")
    stream = topology.new_stream(
        "lines", spout or FixedBatchSpout("word: string, other: int, n: bigint", 1, ["a", 1, 1])
    )
    stream = more(topology, stream)
    stream.group_by(field).persistent_aggregate(state or MemoryMapState(), *aggregate, state_name="total")
    return meaning_of(topology.graph())


def test_what_belongs_to_a_state_and_to_a_stream() -> None:
    assert meaning() == Meaning(
        {
            "total": {
                "kind": "opaque",
                "key": ["word: string"],
                "value": ["total: bigint"],
                "by": "Sum",
                "of": ["n: bigint"],
                "streams": ["lines"],
                "members": {"total": ["Sum", ["n: bigint"], ["total: bigint"]]},
            }
        },
        {
            "lines": {
                "spout": "FixedBatchSpout",
                "promise": "transactional",
                "fields": ["word: string", "other: int", "n: bigint"],
            }
        },
    )


def promising(promise: SpoutType) -> FixedBatchSpout:
    spout = FixedBatchSpout("word: string, other: int, n: bigint", 1, ["a", 1, 1])
    spout.spout_type = promise
    return spout


@pytest.mark.parametrize(
    ("changed", "expected", "remedy"),
    [
        ({"field": "other"}, "state 'total': key (word: string) -> (other: int)", "count again beside it"),
        ({"state": MemoryMapState.transactional()}, "state 'total': kind opaque -> transactional", "declare it opaque"),
        (
            {"aggregate": ("n", Max(), "total")},
            "state 'total': 'total' Sum(n: bigint) -> Max(n: bigint)",
            "count again beside it",
        ),
        ({"aggregate": ("n", Sum(), "sum")}, "state 'total': value total -> sum", 'rename={"total": "sum"}'),
        (
            {"aggregate": ("other", Sum(), "total")},
            "state 'total': 'total' Sum(n: bigint) -> Sum(other: int)",
            "count again beside it",
        ),
        (
            {"spout": promising(SpoutType.OPAQUE)},
            "stream 'lines': promise transactional -> opaque",
            'new_stream("lines-2", …)',
        ),
        (
            {"spout": FeederBatchSpout("word: string, other: int, n: bigint")},
            "stream 'lines': spout FixedBatchSpout -> FeederBatchSpout",
            'new_stream("lines-2", …)',
        ),
        (
            {"spout": FixedBatchSpout("word: string, other: smallint, n: bigint", 1, ["a", 1, 1])},
            "stream 'lines': field 'other' int -> smallint",
            "or the type int",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_change_is_named_with_what_to_do(changed: dict[str, Any], expected: str, remedy: str) -> None:
    compared = compare(meaning(), meaning(**changed))
    (found,) = [one for one in compared.refused if one.text == expected]
    assert remedy in found.remedy
    assert compared.dropped == ()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"spout": FixedBatchSpout("word: string, n: bigint", 1, ["a", 1])},
            ["stream 'lines': field 'other' is no longer there"],
        ),
        (
            {"spout": FixedBatchSpout("n: bigint, word: string, other: bigint, more: date", 1, [1, "a", 1, None])},
            ["stream 'lines': field 'more' is new", "stream 'lines': field 'other' int -> bigint"],
        ),
    ],
)
def test_a_source_may_have_other_fields(changed: dict[str, Any], expected: list[str]) -> None:
    compared = compare(meaning(), meaning(**changed))
    assert (list(compared.taken), compared.refused) == (expected, ())


def test_a_log_of_a_version_that_did_not_note_aggregates_is_compared_as_a_whole() -> None:
    before, now = meaning(), meaning(aggregate=("n", Max(), "total"))
    states = {"total": {fact: value for fact, value in before.states["total"].items() if fact != "members"}}
    assert not compare(Meaning(states, before.streams), before).refused
    assert compare(Meaning(states, before.streams), now).refused


def test_what_lies_in_between_and_beside_does_not_matter() -> None:
    def busy(topology: TridentTopology, stream: Stream) -> Stream:
        topology.new_stream("more", FixedBatchSpout("n: bigint", 1, [1])).partition_persist(
            RowsState(), Keep(), state_name="rows"
        )
        topology.new_static_state(MemoryMapState(), "towns")
        return stream.filter("word", FilterNull()).shuffle().each("word", Split(), "part").name("x")

    compared = compare(meaning(), meaning(more=busy))
    assert (compared.taken, compared.refused, compared.dropped) == ((), (), ())
    assert compared.added == ("state 'rows'", "stream 'more'")
    assert compare(meaning(more=busy), meaning()).dropped == compared.added
    assert meaning(more=busy).states["rows"]["by"] == "Keep"


def test_a_stream_may_join_a_state_but_not_leave_it() -> None:
    def merged(topology: TridentTopology, stream: Stream) -> Stream:
        second = topology.new_stream("second", FixedBatchSpout("word: string, other: int, n: bigint", 1, ["a", 1, 1]))
        return topology.merge(stream, second)

    assert not compare(meaning(), meaning(more=merged)).refused
    ((text, remedy),) = compare(meaning(more=merged), meaning()).refused
    assert text == "state 'total': streams lines, second -> lines"
    assert remedy.endswith("what 'second' brings, start once with --conf allow_changed_topology=true")


def test_a_renamed_stream_is_noticed_by_its_states() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("rows", FixedBatchSpout("word: string, other: int, n: bigint", 1, ["a", 1, 1]))
    stream.group_by("word").persistent_aggregate(MemoryMapState(), "n", Sum(), "total")
    ((text, remedy),) = compare(meaning(), meaning_of(topology.graph())).refused
    assert text == "state 'total': streams lines -> rows"
    assert remedy.startswith(
        "call the stream 'lines' as before: under the name 'rows' its source is read from its start"
    )


def test_states_change_their_names_and_go_on_but_do_not_exchange_them() -> None:
    facts = meaning().states["total"]
    before = Meaning({"a": facts, "b": facts}, {})
    compared = compare(before, Meaning({"c": facts, "b": facts}, {}, {"a": "c"}))
    assert (compared.renamed, compared.taken, compared.added, compared.dropped) == (
        {"a": "c"},
        ("state 'a' is called 'c'",),
        (),
        (),
    )
    (refused,) = compare(before, Meaning({"c": facts, "b": facts}, {})).refused
    assert refused.remedy.startswith('if it has another name and is the same: TridentTopology(…, rename={"a": "c"})')
    (refused,) = compare(before, Meaning({"a": facts, "b": facts}, {}, {"a": "b", "b": "a"})).refused
    assert refused.text == "states 'a' and 'b': each has the name of the other now"
    gone_on = compare(Meaning({"b": facts}, {}), Meaning({"a": facts, "b": facts}, {}, {"a": "b"}))
    (refused,) = compare(before, Meaning({"b": facts}, {}, {"a": "b"})).refused
    assert refused.text == "state 'a': its name is 'b' now, and the log has another state of that name"
    (refused,) = compare(Meaning({"b": renamed_facts(facts, "a")}, {}), Meaning({"a": facts, "b": facts}, {})).refused
    assert refused.text == "state 'a' is new, and 'b', which used to have this name, is kept in its store under it"
    assert (gone_on.renamed, gone_on.refused, gone_on.added) == ({}, (), ("state 'a'",))


def test_aggregates_without_fields_and_keys() -> None:
    topology = TridentTopology("t")
    topology.new_stream("lines", FixedBatchSpout("n: bigint", 1, [1])).persistent_aggregate(
        MemoryMapState(), Count(), "c"
    )
    assert [meaning_of(topology.graph()).states["c"][fact] for fact in ("key", "of")] == [[], []]
