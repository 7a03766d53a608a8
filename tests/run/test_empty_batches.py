"""Spouts that have nothing for a batch: batches without rows, spouts that do not repeat themselves, idle ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from tests.harness.commands import until
from tests.harness.topology_runs import WAIT_S, FailTimes, OneSpout, Points, RowsSpout, keep, run_all, start
from tests.run.test_loop import HandClock, looping
from trident import BatchFailedError, TridentTopology
from trident.operations import Count
from trident.spout.interfaces import Definition, SpoutType, TransactionAttempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trident.run.running import RunningTopology

EMPTY_IN_A_ROW = 10


class Telling(RowsSpout):
    """Says of each batch what `says` gives for its id."""

    def __init__(
        self, batches: Mapping[int, Any], says: Callable[[int], Any], spout_type: SpoutType = SpoutType.TRANSACTIONAL
    ) -> None:
        super().__init__("x: string", batches, spout_type)
        self.says = says

    def emit_batch(self, batch_id: int, collector: Any) -> Any:
        super().emit_batch(batch_id, collector)
        return self.says(batch_id)


def has_every_id(batch_id: int) -> bool:
    """Say that there is a batch, with rows or without: as Storm's spouts do."""
    return True


@pytest.mark.parametrize("spout_type", SpoutType)
@pytest.mark.parametrize(("pending", "truth"), [(1, bool), (3, np.bool_)])
def test_rows_behind_empty_batches_come(
    pending: int, truth: Any, spout_type: SpoutType, topology: TridentTopology
) -> None:
    spout = Telling({1: [["a"]], 9: [["b"]], 11: [["c"]]}, lambda batch_id: truth(batch_id < 11), spout_type)
    rows = keep(topology.new_stream("s", spout))
    running = run_all(topology, "in_process", max_spout_pending=pending, allow_inexact=True)
    assert {txid: given for txid, given in rows.batches.items() if given} == {1: [("a",)], 9: [("b",)], 11: [("c",)]}
    assert running.txid == 11
    assert spout.calls == ["open", *(f"ack {txid}" for txid in range(1, 12)), "close"]


