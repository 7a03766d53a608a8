"""Events as log records: their levels, their text, and lines of JSON, also from the command."""

from __future__ import annotations

import json
import logging
import re
import signal
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.harness.commands import COUNTS, last_txid, trident, until, write_module
from tests.harness.commands import started as command
from tests.harness.topology_runs import WAIT_S
from tests.observe.watching import failing, started, word_topology
from trident import BatchFailedError
from trident.observe import AttemptFailed, BatchCommitted, JsonFormatter, TopologyStarted, TopologyTerminated
from trident.observe.events import event_logger, event_of

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


# ---- the command -------------------------------------------------------------------------------------------------------


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
def test_the_command_writes_a_line_of_json_for_each_event(folder: Path) -> None:
    done = trident("run", "counts:topology", "--once", *IN_PROCESS, cwd=folder)
    assert done.returncode == 0
    told = lines_of(done.stderr)
    assert [line["event"] for line in told] == ["topologyStarted", *["batchCommitted"] * 3, "topologyTerminated"]
    assert told[1]["stateKeys"] == {
        "count": {"read": 3, "cached": 0, "written": 3},
        "total": {"read": 1, "cached": 0, "written": 1},
    }
    assert done.stdout.startswith("complete: 3 batches with 6 tuples")


@pytest.mark.long
@pytest.mark.slow
def test_the_command_tells_an_error_once_and_as_json(folder: Path) -> None:
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
    assert [line["message"] for line in told if line["logger"] == "trident.cli"] == [
        "stopping after the commit under way (once more: at once)"
    ]
    assert "stopped after batch" in out
