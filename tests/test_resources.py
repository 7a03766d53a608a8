"""What steps ask for is recorded in the plan, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import Stream, TopologyError, TridentTopology
from trident.graph import Resources
from trident.operations import Count
from trident.planner import make_plan


def stream_of(topology: TridentTopology) -> Stream:
    return topology.new_stream("in", FixedBatchSpout("word: string", 1, ("a",)))


def test_the_plan_has_what_steps_and_states_ask_for() -> None:
    topology = TridentTopology("t")
    stream = stream_of(topology).set_cpu_load(20).project("word").set_memory_load(512)
    counts = stream.set_cpu_load(150).set_memory_load(256, 64).group_by("word").persistent_aggregate(
        MemoryMapState(), Count(), "count"
    )  # fmt: skip
    assert counts.set_cpu_load(50) is counts
    assert counts.set_memory_load(128) is counts
    topology.new_static_state(MemoryMapState(), "lookup").set_memory_load(32).set_cpu_load(1)
    assert make_plan(topology.graph()).resources == {
        "in": Resources(cpu_percent=20),
        "in/project": Resources(150, 256, 64),
        "in/project/aggregate": Resources(50, 128),
        "lookup": Resources(1, 32),
    }


def test_starting_says_that_they_are_only_recorded(caplog: pytest.LogCaptureFixture) -> None:
    topology = TridentTopology("t")
    stream_of(topology).set_cpu_load(20).persistent_aggregate(MemoryMapState(), Count(), "count")
    with caplog.at_level(logging.INFO, "trident"), topology.start(engine="in_process") as running:
        running.process_all_available()
        assert running.state("count").get() == 1
    said = [record.message for record in caplog.records if "recorded only" in record.message]
    assert said == [
        "topology t: cpu and memory loads of 1 steps are recorded only; Spark's executors are sized by spark_conf"
    ]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda s: s.set_cpu_load(-1), r"set_cpu_load\(-1\): expected a number of at least 0"),
        (lambda s: s.set_cpu_load("much"), r"set_cpu_load\('much'\): expected a number of at least 0"),
        (lambda s: s.set_cpu_load(float("nan")), r"set_cpu_load\(nan\): expected a number"),
        (lambda s: s.set_memory_load(True), r"set_memory_load\(True\): expected a number"),
        (lambda s: s.set_memory_load(1, float("inf")), r"set_memory_load\(inf\): expected a number"),
    ],
)
def test_a_load_is_a_number(call: Callable[[Stream], Any], error: str) -> None:
    with pytest.raises(TopologyError, match=error):
        call(stream_of(TridentTopology("t")))


def test_storms_spelling_is_told() -> None:
    stream: Any = stream_of(TridentTopology("t"))
    with pytest.raises(
        AttributeError, match="'Stream' has no attribute 'setCPULoad'; it is called 'set_cpu_load' here"
    ):
        stream.setCPULoad(1)
    with pytest.raises(AttributeError, match="it is called 'set_memory_load' here"):
        stream.setMemoryLoad(1)
