"""Listeners are told what happens, in order; so is the log: levels, sentences, lines of JSON. Neither harms the topology."""

import json
import logging
import re
import signal
import threading
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from spouts import FeederBatchSpout, FixedBatchSpout
from tests.harness.commands import COUNTS, last_txid, trident, until, write_module
from tests.harness.commands import started as command
from tests.harness.topology_runs import GATES, WAIT_S, keep
from tests.observe.watching import Kept, failing, started, threads_of, word_topology
from trident import BatchFailedError, TridentTopology
from trident.observe import (
    AttemptFailed,
    BatchCommitted,
    JsonFormatter,
    TopologyListener,
    TopologyStarted,
    TopologyTerminated,
    monitoring,
)
from trident.observe.events import event_logger, event_of
from trident.run.running import RunningTopology

DELIVERY = "trident.observe.monitoring"


def test_a_listener_is_told_of_start_batches_with_their_figures_and_end(engine: str) -> None:
    kept = Kept()
    with started(word_topology("told", 2, "the cow the"), kept, engine=engine) as running:
        running.process_all_available()
        last = running.last_progress
    assert kept.names == ["topologyStarted", "batchCommitted", "batchCommitted", "topologyTerminated"]
    first, *batches, end = kept.events
    assert isinstance(first, TopologyStarted)
    assert (first.txid, first.placements) == (0, {"count": "driver"})
    assert [(batch.txid, batch.tuples) for batch in kept.batches] == [(1, 2), (2, 1)]
    batch = kept.batches[0]
    assert (batch.topology, batch.tries, batch.engine, batch.dead_letters) == ("told", 1, engine, 0)
    assert (dict(batch.read.rows), batch.keys_updated, batch.read.tasks) == ({"words": 2}, {"count": 2}, 1)
    assert min(batch.phases) >= 0
    assert batch.as_dict()["durationMs"]["total"] == pytest.approx(1000 * sum(batch.phases))
    assert (batch.bytes_collected > 0, batch.bytes_shuffled) == (engine == "spark", 0)
    assert batches[-1].as_dict() == last
    assert isinstance(end, TopologyTerminated)
    assert (end.txid, end.exception, end.error_class) == (2, None, None)
    assert {event.run_id for event in kept.events} == {running.run_id}


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
    for thread in threading.enumerate():
        if thread.name == "trident-added-listener":  # of one that was removed
            thread.join(WAIT_S)
    assert [event.txid for event in kept.events] == [2]


class Raising(Kept):
    """Raises at each batch."""

    def on_batch_committed(self, event: BatchCommitted) -> None:
        raise SystemExit(f"batch {event.txid}")


