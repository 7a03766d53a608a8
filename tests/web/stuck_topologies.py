"""Topologies that get stuck: a bolt whose `execute` does not return, a step whose function does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import start
from tests.storm.random_trees import SENTENCES, Split
from trident import TridentTopology
from trident.operations import Count, Function
from trident.run.running import RunningTopology
from trident.storm import BaseRichBolt, LocalCluster, OutputCollector, StormTopology, TopologyBuilder, Tuple
from trident.storm.testing import MockedSpout
from trident.storm.topology_handle import LocalTopology
from trident.tuples import TridentTuple


class Sticks(BaseRichBolt):
    """Acknowledges three words; the fourth call does not return until it is let go."""

    let_go = threading.Event()

    def prepare(self, conf: Mapping[str, Any], context: Any, collector: OutputCollector) -> None:
        super().prepare(conf, context, collector)
        self.calls = 0

    def declare_output_fields(self, declarer: Any) -> None:
        """It emits nothing."""

    def execute(self, tuple: Tuple) -> None:
        self.calls += 1
        if self.calls > 3:
            Sticks.let_go.wait(60)
        self.collector.ack(tuple)


class SticksAtCow(Function):
    """Passes words on; a cow stays until it is let go."""

    let_go = threading.Event()
    output_types = ("string",)

    def execute(self, tuple: TridentTuple, collector: Any) -> None:
        if tuple[0] == "cow":
            SticksAtCow.let_go.wait(60)
        collector.emit([tuple[0]])


def sticking_bolts() -> StormTopology:
    """Sentences → split → count, which sticks."""
    builder = TopologyBuilder()
    builder.set_spout("sentences", MockedSpout("sentence: string", *SENTENCES))
    builder.set_bolt("split", Split()).shuffle_grouping("sentences")
    builder.set_bolt("count", Sticks()).shuffle_grouping("split")
    return builder.create_topology()


def sticking_batches() -> TridentTopology:
    """Words, a batch each; the third does not end."""
    topology = TridentTopology("words")
    words = topology.new_stream("words", FixedBatchSpout("word: string", 1, ["the"], ["the"], ["cow"], ["the"]))
    words.each("word", SticksAtCow(), "w").group_by("w").persistent_aggregate(MemoryMapState(), Count(), "count")
    return topology


@contextmanager
def stuck_bolts(**conf: Any) -> Iterator[LocalTopology]:
    """A topology of spouts and bolts that is stuck soon; it is let go at the end."""
    Sticks.let_go.clear()
    with LocalCluster() as cluster:
        try:
            yield cluster.submit_topology("bolts", {"message_timeout_s": 600.0, **conf}, sticking_bolts())
        finally:
            Sticks.let_go.set()


@contextmanager
def stuck_batches(**conf: Any) -> Iterator[RunningTopology]:
    """A Trident topology that is stuck soon; it is let go at the end."""
    SticksAtCow.let_go.clear()
    running = start(sticking_batches(), "in_process", **conf)
    try:
        yield running
    finally:
        SticksAtCow.let_go.set()
        running.stop()
