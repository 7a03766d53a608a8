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
from trident.planner.meaning import Meaning, changes, dropped, meaning_of
from trident.spout import SpoutType


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
    ("changed", "expected"),
    [
        ({"field": "other"}, "state 'total': key (word: string) -> (other: int)"),
        ({"state": MemoryMapState.transactional()}, "state 'total': kind opaque -> transactional"),
        ({"aggregate": ("n", Max(), "total")}, "state 'total': by Sum -> Max"),
        ({"aggregate": ("n", Sum(), "sum")}, "state 'total': value (total: bigint) -> (sum: bigint)"),
        ({"aggregate": ("other", Sum(), "total")}, "state 'total': of (n: bigint) -> (other: int)"),
        ({"spout": promising(SpoutType.OPAQUE)}, "stream 'lines': promise transactional -> opaque"),
        (
            {"spout": FeederBatchSpout("word: string, other: int, n: bigint")},
            "stream 'lines': spout FixedBatchSpout -> FeederBatchSpout",
        ),
        (
            {"spout": FixedBatchSpout("word: string, n: bigint", 1, ["a", 1])},
            "stream 'lines': fields (word: string, other: int, n: bigint) -> (word: string, n: bigint)",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_change_is_named(changed: dict[str, Any], expected: str) -> None:
    assert expected in changes(meaning(), meaning(**changed))
    assert dropped(meaning(), meaning(**changed)) == []


def test_what_lies_in_between_and_beside_does_not_matter() -> None:
    def busy(topology: TridentTopology, stream: Stream) -> Stream:
        topology.new_stream("more", FixedBatchSpout("n: bigint", 1, [1])).partition_persist(
            RowsState(), Keep(), state_name="rows"
        )
        topology.new_static_state(MemoryMapState(), "towns")
        return stream.filter("word", FilterNull()).shuffle().each("word", Split(), "part").name("x")

    assert changes(meaning(), meaning(more=busy)) == []
    assert dropped(meaning(), meaning(more=busy)) == []
    assert dropped(meaning(more=busy), meaning()) == ["stream 'more'", "state 'rows'"]
    assert meaning(more=busy).states["rows"]["by"] == "Keep"


def test_a_stream_may_join_a_state_but_not_leave_it() -> None:
    def merged(topology: TridentTopology, stream: Stream) -> Stream:
        second = topology.new_stream("second", FixedBatchSpout("word: string, other: int, n: bigint", 1, ["a", 1, 1]))
        return topology.merge(stream, second)

    assert changes(meaning(), meaning(more=merged)) == []
    assert changes(meaning(more=merged), meaning()) == ["state 'total': streams (lines, second) -> (lines)"]


def test_a_renamed_stream_is_noticed_by_its_states() -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("rows", FixedBatchSpout("word: string, other: int, n: bigint", 1, ["a", 1, 1]))
    stream.group_by("word").persistent_aggregate(MemoryMapState(), "n", Sum(), "total")
    assert changes(meaning(), meaning_of(topology.graph())) == ["state 'total': streams (lines) -> (rows)"]


def test_aggregates_without_fields_and_keys() -> None:
    topology = TridentTopology("t")
    topology.new_stream("lines", FixedBatchSpout("n: bigint", 1, [1])).persistent_aggregate(
        MemoryMapState(), Count(), "c"
    )
    assert [meaning_of(topology.graph()).states["c"][fact] for fact in ("key", "of")] == [[], []]
