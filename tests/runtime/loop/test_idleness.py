"""An idle topology: how often it asks, what that costs, and that nothing else happens."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spouts import TextFileSpout
from tests.harness.commands import until
from tests.harness.topology_runs import WAIT_S, start
from trident import TridentTopology
from trident.coordination.coordinator import MasterBatchCoordinator
from trident.operations import Count
from trident.runtime.loop.start_gate import StartGate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trident.runtime.running import RunningTopology

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


def test_an_idle_topology_asks_once_per_interval_and_writes_and_computes_next_to_nothing(
    texts: Path, tmp_path: Path
) -> None:
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


def test_a_spout_that_is_much_work_to_ask_is_asked_less_often(texts: Path, tmp_path: Path) -> None:
    spout = Asked(texts, busy_s=0.02)
    with idle(spout, "in_process", tmp_path, interval_ms=1):
        elapsed, _ = spout.measure(5)
    assert elapsed >= 4 * 0.02 * 10


@pytest.mark.parametrize(("cost_s", "pause_s"), [(0.0, 0.05), (0.004, 0.05), (0.5, 5.0)])
def test_the_pause_is_the_interval_or_ten_times_the_work(cost_s: float, pause_s: float) -> None:
    gate = StartGate("t", MasterBatchCoordinator(0, 1), {}, interval_s=0.05)
    gate.had_nothing(1, 100.0, cost_s)
    assert gate.at == pytest.approx(100.0 + pause_s)
    gate.add()
    gate.look(100.0)
    assert (gate.at, len(gate.awaited)) == (100.0, 1)  # who waits for the sources does not wait for the pause
