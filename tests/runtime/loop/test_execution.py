"""Which lane a batch takes: a table of cases for each way of execution, and which way a topology gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import Config, TridentTopology
from trident.coordination.log_interface import MemoryLog
from trident.operations import Count, Split
from trident.planner import make_plan
from trident.runtime.loop.batch import LOOP, Lane
from trident.runtime.loop.execution import Execution, execution_of
from trident.runtime.start.opened_topology import OpenedTopology

SMALL, LARGE = 96 << 10, (96 << 10) + 1
POOLS = Lane(lambda function: None, lambda function: None)


@pytest.mark.parametrize(
    ("execution", "here", "size", "alone", "in_loop", "brief"),
    [
        (Execution(POOLS), True, 0, True, False, False),
        (Execution(POOLS, one_by_one=True), True, None, True, True, False),
        (Execution(POOLS, one_by_one=True), True, LARGE, False, True, False),
        (Execution(POOLS, one_by_one=True), False, 0, True, False, False),
        (Execution(POOLS, by_size=True), True, 0, True, True, True),
        (Execution(POOLS, by_size=True), True, SMALL, True, True, True),
        (Execution(POOLS, by_size=True), True, SMALL, False, False, True),
        (Execution(POOLS, by_size=True), True, LARGE, True, False, False),
        (Execution(POOLS, by_size=True), True, None, True, False, False),
        (Execution(POOLS, by_size=True), False, SMALL, True, False, False),
    ],
)
def test_a_batch_takes_the_lane_of_its_size_runner_and_company(
    execution: Execution, here: bool, size: int | None, alone: bool, in_loop: bool, brief: bool
) -> None:
    lane = execution.lane_of(mock.Mock(here=here), size, alone)
    assert (lane.in_loop, lane.brief) == (in_loop, brief)
    assert lane.process is (LOOP if in_loop else POOLS).process


def test_the_thread_of_the_loop_calls_at_once() -> None:
    called: list[str] = []
    LOOP.process(lambda: called.append("process"))
    LOOP.commit(lambda: called.append("commit"))
    assert called == ["process", "commit"]


def counting(function: Any, state: Any) -> TridentTopology:
    topology = TridentTopology("t")
    words = topology.new_stream("texts", FixedBatchSpout("text: string", 1, ["a b"])).each(
        "text", function, "word: string"
    )
    words.group_by("word").persistent_aggregate(state, Count(), "n")
    return topology


@pytest.mark.parametrize(
    ("function", "state", "pending", "lanes"),
    [
        (Split(), MemoryMapState, 3, [(True, True), (False, False)]),
        (Split(), MemoryMapState, 1, [(True, False)] * 2),
        (lambda text: text, MemoryMapState, 3, [(False, False)] * 2),
        (Split(), lambda: MemoryMapState.transactional(), 3, [(False, False)] * 2),
    ],
    ids=["kernels and memory", "one by one", "user code", "rows, not columns"],
)
def test_a_topology_gets_its_way_of_execution_once(
    function: Any, state: Callable[[], Any], pending: int, lanes: list[tuple[bool, bool]]
) -> None:
    graph = counting(function, state()).graph()
    config = Config(engine="in_process", max_spout_pending=pending)
    opened = OpenedTopology(graph, make_plan(graph), config, lambda states: MemoryLog("t"))
    try:
        execution = execution_of(opened)
        found = [execution.lane_of(mock.Mock(here=True), size, True) for size in (SMALL, LARGE)]
        assert [(lane.in_loop, lane.brief) for lane in found] == lanes
    finally:
        opened.close()
