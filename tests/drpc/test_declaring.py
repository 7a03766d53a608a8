"""What a DRPC stream may be part of; every wrong call is refused where it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import Keep, RowsState
from trident import Fields, Stream, TopologyError, TridentTopology
from trident.operations import Count, MultiReducer, Split
from trident.planner import make_plan, make_request_plan


@pytest.fixture
def topology() -> TridentTopology:
    return TridentTopology("t")


@pytest.fixture
def requests(topology: TridentTopology) -> Stream:
    return topology.new_drpc_stream("words")


@pytest.fixture
def lines(topology: TridentTopology) -> Stream:
    return topology.new_stream("lines", FixedBatchSpout("line: string", 2, ["the cow"]))


def test_requests_are_one_text(requests: Stream) -> None:
    assert requests.get_output_fields() == Fields("args: string")


BROUGHT_TOGETHER: list[Callable[[TridentTopology, Stream, Stream], Any]] = [
    lambda topology, a, b: topology.merge(a, b),
    lambda topology, a, b: topology.merge(b, a),
    lambda topology, a, b: topology.join(a, a.fields, b, b.fields, "word"),
    lambda topology, a, b: topology.multi_reduce(a, b, MultiReducer(), "n: bigint"),
]


@pytest.mark.parametrize("call", BROUGHT_TOGETHER)
def test_requests_and_a_spouts_tuples_do_not_meet(
    topology: TridentTopology, requests: Stream, lines: Stream, call: Callable[..., Any]
) -> None:
    nodes = len(topology.graph().nodes)
    with pytest.raises(TopologyError) as raised:
        call(topology, requests.name("asked"), lines.name("read"))
    assert "stream 'asked' of DRPC function 'words'" in str(raised.value)
    assert "stream 'read' of spout 'lines'" in str(raised.value)
    assert len(topology.graph().nodes) == nodes


def test_the_requests_of_two_functions_do_not_meet(topology: TridentTopology, requests: Stream) -> None:
    other = topology.new_drpc_stream("other")
    with pytest.raises(TopologyError, match="of DRPC function 'words' together with stream 'drpc:other' of DRPC"):
        topology.merge(requests, other)


def test_requests_do_not_meet_the_new_values_of_a_state(
    topology: TridentTopology, requests: Stream, lines: Stream
) -> None:
    values = lines.group_by("line").persistent_aggregate(MemoryMapState(), Count(), "n").new_values_stream()
    with pytest.raises(TopologyError, match="of spout 'lines'"):
        topology.merge(requests, values.project("line"))


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.group_by("args").persistent_aggregate(MemoryMapState(), Count(), "n"),
        lambda s: s.each("args", Split(), "word").persistent_aggregate(MemoryMapState(), Count(), "n"),
        lambda s: s.partition_persist(RowsState(), Keep()),
    ],
)
def test_requests_feed_no_state(topology: TridentTopology, requests: Stream, call: Callable[[Stream], Any]) -> None:
    with pytest.raises(TopologyError, match="cannot take the requests of DRPC function 'words'; they only read"):
        call(requests)
    assert topology.graph().states == ()


def test_a_function_is_declared_once(topology: TridentTopology, requests: Stream) -> None:
    with pytest.raises(TopologyError, match="already has a DRPC function 'words'"):
        topology.new_drpc_stream("words")


@pytest.mark.parametrize("name", ["", "a/b", "two words", 3])
def test_a_function_has_a_name_that_fits_an_address(topology: TridentTopology, name: Any) -> None:
    with pytest.raises(TopologyError, match="cannot name a DRPC function"):
        topology.new_drpc_stream(name)


def test_storms_name_leads_to_ours(topology: TridentTopology) -> None:
    with pytest.raises(AttributeError, match="new_drpc_stream"):
        topology.newDRPCStream("words")


def test_the_plan_of_the_batches_knows_nothing_of_requests(topology: TridentTopology, lines: Stream) -> None:
    counts = lines.group_by("line").persistent_aggregate(MemoryMapState(), Count(), "n")
    before = make_plan(topology.graph())
    requests = topology.new_drpc_stream("words")
    requests.group_by("args").aggregate(Count(), "n")
    assert make_plan(topology.graph()) == before
    assert counts.state_name in before.states


def test_a_topology_of_functions_only_has_no_batches(topology: TridentTopology, requests: Stream) -> None:
    with pytest.raises(TopologyError, match=r"DRPC functions only \(words\).*LocalDRPC"):
        topology.start(engine="in_process")


def test_a_function_that_is_not_there_is_refused(topology: TridentTopology, requests: Stream) -> None:
    with pytest.raises(TopologyError, match=r"has no DRPC function 'wrds'; it has \['words'\]"):
        make_request_plan(topology.graph(), "wrds")
