"""What tests of monitoring share: a listener that keeps what it is told, topologies of words, the threads of a topology."""

import socket
import threading
from pathlib import Path
from typing import Any

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import QUICK, FailTimes, keep
from trident import TridentTopology
from trident.observe import (
    AttemptFailed,
    BatchCommitted,
    TopologyEvent,
    TopologyListener,
    TopologyStarted,
    TopologyTerminated,
)
from trident.operations import Count
from trident.run.running import RunningTopology


class Kept(TopologyListener):
    """Keeps all events."""

    def __init__(self) -> None:
        self.events: list[TopologyEvent] = []

    def on_topology_started(self, event: TopologyStarted) -> None:
        self.events.append(event)

    def on_batch_committed(self, event: BatchCommitted) -> None:
        self.events.append(event)

    def on_attempt_failed(self, event: AttemptFailed) -> None:
        self.events.append(event)

    def on_topology_terminated(self, event: TopologyTerminated) -> None:
        self.events.append(event)

    @property
    def names(self) -> list[str]:
        return [event.as_dict()["event"] for event in self.events]

    @property
    def batches(self) -> list[BatchCommitted]:
        return [event for event in self.events if isinstance(event, BatchCommitted)]


def word_topology(name: str, size: int, words: str, state: Any = None) -> TridentTopology:
    """Return a topology that counts words, so many a batch; the state is `count`."""
    topology = TridentTopology(name)
    spout = FixedBatchSpout("word: string", size, *([word] for word in words.split()))
    each = topology.new_stream("words", spout).group_by("word")
    each.persistent_aggregate(state or MemoryMapState(), Count(), "count")
    return topology


def failing(name: str, folder: Path, times: int = 9) -> TridentTopology:
    """Return a topology of two batches, the second of which fails so many times."""
    topology = TridentTopology(name)
    stream = topology.new_stream("s", FixedBatchSpout("x: string", 1, ["a"], ["b"]))
    keep(stream.each("x", FailTimes(folder, "b", times, RuntimeError("no b")), "y"))
    return topology


def started(
    topology: TridentTopology, *listeners: TopologyListener, engine: str = "in_process", **conf: Any
) -> RunningTopology:
    return topology.start({**QUICK, "engine": engine, **conf}, listeners=listeners)


def threads_of(topology: str) -> list[str]:
    """Return the threads that a topology has for those who watch it."""
    names = (f"trident-{topology}-listener", f"trident-{topology}-metrics")
    return [each.name for each in threading.enumerate() if each.name in names]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