def test_a_listener_that_raises_harms_neither_topology_nor_listeners(caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_hanging_listener_holds_up_nothing(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
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


ONE = ("--conf", "max_spout_pending=1")
IN_PROCESS = ("--engine", "in_process", "--log-format", "json")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Keep all records of events from now on."""
    caplog.set_level(logging.INFO, event_logger.name)
    return caplog


def test_events_are_records_with_levels_and_sentences(log: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with (
        pytest.raises(BatchFailedError),
        started(failing("failing", tmp_path), max_spout_pending=1, max_batch_attempts=2, retry_backoff_ms=0) as running,
    ):
        running.await_termination(WAIT_S)
    told = [record for record in log.records if record.name == event_logger.name]
    assert [(record.levelname, type(event_of(record))) for record in told] == [
        ("INFO", TopologyStarted),
        ("INFO", BatchCommitted),
        ("WARNING", AttemptFailed),
        ("WARNING", AttemptFailed),
        ("ERROR", TopologyTerminated),
    ]
    started_, batch, first, last, end = (record.getMessage() for record in told)
    assert started_ == "topology failing: started after batch 0"
    figure = r"\d+\.\d"
    assert re.fullmatch(
        rf"topology failing: batch 1 \(start 1\) committed, 1 tuple in {figure} ms \(define {figure}, process {figure}, "
        rf"wait {figure}, commit {figure}, record {figure}\)",
        batch,
    )
    assert first.endswith("failed in step 's/FailTimes' (RuntimeError: no b); trying again in 0.0 s")
    assert last.endswith("failed in step 's/FailTimes' (RuntimeError: no b); not trying again")
    assert end == f"topology failing ended at batch 1: {running.exception()}"


def test_a_line_of_json_has_all_that_the_event_says(log: pytest.LogCaptureFixture) -> None:
    with started(word_topology("lines", 3, "the cow the")) as running:
        running.process_all_available()
        expected = running.last_progress
    formatter = JsonFormatter()
    lines = [json.loads(formatter.format(record)) for record in log.records if record.name == event_logger.name]
    assert [line["event"] for line in lines] == ["topologyStarted", "batchCommitted", "topologyTerminated"]
    figures = {key: value for key, value in lines[1].items() if key not in ("level", "logger", "message")}
    assert figures == expected
    assert (lines[1]["level"], lines[1]["logger"]) == ("INFO", "trident.events")


def test_a_line_of_json_has_the_traceback_of_an_error() -> None:
    try:
        raise ValueError('a "quote"\nand a line')
    except ValueError as error:
        raised = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("other", logging.ERROR, "x.py", 1, "%s failed", ("this",), raised)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert (told["message"], told["level"], told["logger"]) == ("this failed", "ERROR", "other")
    assert told["traceback"].endswith('ValueError: a "quote"\nand a line')


def test_without_a_handler_for_it_no_sentence_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchCommitted, "__str__", lambda self: pytest.fail("nothing reads it"))
    monkeypatch.setattr(BatchCommitted, "as_dict", lambda self: pytest.fail("nothing reads it"))
    with started(word_topology("quiet", 1, "a b")) as running:
        running.process_all_available()
        assert running.txid == 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_module(tmp_path, "counts", COUNTS + BROKEN)
    return tmp_path


BROKEN = """
    def boom(line):
        raise RuntimeError("no " + line)

    def broken():
        topology = TridentTopology("broken")
        lines = topology.new_stream("lines", FixedBatchSpout("line: string", 2, *ROWS)).each("line", boom, "x: string")
        lines.group_by("x").persistent_aggregate(DeltaState.opaque("broken"), Count(), "count")
        return topology
"""


def lines_of(problems: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in problems.splitlines()]


@pytest.mark.long
@pytest.mark.slow
def test_the_command_writes_a_line_of_json_for_each_event_and_one_for_an_error(folder: Path) -> None:
    done = trident("run", "counts:topology", "--once", *IN_PROCESS, cwd=folder)
    assert (done.returncode, done.stdout.startswith("complete: 3 batches with 6 tuples")) == (0, True)
    told = lines_of(done.stderr)
    assert [line["event"] for line in told] == ["topologyStarted", *["batchCommitted"] * 3, "topologyTerminated"]
    counts = {"count": (3, 3), "total": (1, 1)}
    keys = {state: {"read": read, "cached": 0, "written": written} for state, (read, written) in counts.items()}
    assert told[1]["stateKeys"] == keys
    broken = trident("run", "counts:broken", "--once", *IN_PROCESS, "--conf", "max_batch_attempts=2", *ONE, cwd=folder)
    assert (broken.returncode, broken.stdout) == (1, "")
    told = lines_of(broken.stderr)
    assert [line["event"] for line in told] == ["topologyStarted", *["attemptFailed"] * 2, "topologyTerminated"]
    assert told[-1]["errorClass"] == "BatchFailedError"
    refused = trident("run", "counts:ROWS", *IN_PROCESS, cwd=folder)
    (line,) = lines_of(refused.stderr)
    assert (refused.returncode, line["level"]) == (1, "ERROR")
    assert line["message"].startswith("counts:ROWS is a list; expected a TridentTopology")


@pytest.mark.long
@pytest.mark.slow
def test_the_command_serves_metrics_until_it_is_stopped(folder: Path) -> None:
    with command("run", "counts:endless", *IN_PROCESS, "--metrics-port", "0", cwd=folder) as running:
        said = running.says(r"^counts: metrics at http://127.0.0.1:.*")
        until(lambda: last_txid(folder / "trident-log" / "counts") >= 2, "batches are committed")
        with urlopen(said.split()[-1], timeout=30) as answer:
            text = answer.read().decode()
        running.signal(signal.SIGINT)
        code, out, problems = running.end()
    assert 'trident_batches_committed_total{topology="counts"}' in text
    assert code == 130
    told = lines_of(problems)
    assert told[-1]["event"] == "topologyTerminated"
    messages = [line["message"] for line in told if line["logger"] == "trident.cli"]
    assert messages == ["stopping after the commit under way (once more: at once)"]
    assert "stopped after batch" in out
