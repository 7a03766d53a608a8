"""Topologies over both kinds of DataFrames; as a program, a driver that is killed while both are between commit and record."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spouts import DataFrameSpout, StructuredStreamingSpout
from tests.harness.sqlite_map import sqlite_state
from trident import Config, TridentTopology
from trident.operations import Count, Sum
from trident.run import running
from trident.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, BATCHES = 7000, 7


def orders(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 1).selectExpr("id % 7 AS key", "id", "rand() AS luck")


def totals_of_orders(folder: Path) -> TridentTopology:
    topology = TridentTopology("orders")
    fields = "key: bigint, id: bigint, luck: double"
    spout = DataFrameSpout(orders, folder / "rows", fields=fields, max_batch_rows=ROWS // BATCHES)
    stream = topology.new_stream("orders", spout)
    stream.group_by("key").persistent_aggregate(sqlite_state(str(folder / "states.db")), "id", Sum(), "total")
    return topology


def counts_of_lines(folder: Path) -> TridentTopology:
    def lines(spark: SparkSession) -> DataFrame:
        return spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))

    topology = TridentTopology("lines")
    stream = topology.new_stream(
        "lines", StructuredStreamingSpout(lines, folder / "checkpoint", fields="value: string")
    )
    stream.group_by("value").persistent_aggregate(sqlite_state(str(folder / "states.db")), Count(), "count")
    return topology


TOPOLOGIES = {"orders": totals_of_orders, "lines": counts_of_lines}


def run_until(folder: Path, point: str, txid: int) -> None:
    """Run both, and kill the process when both are at a point of a batch."""
    both = threading.Barrier(len(TOPOLOGIES))

    def die(at: str, attempt: Any) -> None:
        if (at, attempt.txid) == (point, txid):
            both.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    def run(name: str) -> None:
        config = Config(engine="spark", master="local[2]", log_dir=str(folder / name))
        with running.start(TOPOLOGIES[name](folder).graph(), config, None, die) as started:
            started.await_termination()

    spark_session("both", "local[2]")  # before both ask for one
    for name in TOPOLOGIES:
        threading.Thread(target=run, args=(name,)).start()


if __name__ == "__main__":
    run_until(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
