"""Listeners are told what happens, in order; whatever they do, the topology goes on and ends."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from spouts import FeederBatchSpout, FixedBatchSpout
from tests.harness.topology_runs import GATES, WAIT_S, keep
from tests.observe.watching import Kept, failing, started, threads_of, word_topology
from trident import BatchFailedError, TridentTopology
from trident.observe import (
    AttemptFailed,
    BatchCommitted,
    TopologyListener,
    TopologyStarted,
    TopologyTerminated,
    monitoring,
)
from trident.runtime.running import RunningTopology

DELIVERY = "trident.observe.monitoring"


def test_a_listener_is_told_of_start_batches_and_end(engine: str) -> None:
    kept = Kept()
    with started(word_topology("told", 2, "the cow the"), kept, engine=engine) as running:
        running.process_all_available()
        last = running.last_progress
    assert kept.names == ["topologyStarted", "batchCommitted", "batchCommitted", "topologyTerminated"]
    first, *batches, end = kept.events
    assert isinstance(first, TopologyStarted)
    assert (first.txid, first.placements) == (0, {"count": "driver"})
    assert [(batch.txid, batch.tuples) for batch in kept.batches] == [(1, 2), (2, 1)]
    assert batches[-1].as_dict() == last
    assert isinstance(end, TopologyTerminated)
    assert (end.txid, end.exception, end.error_class) == (2, None, None)
    assert {event.run_id for event in kept.events} == {running.run_id}


def test_the_event_of_a_batch_has_its_figures(engine: str) -> None:
    kept = Kept()
    with started(word_topology("figures", 3, "the cow the"), kept, engine=engine) as running:
        running.process_all_available()
    (batch,) = kept.batches
    assert (batch.topology, batch.tries, batch.engine, batch.dead_letters) == ("figures", 1, engine, 0)
    assert (dict(batch.read.rows), batch.keys_updated, batch.read.tasks) == ({"words": 3}, {"count": 2}, 1)
    assert min(batch.phases) >= 0
    assert batch.as_dict()["durationMs"]["total"] == pytest.approx(1000 * sum(batch.phases))
    assert (batch.bytes_collected > 0, batch.bytes_shuffled) == (engine == "spark", 0)


def test_rows_that_are_exchanged_are_counted_as_shuffled(engine: str) -> None:
    topology, kept = TridentTopology("shuffled"), Kept()
    words = topology.new_stream("words", FixedBatchSpout("word: string", 2000, *([["the"], ["cow"]] * 1000)))
    keep(words.partition_by("word"))
    with started(topology, kept, engine=engine) as running:
        running.process_all_available()
    (batch,) = kept.batches
    assert (batch.bytes_shuffled > 2000 * 3) == (engine == "spark")
    assert (batch.bytes_collected > 2000 * 3) == (engine == "spark")


def test_a_failed_attempt_is_an_event_that_says_what_follows(tmp_path: Path) -> None:
    kept = Kept()
    with started(failing("failing", tmp_path, 1), kept, max_spout_pending=1) as running:
        running.process_all_available()
    assert kept.names == ["topologyStarted", "batchCommitted", "attemptFailed", "batchCommitted", "topologyTerminated"]
    failed, batch = kept.events[2:4]
    assert isinstance(failed, AttemptFailed)
    assert (failed.txid, failed.tries, failed.will_retry, failed.cause) == (2, 1, True, "RuntimeError: no b")
    assert isinstance(batch, BatchCommitted)
    assert (batch.txid, batch.tries) == (2, 2)
    assert batch.attempt == failed.attempt + 1


def test_an_end_by_an_error_is_told_after_the_attempts_that_failed(tmp_path: Path) -> None:
    kept = Kept()
    with (
        pytest.raises(BatchFailedError),
        started(failing("failing", tmp_path), kept, max_spout_pending=1, max_batch_attempts=2) as running,
    ):
        running.await_termination(WAIT_S)
    attempts = [event.will_retry for event in kept.events if isinstance(event, AttemptFailed)]
    assert attempts == [True, False]
    end = kept.events[-1]
    assert isinstance(end, TopologyTerminated)
    assert (end.txid, end.error_class) == (1, "BatchFailedError")
    assert end.exception == str(running.exception())


def test_a_listener_is_told_from_when_it_is_added_until_it_is_removed() -> None:
    topology, feeder, kept = TridentTopology("added"), FeederBatchSpout("x: string"), Kept()
    keep(topology.new_stream("s", feeder))
    with started(topology) as running:
        for add, letter in ((None, "a"), (running.add_listener, "b"), (running.remove_listener, "c")):
            if add is not None:
                add(kept)
            feeder.feed([[letter]])
            running.process_all_available()
    until_told(running, kept)
    assert [event.txid for event in kept.events] == [2]


def until_told(running: RunningTopology, kept: Kept) -> None:
    """Wait until the thread of a listener that was removed has ended."""
    for thread in threading.enumerate():
        if thread.name == f"trident-{running.name}-listener":
            thread.join(WAIT_S)


class Raising(Kept):
    """Raises at each batch."""

    def on_batch_committed(self, event: BatchCommitted) -> None:
        raise SystemExit(f"batch {event.txid}")


def test_a_listener_that_raises_harms_neither_the_topology_nor_other_listeners(
    caplog: pytest.LogCaptureFixture,
) -> None:
    raising, kept = Raising(), Kept()
    with started(word_topology("raising", 1, "a b c"), raising, kept) as running:
        running.process_all_available()
    assert running.txid == 3
    assert raising.names == ["topologyStarted", "topologyTerminated"]
    assert len(kept.batches) == 3
    assert running.status["listeners"] == [
        {"name": "Raising", "delivered": 2, "dropped": 0, "errors": 3},
        {"name": "Kept", "delivered": 5, "dropped": 0, "errors": 0},
    ]
    (record,) = [record for record in caplog.records if record.name == DELIVERY]
    assert record.getMessage() == "topology raising: the listener Raising raised; its later errors are only counted"
    assert record.exc_text is not None
    assert "SystemExit: batch 1" in record.exc_text


class Hanging(Kept):
    """Waits at a gate in the first batch."""

    def __init__(self, gate: str) -> None:
        super().__init__()
        self.gate, self.thread = gate, threading.current_thread()

    def on_batch_committed(self, event: BatchCommitted) -> None:
        super().on_batch_committed(event)
        if event.txid == 1:
            self.thread = threading.current_thread()
            GATES.pass_through(self.gate)


def test_a_listener_that_hangs_holds_up_neither_batches_nor_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "MOST_WAITING", 2)
    monkeypatch.setattr(monitoring, "_LISTENERS_END_S", 0.05)
    topology, feeder, hanging = TridentTopology("hanging"), FeederBatchSpout("x: string"), Hanging("listener")
    keep(topology.new_stream("s", feeder))
    with started(topology, hanging) as running:
        feeder.feed([["a"]])
        GATES.await_reached("listener")
        for letter in "bcdefghi":
            feeder.feed([[letter]])
        running.process_all_available()
        assert running.txid == 9
        assert running.status["listeners"][0]["dropped"] == 6  # all but the first, and the last two
    assert not running.is_active
    assert running.status["listeners"][0]["dropped"] == 9  # of the last two and the end none was delivered
    GATES.open("listener")
    hanging.thread.join(WAIT_S)
    assert [batch.txid for batch in hanging.batches] == [1]
    assert [record.getMessage() for record in caplog.records if record.name == DELIVERY] == [
        "topology hanging: the listener Hanging is 2 events behind; the oldest are dropped, see status['listeners']",
        "topology hanging: the listener Hanging did not return in time; it is left behind, and 2 events are dropped",
    ]
    assert threads_of("hanging") == []


class Stopping(Kept):
    """Stops the topology after a batch."""

    running: RunningTopology

    def on_batch_committed(self, event: BatchCommitted) -> None:
        super().on_batch_committed(event)
        GATES.pass_through("to stop")
        self.running.stop()


def test_a_listener_may_stop_the_topology(caplog: pytest.LogCaptureFixture) -> None:
    stopping = Stopping()
    running = stopping.running = started(word_topology("stopping", 1, "a"), stopping)
    GATES.open("to stop")
    assert running.await_termination(WAIT_S)
    assert stopping.names == ["topologyStarted", "batchCommitted", "topologyTerminated"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_no_thread_of_a_listener_is_left() -> None:
    with started(word_topology("threads", 1, "a"), Kept(), Kept()) as running:
        assert threads_of("threads").count("trident-threads-listener") == 2
        running.process_all_available()
    assert threads_of("threads") == []
    running.add_listener(Kept())  # has nothing to be told of
    assert threads_of("threads") == []


def test_what_is_no_listener_is_refused_before_anything_starts() -> None:
    topology = word_topology("refused", 1, "a")
    for wrong in (Kept, print):
        with pytest.raises(TypeError, match="is not a listener: subclass trident.observe.TopologyListener"):
            started(topology, Kept(), wrong)  # type: ignore[arg-type]
    assert threads_of("refused") == []


def test_a_listener_that_overrides_nothing_is_fine() -> None:
    with started(word_topology("plain", 1, "a"), TopologyListener()) as running:
        running.process_all_available()
    assert running.status["listeners"] == [{"name": "TopologyListener", "delivered": 3, "dropped": 0, "errors": 0}]