@pytest.mark.parametrize("says", [None, False, np.False_])
def test_a_spout_that_stops_at_an_empty_batch_is_told_how_to_go_on(
    topology: TridentTopology, says: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    rows = keep(topology.new_stream("s", Telling({1: [["a"]], 3: [["c"]]}, lambda batch_id: says)))
    with start(topology, "in_process") as running:
        for _ in range(3):
            running.process_all_available()
    assert rows.rows == [("a",)]
    told = "Telling.emit_batch(2) emitted nothing and returned None, so it is asked for batch 2 again"
    assert [told in record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == (
        [True] if says is None else []
    )


def test_empty_batches_run_on_spark(engine: str, topology: TridentTopology) -> None:
    rows = keep(topology.new_stream("s", Telling({1: [["a"]], 3: [["c"]]}, lambda batch_id: batch_id < 3)).shuffle())
    run_all(topology, engine)
    assert rows.batches == {1: [("a",)], 3: [("c",)]}


def test_a_spout_that_has_a_batch_for_every_id_does_not_keep_anybody_waiting(topology: TridentTopology) -> None:
    spout = Telling({1: [["a"]], 3: [["c"]]}, has_every_id)
    rows = keep(topology.new_stream("s", spout))
    with start(topology, "in_process", poll_interval_ms=3_600_000, max_spout_pending=1) as running:
        running.process_all_available()
        assert rows.rows == [("a",), ("c",)]
        assert running.txid - 3 in (EMPTY_IN_A_ROW, EMPTY_IN_A_ROW + 1)  # one may come before anybody waits
        spout.batches = {running.txid + 6: [["d"]]}
        running.process_all_available()
        assert rows.rows == [("a",), ("c",), ("d",)]


class Metadata(OneSpout):
    """As Storm's transactional spouts: metadata for every batch, of which many have no part."""

    def __init__(self, batches: Mapping[int, list[str]]) -> None:
        self.batches = batches

    def initialize_transaction(self, txid: int, previous: Definition | None) -> Definition:
        return {"txid": txid}

    def parts(self, attempt: TransactionAttempt, definition: Definition, parallelism: int) -> list[Any]:
        return [self.batches[attempt.txid]] if attempt.txid in self.batches else []

    def emit(self, part: Any) -> list[pa.Table]:
        return [pa.table({"x": part})]


def test_a_definition_without_parts_is_an_empty_batch(topology: TridentTopology) -> None:
    rows = keep(topology.new_stream("s", Metadata({2: ["b"], 9: ["c"]})))
    run_all(topology, "in_process")
    assert rows.rows == [("b",), ("c",)]


def test_an_idle_spout_makes_an_empty_batch_per_poll_and_no_more(topology: TridentTopology) -> None:
    keep(topology.new_stream("s", Telling({1: [["a"]]}, has_every_id)))
    clock, points = HandClock(), Points()
    with looping(topology, clock, points, engine="in_process", poll_interval_ms=10_000) as loop:
        points.await_point("succeeded", 2)
        for txid in (3, 4):
            clock.advance(9.75)
            clock.settle(loop.wake)
            assert len(points.attempts("defined")) == txid - 1
            clock.advance(0.25)
            loop.wake()
            points.await_point("succeeded", txid)


DEFINED = [["b", 2], ["c", None]]


@pytest.mark.parametrize(
    ("again", "said"),
    [
        ([["b", 2], ["d", None]], "2 rows with checksum .* in place of 2 rows with checksum"),
        ([["c", None], ["b", 2]], "2 rows with checksum .* in place of 2 rows with checksum"),
        ([["b", 2]], "1 rows with checksum .* in place of 2 rows with checksum"),
        ([], "0 rows with checksum .* in place of 2 rows with checksum"),
    ],
)
def test_a_transactional_spout_that_gives_other_rows_when_replayed_is_found(
    again: list[Any], said: str, topology: TridentTopology, tmp_path: Path
) -> None:
    (tmp_path / "calls").mkdir()
    spout = RowsSpout("x: string, n: int", {1: [["a", 1]], 2: DEFINED})
    failing = FailTimes(tmp_path / "calls", "b", 1, ConnectionError("away"))
    rows = keep(topology.new_stream("s", spout).each("x", failing, "y").project("y"))
    conf: dict[str, Any] = {"max_batch_attempts": 1, "log_dir": tmp_path / "log"}
    with pytest.raises(BatchFailedError, match="ConnectionError: away"):
        run_all(topology, "in_process", **conf)
    spout.batches = {2: again}
    with pytest.raises(BatchFailedError, match=rf"ReplayMismatchError: RowsSpout.emit_batch\(2\) gave .*{said}"):
        run_all(topology, "in_process", **conf)
    spout.batches = {2: DEFINED}
    run_all(topology, "in_process", **conf)
    assert rows.batches == {1: [("a",)], 2: [("b",), ("c",)]}


def test_a_spout_may_fill_the_same_list_again(topology: TridentTopology) -> None:
    class Reusing(RowsSpout):
        def emit_batch(self, batch_id: int, collector: Any) -> None:
            row: list[Any] = [None]
            for row[0] in ("a", "b") if batch_id == 1 else ():
                collector.emit(row)

    rows = keep(topology.new_stream("s", Reusing("x: string", {})))
    run_all(topology, "in_process")
    assert rows.rows == [("a",), ("b",)]


ASKED = 20
INTERVAL_MS = 50


class Asked(OneSpout):
    """Counts how often it is asked; each time computes for `busy_s` seconds."""

    def __init__(self, busy_s: float = 0.0) -> None:
        self.busy_s, self.asked, self.more = busy_s, 0, threading.Condition()

    def initialize_transaction(self, txid: int, previous: Any) -> Any:
        until = time.thread_time() + self.busy_s
        while time.thread_time() < until:
            pass
        with self.more:
            self.asked += 1
            self.more.notify_all()
        return super().initialize_transaction(txid, previous)

    def emit(self, part: Any) -> list[pa.Table]:
        return [pa.table({"x": ["a", "b"]})]

    def measure(self, times: int) -> tuple[float, float]:
        """Wait until it was asked so many times more; return the seconds, and those in which this process computed."""
        with self.more:
            last = self.asked + times
            began, computed = time.monotonic(), time.process_time()
            assert self.more.wait_for(lambda: self.asked >= last, WAIT_S)
        return time.monotonic() - began, time.process_time() - computed

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "more"}


def idle(spout: Asked, engine: str, tmp_path: Path, interval_ms: int = INTERVAL_MS) -> RunningTopology:
    """Start a topology and let it commit all there is."""
    from states.delta import DeltaState

    topology = TridentTopology("idle")
    state = DeltaState.opaque(str(tmp_path / "table"))
    topology.new_stream("lines", spout).group_by("x").persistent_aggregate(state, Count(), "count")
    running = start(topology, engine, poll_interval_ms=interval_ms, log_dir=tmp_path / "log")
    running.process_all_available()
    assert running.txid == 1
    return running


def written(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def test_an_idle_topology_asks_once_per_interval_and_does_next_to_nothing(tmp_path: Path) -> None:
    spout = Asked()
    with idle(spout, "in_process", tmp_path) as running:
        published = tmp_path / "table" / "_delta_log" / f"{1:020}.json"
        until(published.exists, "the state shows its batch to other programs")
        before = written(tmp_path / "log") | written(tmp_path / "table")
        elapsed, computed = spout.measure(ASKED)
        assert written(tmp_path / "log") | written(tmp_path / "table") == before
        assert running.txid == 1
    print(f"idle for {elapsed:.2f} s, computed for {computed * 1000:.0f} ms ({computed / elapsed:.1%})")  # noqa: T201
    assert elapsed >= (ASKED - 1) * INTERVAL_MS / 1000
    assert computed < elapsed / 4  # a busy loop computes all the time


@pytest.mark.spark
def test_an_idle_topology_on_spark_runs_no_job(spark: SparkSession, tmp_path: Path) -> None:
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup
    before = len(jobs(None))
    spout = Asked()
    with idle(spout, "spark", tmp_path):
        ran = len(jobs(None))
        assert ran > before  # the tracker knows the job of the one batch
        spout.measure(ASKED)
        assert len(jobs(None)) == ran


@pytest.mark.slow
def test_a_spout_that_is_much_work_to_ask_is_asked_less_often(tmp_path: Path) -> None:
    spout = Asked(busy_s=0.02)
    with idle(spout, "in_process", tmp_path, interval_ms=1):
        elapsed, _ = spout.measure(5)
    assert elapsed >= 4 * 0.02 * 10
