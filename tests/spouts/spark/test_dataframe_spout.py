"""A batch DataFrame as a source: its rows are written once, and read in batches, on Spark and without it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spouts import DataFrameSpout
from spouts.spark.chunks import read_manifest
from tests.harness.topology_runs import keep, run_all, start
from tests.spout.partition_source import emitted
from tests.spouts.reading import definitions, is_plain, rows_of
from tests.spouts.spark.written_rows import FIELDS, written
from trident import BatchFailedError, TopologyError, TridentTopology
from trident.errors import ReplayMismatchError
from trident.spout import Lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def never(spark: SparkSession) -> DataFrame:
    raise AssertionError("the rows are written already")


def spout_of(folder: Path, **options: Any) -> DataFrameSpout:
    return DataFrameSpout(never, folder, fields=FIELDS, **options)


@pytest.mark.parametrize(("limit", "sizes"), [(30, [30, 30, 30, 10]), (25, [20, 20, 20, 20, 20]), (4, [10] * 10)])
def test_batches_are_bounded_and_hold_each_row_once(limit: int, sizes: list[int], tmp_path: Path) -> None:
    written(tmp_path, 100, 10)
    spout = spout_of(tmp_path, max_batch_rows=limit)
    coordinator = spout.get_coordinator({})
    found = list(definitions(coordinator))
    assert [one["rows"] for one in found] == sizes
    assert all(is_plain(one) and len(pickle.dumps(one)) < 300 for one in found)
    assert [coordinator.lag(one) for one in found] == [
        Lag(100 - sum(sizes[: at + 1]), "records") for at in range(len(found))
    ]
    rows = [row for one in found for row in rows_of(spout, coordinator, one, parallelism=2)]
    assert rows == [(n, "x") for n in range(100)]


def test_the_rows_are_deleted_after_the_last_batch_and_a_restart_has_nothing_more(tmp_path: Path) -> None:
    manifest, log = written(tmp_path / "rows", 100, 10), str(tmp_path / "log")
    topology = TridentTopology("orders")
    rows = keep(topology.new_stream("orders", spout_of(tmp_path / "rows", max_batch_rows=30)))
    running = run_all(topology, "in_process", log_dir=log)
    assert running.txid == 4
    assert sorted(rows.rows) == [(n, "x") for n in range(100)]
    assert not Path(manifest.rows_folder(str(tmp_path / "rows"))).exists()
    assert run_all(topology, "in_process", log_dir=log).txid == 4
    with pytest.raises(BatchFailedError, match="were all committed and then deleted, and this log has none of them"):
        run_all(topology, "in_process", log_dir=str(tmp_path / "another"))


def test_rows_that_are_kept_can_be_read_by_another_log(tmp_path: Path) -> None:
    written(tmp_path / "rows", 100, 10)
    for log in ("first", "second"):
        rows = emitted(spout_of(tmp_path / "rows", keep=True), log_dir=str(tmp_path / log))
        assert sorted(rows.rows) == [(n, "x") for n in range(100)]


OWNER = "the stream 'orders' of the topology 'orders'"


@pytest.mark.parametrize(
    ("topology_name", "stream"), [("invoices", "orders"), ("orders", "more-orders")], ids=["topology", "stream"]
)
@pytest.mark.parametrize("keeps", [True, False])
def test_rows_of_another_stream_are_not_read_in_place_of_its_own(
    tmp_path: Path, topology_name: str, stream: str, keeps: bool
) -> None:
    written(tmp_path / "rows", 100, 10, OWNER)
    topology = TridentTopology(topology_name)
    rows = keep(topology.new_stream(stream, spout_of(tmp_path / "rows", keep=keeps)))
    said = (
        f"failed once .* the rows in .*/rows belong to {OWNER}, and this is the stream '{stream}'.* a folder of its own"
    )
    with pytest.raises(BatchFailedError, match=said):
        run_all(topology, "in_process", log_dir=str(tmp_path / "log"))
    assert not rows.rows
    own = TridentTopology("orders")
    kept = keep(own.new_stream("orders", spout_of(tmp_path / "rows", keep=keeps)))
    run_all(own, "in_process", log_dir=str(tmp_path / "own"))
    assert len(kept.rows) == 100


def test_a_topology_that_was_renamed_goes_on_with_its_rows(tmp_path: Path) -> None:
    written(tmp_path, 100, 10, "the stream 'orders' of the topology 'orders'")
    conf = {"topology": "orders", "stream": "orders"}
    first = spout_of(tmp_path, max_batch_rows=30).get_coordinator(conf).initialize_transaction(1, None)
    renamed = spout_of(tmp_path, max_batch_rows=30).get_coordinator({**conf, "topology": "all orders"})
    assert [one["left"] for one in definitions(renamed, first, 2)] == [40, 10, 0]


def test_rows_that_no_log_has_are_deleted_once_a_batch_is_committed(tmp_path: Path) -> None:
    manifest = written(tmp_path, 100, 10)
    (tmp_path / "rows-of-a-start-that-was-killed").mkdir()
    coordinator = spout_of(tmp_path, max_batch_rows=30).get_coordinator({})
    first = coordinator.initialize_transaction(1, None)
    assert len(list(tmp_path.glob("rows-*"))) == 2
    coordinator.success(1, first)
    assert [path.name for path in tmp_path.glob("rows-*")] == [f"rows-{manifest.id}"]


def test_rows_of_a_driver_that_died_before_it_could_delete_them_are_deleted(tmp_path: Path) -> None:
    manifest = written(tmp_path, 20, 10)
    coordinator = spout_of(tmp_path).get_coordinator({})
    definition = coordinator.initialize_transaction(1, None)
    coordinator.parts((1, 0), definition, 2)  # type: ignore[arg-type]  # a plain pair will do
    assert coordinator.initialize_transaction(2, definition) is None  # it may not be committed yet
    assert Path(manifest.rows_folder(str(tmp_path))).exists()
    assert spout_of(tmp_path).get_coordinator({}).initialize_transaction(2, definition) is None
    assert not Path(manifest.rows_folder(str(tmp_path))).exists()


def test_another_folder_than_that_of_the_log_is_found(tmp_path: Path) -> None:
    written(tmp_path / "a", 100, 10)
    written(tmp_path / "b", 100, 10)
    first = spout_of(tmp_path / "a", max_batch_rows=30).get_coordinator({}).initialize_transaction(1, None)
    for folder, found in (("b", "the rows of snapshot"), ("none", "no rows of a DataFrame")):
        with pytest.raises(
            ReplayMismatchError, match=f"of which 70 are behind the last batch, but .*/{folder} has {found}"
        ):
            spout_of(tmp_path / folder).get_coordinator({}).initialize_transaction(2, first)
    other = DataFrameSpout(never, tmp_path / "a", fields="n: int, text: string").get_coordinator({})
    with pytest.raises(
        ReplayMismatchError, match=r"have the fields \(n: bigint, text: string\), the DataFrame has \(n: int"
    ):
        other.initialize_transaction(1, None)


def test_what_cannot_be_a_source_is_refused_at_the_call(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="DataFrameSpout reads a DataFrame, or a function of the SparkSession"):
        DataFrameSpout("orders", tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="cannot know the columns of a DataFrame that is made later; declare them"):
        DataFrameSpout(never, tmp_path)
    with pytest.raises(ValueError, match="max_batch_rows=0 of DataFrameSpout: give a whole number of at least 1"):
        spout_of(tmp_path, max_batch_rows=0)
    with pytest.raises(ValueError, match="folder is 's3://bucket/rows'; it must be a folder that all machines see"):
        DataFrameSpout(never, "s3://bucket/rows", fields=FIELDS)


@pytest.mark.long
@pytest.mark.spark
def test_a_query_that_never_gives_the_same_twice_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as sf

    df = spark.range(1000).select("id", sf.rand().alias("luck"), sf.array(sf.lit("a"), sf.lit(None)).alias("list"))
    found = []
    for _ in range(2):
        rows = emitted(DataFrameSpout(df, tmp_path / "rows", max_batch_rows=300, keep=True), "spark")
        assert 4 <= max(rows.batches) <= 7
        found.append(sorted(rows.rows))
    assert found[0] == found[1]
    assert [(row[0], row[2]) for row in found[0]] == [(n, ["a", None]) for n in range(1000)]
    with pytest.raises(TopologyError, match="give this one to StructuredStreamingSpout"):
        DataFrameSpout(spark.readStream.format("rate").load(), tmp_path)
    with pytest.raises(TopologyError, match="is not a Spark type"):
        DataFrameSpout(spark.sql("SELECT INTERVAL '1' DAY AS day"), tmp_path)


@pytest.mark.spark
def test_columns_may_have_any_name_and_there_must_be_one(spark: SparkSession, tmp_path: Path) -> None:
    odd = spark.sql("SELECT 1 AS a, 2 AS `a.b`, 3 AS A, 4 AS `c``d e`")
    assert emitted(DataFrameSpout(odd, tmp_path / "rows")).rows == [(1, 2, 3, 4)]
    with pytest.raises(TopologyError, match="without columns has no rows that could be written: select one"):
        DataFrameSpout(spark.range(3).select(), tmp_path)


@pytest.mark.long
@pytest.mark.spark
def test_a_query_that_fails_says_why(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql("SELECT id, raise_error('no such order') AS amount FROM range(10)").selectExpr(
        "id", "string(amount)"
    )
    with pytest.raises(BatchFailedError, match="SpoutError: the rows of a DataFrame cannot be written:.*no such order"):
        emitted(DataFrameSpout(df, tmp_path / "rows"))
    assert read_manifest(str(tmp_path / "rows")) is None
    made = DataFrameSpout(lambda session: session.range(3), tmp_path / "made", fields="id: int")
    with pytest.raises(BatchFailedError, match=r"made the columns \(id: bigint\); declared are the fields \(id: int\)"):
        emitted(made)


@pytest.mark.spark
def test_a_stop_while_the_rows_are_written_cancels_the_query(spark: SparkSession, tmp_path: Path) -> None:
    slow = spark.range(0, 1000, 1, 2).selectExpr("id", "reflect('java.lang.Thread', 'sleep', 50L) AS slept")
    topology = TridentTopology("orders")
    keep(topology.new_stream("orders", DataFrameSpout(slow, tmp_path / "rows")))
    with start(topology, "in_process") as running:
        tracker = spark.sparkContext.statusTracker()
        while not tracker.getActiveJobsIds():
            assert running.is_active
    assert running.exception() is None
    assert not tracker.getActiveJobsIds()
