"""Spouts that have nothing for a batch: batches without rows, spouts that do not repeat themselves, idle ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from spouts import TextFileSpout
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


class StormSpout(RowsSpout):
    """Emits a batch for every id, as Storm's do: what it has for it, or nothing."""

    def emit_batch(self, batch_id: int, collector: Any) -> bool:
        super().emit_batch(batch_id, collector)
        return True


class Gaps(RowsSpout):
    """Knows which batches are empty: those before the last one that it has."""

    truth: Any = bool

    def emit_batch(self, batch_id: int, collector: Any) -> Any:
        super().emit_batch(batch_id, collector)
        return self.truth(batch_id < max(self.batches))


@pytest.mark.parametrize("spout_type", SpoutType)
@pytest.mark.parametrize(("pending", "truth"), [(1, bool), (3, np.bool_)])
def test_rows_behind_an_empty_batch_come(
    pending: int, truth: Any, spout_type: SpoutType, topology: TridentTopology
) -> None:
    spout = Gaps("x: string", {1: [["a"]], 9: [["b"]], 11: [["c"]]}, spout_type)
    spout.truth = truth
    rows = keep(topology.new_stream("s", spout))
    running = run_all(topology, "in_process", max_spout_pending=pending, allow_inexact=True)
    assert {txid: given for txid, given in rows.batches.items() if given} == {1: [("a",)], 9: [("b",)], 11: [("c",)]}
    assert running.txid == 11
    assert spout.calls == ["open", *(f"ack {txid}" for txid in range(1, 12)), "close"]


@pytest.mark.parametrize("says", [None, False, np.False_])
def test_a_spout_that_stops_at_an_empty_batch_is_told_how_to_go_on(
    topology: TridentTopology, says: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(RowsSpout):
        def emit_batch(self, batch_id: int, collector: Any) -> bool | None:
            super().emit_batch(batch_id, collector)
            return says

    rows = keep(topology.new_stream("s", Silent("x: string", {1: [["a"]], 3: [["c"]]})))
    with start(topology, "in_process") as running:
        for _ in range(3):
            running.process_all_available()
    assert rows.rows == [("a",)]
    told = "Silent.emit_batch(2) emitted nothing and returned None, so it is asked for batch 2 again"
    assert [told in record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == (
        [True] if says is None else []
    )


def test_empty_batches_run_on_spark(engine: str, topology: TridentTopology) -> None:
    rows = keep(topology.new_stream("s", Gaps("x: string", {1: [["a"]], 3: [["c"]]})).shuffle())
    run_all(topology, engine)
    assert rows.batches == {1: [("a",)], 3: [("c",)]}


def test_a_spout_that_has_a_batch_for_every_id_does_not_keep_anybody_waiting(topology: TridentTopology) -> None:
    spout = StormSpout("x: string", {1: [["a"]], 3: [["c"]]})
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
    with start(topology, "in_process") as running:
        running.process_all_available()
    assert rows.rows == [("b",), ("c",)]


def test_an_idle_spout_makes_an_empty_batch_per_poll_and_no_more(topology: TridentTopology) -> None:
    keep(topology.new_stream("s", StormSpout("x: string", {1: [["a"]]})))
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


# ---- replays -------------------------------------------------------------------------------------------------------------

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


# ---- idle topologies -------------------------------------------------------------------------------------------------


ASKED = 20
INTERVAL_MS = 50


class Asked(TextFileSpout):
    """Counts how often its coordinator is asked; each time computes for `busy_s` seconds."""

    def __init__(self, paths: Path, busy_s: float = 0.0) -> None:
        super().__init__(paths)
        self._busy_s, self._asked = busy_s, [0]

    def get_coordinator(self, conf: Any, clock: Any = None) -> Any:
        made = super().get_coordinator(conf)
        define, asked = made.initialize_transaction, self._asked
        self._more = threading.Condition()

        def counted(txid: int, previous: Any) -> Any:
            until = time.thread_time() + self._busy_s
            while time.thread_time() < until:
                pass
            with self._more:
                asked[0] += 1
                self._more.notify_all()
            return define(txid, previous)

        made.initialize_transaction = counted  # type: ignore[method-assign]
        return made

    def measure(self, times: int) -> tuple[float, float]:
        """Wait until it was asked so many times more; return the seconds, and those in which this process computed."""
        with self._more:
            last = self._asked[0] + times
            began, computed = time.monotonic(), time.process_time()
            assert self._more.wait_for(lambda: self._asked[0] >= last, WAIT_S)
        return time.monotonic() - began, time.process_time() - computed

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_more"}


def idle(spout: TextFileSpout, engine: str, tmp_path: Path, interval_ms: int = INTERVAL_MS) -> RunningTopology:
    """Start a topology and let it commit all there is."""
    from states.delta import DeltaState

    topology = TridentTopology("idle")
    state = DeltaState.opaque(str(tmp_path / "table"))
    topology.new_stream("lines", spout).group_by("line").persistent_aggregate(state, Count(), "count")
    running = start(topology, engine, poll_interval_ms=interval_ms, log_dir=tmp_path / "log")
    running.process_all_available()
    assert running.txid == 1
    return running


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("a\nb\n", encoding="utf-8")
    return folder


def written(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def test_an_idle_topology_asks_once_per_interval_and_does_next_to_nothing(texts: Path, tmp_path: Path) -> None:
    spout = Asked(texts)
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
def test_an_idle_topology_on_spark_runs_no_job(spark: SparkSession, texts: Path, tmp_path: Path) -> None:
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup
    before = len(jobs(None))
    spout = Asked(texts)
    with idle(spout, "spark", tmp_path):
        ran = len(jobs(None))
        assert ran > before  # the tracker knows the job of the one batch
        spout.measure(ASKED)
        assert len(jobs(None)) == ran


@pytest.mark.slow
def test_a_spout_that_is_much_work_to_ask_is_asked_less_often(texts: Path, tmp_path: Path) -> None:
    spout = Asked(texts, busy_s=0.02)
    with idle(spout, "in_process", tmp_path, interval_ms=1):
        elapsed, _ = spout.measure(5)
    assert elapsed >= 4 * 0.02 * 10
