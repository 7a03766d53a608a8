"""Topologies that get stuck: a bolt whose `execute` does not return, a step whose function does not."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import start
from tests.storm.random_trees import SENTENCES, Split, chain
from trident import TridentTopology
from trident.operations import Count
from trident.run.running import RunningTopology
from trident.storm import BaseRichBolt, LocalCluster, OutputCollector, Tuple
from trident.storm.testing import MockedSpout
from trident.storm.topology_handle import LocalTopology


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


let_cows_go = threading.Event()


def stick_at_cow(word: str) -> str:
    """Pass words on; a cow stays until it is let go."""
    if word == "cow":
        let_cows_go.wait(60)
    return word


@contextmanager
def stuck_bolts(**conf: Any) -> Iterator[LocalTopology]:
    """Sentences → split → count, which sticks; it is let go at the end."""
    Sticks.let_go.clear()
    bolts = chain(sentences=MockedSpout("sentence: string", *SENTENCES), split=Split(), count=Sticks())
    with LocalCluster() as cluster:
        try:
            yield cluster.submit_topology("bolts", {"message_timeout_s": 600.0, **conf}, bolts)
        finally:
            Sticks.let_go.set()


@contextmanager
def stuck_batches(**conf: Any) -> Iterator[RunningTopology]:
    """Words, a batch each; the third does not end until it is let go at the end."""
    let_cows_go.clear()
    topology = TridentTopology("words")
    words = topology.new_stream("words", FixedBatchSpout("word: string", 1, ["the"], ["the"], ["cow"], ["the"]))
    words.each("word", stick_at_cow, "w: string").group_by("w").persistent_aggregate(MemoryMapState(), Count(), "count")
    running = start(topology, "in_process", **conf)
    try:
        yield running
    finally:
        let_cows_go.set()
        running.stop()
