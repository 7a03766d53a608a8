"""Topologies that read CSV, JSON and Parquet files: on Spark, and with drivers that are killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spouts import CsvFileSpout, JsonFileSpout, ParquetFileSpout
from states.memory import MemoryMapState
from tests.spouts.files.test_parquet import parquet, table
from tests.spouts.files.test_text_files import write
from tests.spouts.killed_driver import run_killed
from trident import TridentTopology
from trident.operations import Sum
from trident.spout import ITridentSpout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fill(folder: Path, rows: int) -> None:
    """Write the numbers below a multiple of 3, a third into each of three files of each kind."""
    for at in range(0, rows, rows // 3):
        numbers = range(at, at + rows // 3)
        write(folder / "in" / f"{at}.csv", b"name,id\n" + b"".join(b"x,%d\n" % k for k in numbers))
        write(folder / "in" / f"{at}.json", b"".join(b'{"id": %d, "n": {"a": 1}}\n' % k for k in numbers))
        parquet(folder / "in" / f"{at}.parquet", table(at, at + rows // 3), 250)


@pytest.mark.long
def test_they_run_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, 3000)
    spark.range(3000).repartition(3).write.parquet(str(tmp_path / "spark"))
    topology, folder = TridentTopology("files"), tmp_path / "in"
    spouts: dict[str, ITridentSpout] = {
        "csv": CsvFileSpout(folder, "id: bigint, name: string", max_batch_bytes=8192),
        "json": JsonFileSpout(folder, "id: bigint, n: struct<a:int>", max_batch_bytes=32_768),
        "parquet": ParquetFileSpout(folder, max_batch_rows=1500),
        "spark": ParquetFileSpout(tmp_path / "spark"),
    }
    sums = [
        topology.new_stream(name, spout).persistent_aggregate(MemoryMapState(), "id", Sum(), "sum", state_name=name)
        for name, spout in spouts.items()
    ]
    with topology.start(log_dir=tmp_path / "log") as running:
        running.process_all_available()
        assert [running.state(one).get() for one in sums] == [2999 * 1500] * 4
        assert running.txid > 2


DRIVER = """
import sys
from spouts import CsvFileSpout, JsonFileSpout, ParquetFileSpout
from states.delta import DeltaState
from trident import TridentTopology
from trident.operations import Count, Filter, Sum

class Tell(Filter):
    def is_keep(self, tuple):
        if tuple[0] % 500 == 0:
            print(tuple[0], flush=True)
        return True

folder = sys.argv[1]
topology, found = TridentTopology("files"), []
for name, spout in {
    "csv": CsvFileSpout(folder + "/in", "id: bigint", max_batch_bytes=4096),
    "json": JsonFileSpout(folder + "/in", "id: bigint", max_batch_bytes=16384),
    "parquet": ParquetFileSpout(folder + "/in", "id", max_batch_rows=500),
}.items():
    stream = topology.new_stream(name, spout).each("id", Tell())
    total, count = (DeltaState.opaque(f"{folder}/{name}-{what}") for what in ("sum", "count"))
    found.append(stream.persistent_aggregate(total, "id", Sum(), "sum", state_name=name + "-sum"))
    found.append(stream.persistent_aggregate(count, Count(), "count", state_name=name + "-count"))
with topology.start(engine="in_process", log_dir=folder + "/log") as running:
    running.process_all_available()
    print(*(running.state(one).get() for one in found), flush=True)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_driver_that_is_killed_reads_each_row_once(tmp_path: Path) -> None:
    fill(tmp_path, 6000)
    assert run_killed(DRIVER, tmp_path, kill_at=(5, 12)) == " ".join([f"{5999 * 3000} 6000"] * 3)
