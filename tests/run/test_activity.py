"""Topologies that are deactivated and activated, with batches in flight."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spouts import FeederBatchSpout
from states.memory import MemoryMapState
from tests.harness.topology_runs import GATES, QUICK, WAIT_S, GatedState, Keep, Points, keep, start, touch
from tests.run.test_loop import letters
from trident import Config, FailedException, Fields, TridentCollector, TridentTopology, TridentTuple
from trident.errors import BatchFailedError, TridentError
from trident.operations import Count, Function
from trident.run.running import RunningTopology
from trident.run.running import start as start_graph


class GatedThenFailing(Function):
    """Waits at a gate, and raises so and so often; works in this process only."""

    output_types = ("string",)

    def __init__(self, gate: str, folder: Path, times: int = 1) -> None:
        self.gate, self.folder, self.times = gate, str(folder), times

    def execute(self, tuple: TridentTuple, collector: TridentCollector) -> None:
        GATES.pass_through(self.gate)
        if touch(self.folder) < self.times:
            raise FailedException("once more")
        collector.emit(tuple.values)


def start_inactive(topology: TridentTopology, points: Points, **conf: Any) -> RunningTopology:
    config = Config.of({**QUICK, "engine": "in_process", **conf})
    return start_graph(topology.graph(), config, None, points, active=False)


def test_batches_that_had_begun_are_committed_and_none_begins_until_it_is_activated(
    engine: str, topology: TridentTopology, gate: str
) -> None:
    state, points = GatedState(gate, 1), Points()
    topology.new_stream("s", letters("abcdefgh")).partition_persist(state, Keep(), "y: string")
    with start(topology, engine, points, max_spout_pending=3) as running:
        GATES.await_reached(gate)
        points.await_point("processed", 3)
        running.deactivate()
        assert (running.is_deactivated, running.is_active, running.status["message"]) == (True, True, "inactive")
        assert not running.drain(0.1)
        GATES.open(gate)
        assert running.drain(WAIT_S)
        assert running.txid == 3
        assert {attempt.txid for attempt in points.attempts("defined")} == {1, 2, 3}
        running.activate()
        running.process_all_available()
        assert (running.txid, running.status["message"], running.is_deactivated) == (8, "running", False)
    assert state.rows == [(letter,) for letter in "abcdefgh"]
    assert (running.is_deactivated, running.status["message"]) == (False, "stopped")


def test_a_batch_that_fails_while_inactive_is_tried_again(topology: TridentTopology, tmp_path: Path, gate: str) -> None:
    failing = GatedThenFailing(gate, tmp_path)
    rows = keep(topology.new_stream("s", letters("ab")).each("x", failing, "y").project("y"))
    with start(topology, "in_process", max_spout_pending=2) as running:
        GATES.await_reached(gate)
        running.deactivate()
        GATES.open(gate)
        assert running.drain(WAIT_S)
        committed = running.txid
        assert committed in (1, 2)  # whether the second had begun is up to the threads
        assert running.status["failures"] >= 1
        running.activate()
        running.process_all_available()
    assert rows.rows == [("a",), ("b",)]


def test_a_batch_that_fails_for_good_while_inactive_ends_the_topology(
    topology: TridentTopology, tmp_path: Path, gate: str
) -> None:
    keep(topology.new_stream("s", letters("ab")).each("x", GatedThenFailing(gate, tmp_path, 9), "y"))
    running = start(topology, "in_process", max_spout_pending=1, max_batch_attempts=2)
    GATES.await_reached(gate)
    running.deactivate()
    GATES.open(gate)
    with pytest.raises(BatchFailedError, match="batch 1 failed 2 times"):
        running.drain(WAIT_S)
    assert not running.is_deactivated


@pytest.mark.parametrize("pending", [1, 3])
def test_a_topology_that_starts_inactive_begins_no_batch(topology: TridentTopology, pending: int) -> None:
    feeder, points = FeederBatchSpout("x: string"), Points()
    rows = keep(topology.new_stream("s", feeder))
    feeder.feed_nowait([["a"]])
    feeder.feed_nowait([["b"]])
    with start_inactive(topology, points, max_spout_pending=pending) as running:
        assert running.drain(WAIT_S)
        for _ in range(20):
            running.loop.wake()  # each is a turn of the loop
        running.loop.start_gate.order(False)
        assert running.drain(WAIT_S)
        assert (points.reached, running.txid, running.status["message"]) == ([], 0, "inactive")
        running.activate()
        running.process_all_available()
    assert rows.rows == [("a",), ("b",)]


def test_start_of_the_topology_takes_whether_it_is_active(topology: TridentTopology) -> None:
    topology.new_stream("s", letters("a")).persistent_aggregate(MemoryMapState(), Count(), "count")
    with topology.start(engine="in_process", active=False) as running:
        assert running.drain(WAIT_S)
        assert (running.txid, running.is_deactivated) == (0, True)
        running.activate()
        running.process_all_available()
        assert running.txid == 1


def test_a_wait_for_all_available_data_ends_when_the_topology_is_deactivated(
    topology: TridentTopology, gate: str
) -> None:
    state = GatedState(gate, 1)
    topology.new_stream("s", letters("abc")).partition_persist(state, Keep(), "y: string")
    with start(topology, "in_process", max_spout_pending=2) as running, ThreadPoolExecutor(1) as pool:
        GATES.await_reached(gate)
        waiting = pool.submit(running.process_all_available)
        running.deactivate()
        with pytest.raises(
            TridentError, match=r"topology 't' is deactivated: its spouts are not asked .* activate\(\)"
        ):
            waiting.result(WAIT_S)
        GATES.open(gate)
        running.activate()
        running.process_all_available()
    assert state.rows == [("a",), ("b",), ("c",)]


def test_a_drain_that_is_overtaken_by_activate_says_that_it_was_not_done(topology: TridentTopology, gate: str) -> None:
    topology.new_stream("s", letters("a")).partition_persist(GatedState(gate, 1), Keep(), "y: string")
    with start(topology, "in_process", max_spout_pending=2) as running, ThreadPoolExecutor(1) as pool:
        GATES.await_reached(gate)
        running.deactivate()
        draining = pool.submit(running.drain)
        running.activate()
        assert draining.result(WAIT_S) is False
        GATES.open(gate)


def test_an_inactive_topology_stops_and_the_next_start_goes_on(topology: TridentTopology, tmp_path: Path) -> None:
    points = Points()
    rows = keep(topology.new_stream("s", letters("abcdef")))
    with start(topology, "in_process", points, log_dir=str(tmp_path / "log")) as running:
        points.await_point("recorded", 1)
        running.deactivate()
    committed = running.txid
    with start(topology, "in_process", log_dir=str(tmp_path / "log")) as again:
        again.process_all_available()
    assert committed >= 1
    assert (rows.rows, again.txid) == ([(letter,) for letter in "abcdef"], 6)


@pytest.mark.slow
def test_any_orders_while_it_runs_keep_the_counts_exact(topology: TridentTopology) -> None:
    feeder, points = FeederBatchSpout("x: string"), Points()
    rows = keep(topology.new_stream("s", feeder))
    with start(topology, "in_process", points, max_spout_pending=3) as running:

        def order() -> None:
            for number in range(150):
                running.deactivate()
                if number % 5 == 0:
                    running.drain(WAIT_S)
                running.activate()

        threads = [threading.Thread(target=order) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(300):
            feeder.feed_nowait([[str(number)]])
        for thread in threads:
            thread.join()
        running.activate()
        running.process_all_available()
        running.deactivate()
        assert running.drain(WAIT_S)
        feeder.feed_nowait([["late"]])
        assert running.drain(WAIT_S)
        assert [attempt.txid for attempt in points.attempts("recorded")] == list(range(1, running.txid + 1))
    assert rows.rows == [(str(number),) for number in range(300)]


class QueueSpout:
    """An `IRichSpout` that emits each message once, and forgets those that fail; notes what it is told."""

    def __init__(self, *messages: str) -> None:
        self.messages = list(messages)
        self.calls: list[str] = []

    def open(self, conf: Mapping[str, Any], context: Any, collector: Any) -> None:
        self.collector = collector
        self.calls.append("open")

    def next_tuple(self) -> None:
        if self.messages:
            self.collector.emit([self.messages[0]], self.messages.pop(0))

    def ack(self, msg_id: Any) -> None:
        self.calls.append(f"ack {msg_id}")

    def fail(self, msg_id: Any) -> None:
        self.calls.append(f"fail {msg_id}")

    def activate(self) -> None:
        self.calls.append("activate")

    def deactivate(self) -> None:
        self.calls.append("deactivate")

    def close(self) -> None:
        self.calls.append("close")

    def get_output_fields(self) -> Fields:
        return Fields("x: string")

    def __deepcopy__(self, memo: Any) -> QueueSpout:
        return self


def test_a_spout_that_has_nothing_for_the_second_try_leaves_nothing_to_wait_for(
    topology: TridentTopology, tmp_path: Path, gate: str
) -> None:
    spout = QueueSpout("a")
    keep(topology.new_stream("s", spout).each("x", GatedThenFailing(gate, tmp_path), "y"))
    with start(topology, "in_process", max_spout_pending=2) as running:
        GATES.await_reached(gate)
        running.deactivate()
        GATES.open(gate)
        assert running.drain(WAIT_S)
        assert running.txid == 0
        assert spout.calls == ["open", "activate", "fail a", "deactivate"]
        spout.messages.append("b")
        running.activate()
        running.process_all_available()
        assert running.txid == 1
    assert spout.calls[4:] == ["activate", "ack b", "deactivate", "close"]


def test_a_spout_that_raises_when_told_is_logged_and_harms_nothing(
    topology: TridentTopology, caplog: pytest.LogCaptureFixture
) -> None:
    class Raising(QueueSpout):
        def deactivate(self) -> None:
            super().deactivate()
            if self.calls.count("deactivate") == 1:
                raise ValueError("not now")

    spout = Raising("a")
    rows = keep(topology.new_stream("s", spout))
    with start(topology, "in_process") as running:
        running.process_all_available()
        running.deactivate()
        assert running.drain(WAIT_S)
        assert "a spout raised when notified that it is active: False" in caplog.text
        spout.messages.append("b")
        running.activate()
        running.process_all_available()
    assert rows.rows == [("a",), ("b",)]


def test_an_inactive_topology_is_idle(topology: TridentTopology) -> None:
    keep(topology.new_stream("s", letters("ab")))
    with start_inactive(topology, Points()) as running:
        assert running.drain(WAIT_S)
        before = time.process_time()
        assert not running.await_termination(0.5)
        assert time.process_time() - before < 0.1


# ---- a forked process ------------------------------------------------------------------------------------------------


def leave(running: RunningTopology) -> int:
    """Leave the block of a topology, in a process that was forked within it; say what that gave."""
    try:
        with running:
            pass
    except TridentError as error:
        return 3 if "goes on there; it cannot be used here" in str(error) else 4
    return 5


def test_a_forked_process_leaves_the_topology_to_its_parent(tmp_path: Path) -> None:
    feeder, state = FeederBatchSpout("x: string"), MemoryMapState()
    topology = TridentTopology("forked")
    counts = topology.new_stream("s", feeder).group_by("x").persistent_aggregate(state, Count(), "n")
    with start(topology, "in_process", log_dir=str(tmp_path / "log")) as running:
        feeder.feed([["a"]])
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # ends it if it waits for threads that it does not have
            os._exit(leave(running))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        feeder.feed([["a"]])
        assert running.state(counts).multi_get(["a"]) == [2]
