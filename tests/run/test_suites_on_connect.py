"""The tests of the functions for `foreachBatch` once more, on Spark Connect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import udf

from states.memory import MemoryMapState
from tests.harness.connect_servers import started
from tests.harness.sqlite_map import sqlite_state
from trident import QueryBatches, TridentTopology, open_state
from trident.operations import Sum

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

from tests.run.test_checkpoints import *  # noqa: F403
from tests.run.test_checkpoints import Job, replace_last_batch
from tests.run.test_foreach_batch import *  # noqa: F403
from tests.run.test_foreach_batch import QUICK, ROWS, declared, streamed

# Their states are in memory, and the server runs the function in another process; `test_on_connect.py` has them with a store.
for _left_out in (
    "test_totals_of_a_query_are_not_added_up", "test_totals_are_refused_whoever_hands_them_over",
    "test_rows_of_a_query_that_are_no_totals_are_taken", "test_a_topology_says_what_the_rows_of_its_query_are",
):  # fmt: skip
    del globals()[_left_out]

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def spark(connect: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # functions such as `col` are then those of Spark Connect
    return connect


def test_the_last_batch_with_other_rows_is_found(job: Job) -> None:  # type: ignore[no-redef]
    """The one thing that a session of Spark Connect does not tell: when a batch was planned."""
    replace_last_batch(job)
    assert job.run() == {"a": 2, "b": 1}, "it is taken for the batch that is there"


def test_an_attempt_evaluates_the_query_once(orders: DataFrame, tmp_path: Path) -> None:  # type: ignore[no-redef]
    calls = str(tmp_path / "calls")

    def noted(shop: str) -> str:
        with Path(calls).open("a", encoding="utf-8") as file:
            file.write(f"{shop}\n")
        return shop

    topology, stream = declared()
    for name in ("one", "two"):
        totals = stream.group_by("shop").aggregate("euros", Sum(), "e").group_by("shop")
        totals.persistent_aggregate(MemoryMapState.opaque(), "e", Sum(), "total", state_name=name)
    with topology.foreach_batch() as function:
        function(orders.withColumn("shop", udf(lambda shop: noted(shop), "string")("shop")), 0)
    assert len(Path(calls).read_text(encoding="utf-8").split()) == len(ROWS)


def test_what_raises_stops_the_query_and_the_next_start_replays(spark: SparkSession, tmp_path: Path) -> None:  # type: ignore[no-redef]
    mended = str(tmp_path / "mended")

    def whole(value: str) -> int:
        return int(value) // (1 if value != "3" or Path(mended).exists() else 0)

    topology = TridentTopology("numbers")
    numbers = topology.new_stream("lines", QueryBatches("value: string")).each("value", whole, "n: bigint")
    numbers.persistent_aggregate(sqlite_state(str(tmp_path / "db")), "n", Sum(), "total", state_name="total")
    function = topology.foreach_batch(log_dir=str(tmp_path / "log"), **QUICK)
    writer = streamed(spark, tmp_path).writeStream.foreachBatch(function)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match=r"BatchFailedError.*batch 1[\s\S]*ZeroDivisionError"):
        started(writer.start).awaitTermination()
    Path(mended).touch()
    started(writer.start).awaitTermination()
    with open_state(topology, "total", log_dir=str(tmp_path / "log")) as total:
        assert (total.txid, total.get()) == (1, 6)
