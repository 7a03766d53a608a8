"""A driver that reads a DataFrame, and is killed after the commit of its third batch and before the record."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spouts import DataFrameSpout
from tests.harness.sqlite_map import sqlite_state
from trident import Config, TridentTopology
from trident.operations import Sum
from trident.runtime.driver import running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trident.stream import TridentState

ROWS, BATCHES, KILLED_IN = 7000, 7, 3


def orders(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 1).selectExpr("id % 7 AS key", "id", "rand() AS luck")


def declared(folder: Path, source: Callable[[Any], Any]) -> tuple[TridentTopology, TridentState]:
    topology = TridentTopology("orders")
    fields = "key: bigint, id: bigint, luck: double"
    spout = DataFrameSpout(source, folder / "rows", fields=fields, max_batch_rows=ROWS // BATCHES)
    stream = topology.new_stream("orders", spout)
    state = sqlite_state(str(folder / "totals.db"))
    return topology, stream.group_by("key").persistent_aggregate(state, "id", Sum(), "total")


def die(point: str, attempt: Any) -> None:
    if point == "committed" and attempt.txid == KILLED_IN:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    topology, _ = declared(folder, orders)
    config = Config(engine="spark", master="local[2]", log_dir=str(folder / "log"))
    with running.start(topology.graph(), config, None, die) as topology_run:
        topology_run.process_all_available()
