"""Partitioned spouts on Spark and with engine="auto": exact replays, where batches are read, what idleness costs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from states.memory import MemoryMapState
from tests.harness.topology_runs import WAIT_S, keep, start
from tests.spout.folder_source import noted, numbers_in, readers, spout_of, write
from tests.spout.test_partitioned import BOTH, FailingPoints
from trident import TridentTopology
from trident.operations import Sum
from trident.spout import SpoutType


def summed(folder: Path, kind: SpoutType) -> tuple[TridentTopology, Any]:
    """Return a topology that sums the rows of each file, and keeps them all."""
    topology = TridentTopology("t")
    stream = topology.new_stream("s", spout_of(kind, folder))
    rows = keep(stream)
    stream.shuffle().group_by("partition").persistent_aggregate(MemoryMapState(), "n", Sum(), "sum", state_name="sums")
    return topology, rows


def sums(running: Any, folder: Path) -> dict[str, int]:
    names = list(numbers_in(folder))
    return dict(zip(names, running.state("sums").multi_get([(name,) for name in names]), strict=True))


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", BOTH)
def test_each_row_counts_once_on_each_engine(kind: SpoutType, engine: str, tmp_path: Path) -> None:
    for partition, size in (("a", 10), ("b", 3), ("c", 0)):
        write(tmp_path, partition, range(size))
    topology, rows = summed(tmp_path, kind)
    with start(topology, engine, FailingPoints(2)) as running:
        running.process_all_available()
        write(tmp_path, "c", [5, 6])
        write(tmp_path, "d", [7])
        running.process_all_available()
        assert sums(running, tmp_path) == numbers_in(tmp_path)
    of_a = [row[1] for row in rows.rows if row[0] == "part-a"]
    assert of_a == list(range(10))
    assert noted(tmp_path, "again-2-part-a") == (1 if kind is SpoutType.TRANSACTIONAL else 0)
    assert (readers(tmp_path, 1) == {os.getpid()}) == (engine == "in_process")


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", BOTH)
def test_an_idle_source_costs_no_spark_job(kind: SpoutType, spark: Any, tmp_path: Path) -> None:
    write(tmp_path, "a", range(3))
    topology, _ = summed(tmp_path, kind)
    context: SparkContext = spark.sparkContext
    with start(topology, "spark", poll_interval_ms=5) as running:
        running.process_all_available()
        jobs, asked = _jobs(context), noted(tmp_path, "asked")
        deadline = time.monotonic() + WAIT_S
        while noted(tmp_path, "asked") < asked + 20 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert noted(tmp_path, "asked") >= asked + 20
        assert _jobs(context) == jobs
        write(tmp_path, "a", range(3, 8))
        running.process_all_available()
        assert sums(running, tmp_path) == numbers_in(tmp_path)
    assert running.txid == 3
    assert readers(tmp_path, 2) == {os.getpid()}  # what the driver found was shipped
    assert os.getpid() not in readers(tmp_path, 1) | readers(tmp_path, 3)


def _jobs(context: SparkContext) -> int:
    return len(context.statusTracker().getJobIdsForGroup())


@pytest.mark.parametrize("kind", BOTH)
def test_small_batches_need_no_spark(kind: SpoutType, tmp_path: Path) -> None:
    """A quick test fails that starts Java."""
    write(tmp_path, "a", range(10))
    topology, _ = summed(tmp_path, kind)
    with start(topology, "auto", FailingPoints(2)) as running:
        running.process_all_available()
        assert sums(running, tmp_path) == numbers_in(tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", BOTH)
def test_behind_a_large_batch_the_workers_read_until_one_is_small(kind: SpoutType, spark: Any, tmp_path: Path) -> None:
    write(tmp_path, "a", range(10))
    topology, _ = summed(tmp_path, kind)
    with start(topology, "auto", auto_bytes=70) as running:  # four rows have more, two have fewer
        running.process_all_available()
        write(tmp_path, "a", [11, 12])
        running.process_all_available()
        assert sums(running, tmp_path) == numbers_in(tmp_path)
    assert [os.getpid() in readers(tmp_path, txid) for txid in (1, 2, 3, 4)] == [True, False, False, True]
