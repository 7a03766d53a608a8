"""States as DataFrames: all rows as of one committed batch, as typed columns; and the format `trident`."""

import datetime
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

import trident
from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.delta.state import DeltaMapState
from states.memory import MemoryMapState
from tests.harness.crashing_stores import DictMap
from tests.harness.sqlite_map import PAGE, sqlite_state
from tests.harness.topology_runs import GATES, run_all, start
from trident import TridentTopology, data_source
from trident.data_source import TridentDataSource
from trident.errors import (
    ConfigError,
    LogError,
    StaleTransactionError,
    StateError,
    StateReadError,
    TopologyError,
    UnsupportedOperation,
)
from trident.fields import Fields
from trident.operations import Count, Last, Sum
from trident.read.open_partitions import open_state
from trident.read.views import StateView, table_of_state
from trident.state import Key, OpaqueMap, OpaqueValue, Snapshot, State, Winners
from trident.targets import load_topology

KEYS = [f"k{n}" for n in range(2 * PAGE + 50)]


@pytest.mark.parametrize("partitions", [1, 3])
def test_listed_pages_are_of_one_batch(partitions: int, topology: TridentTopology, tmp_path: Path, gate: str) -> None:
    spout, state = (
        FixedBatchSpout("k: string", len(KEYS), *([[key] for key in KEYS] * 2)),
        sqlite_state(f"{tmp_path}/db"),
    )
    stream = topology.new_stream("s", spout).group_by("k")
    stream.persistent_aggregate(state, Count(), "count").parallelism_hint(partitions)

    def hold(point: str, attempt: Any) -> None:
        if (point, attempt.txid) == ("committed", 2):
            GATES.pass_through(gate)

    with start(topology, "in_process", hold, log_dir=str(tmp_path / "log")) as running:
        GATES.await_reached(gate)
        view = running.state("count")
        assert sorted(view.rows_at_once()) == sorted((key, 1) for key in KEYS)  # batch 2 is in the store already
        assert view.txid == 1
        GATES.open(gate)
        running.process_all_available()
        assert sorted(running.state("count").rows_at_once()) == sorted((key, 2) for key in KEYS)


class Overtaking(DictMap):
    """A batch is committed with each listing of its keys; there are always too many of them for one look."""

    def __init__(self, entries: dict[Any, Any], newest: list[int]) -> None:
        super().__init__(entries)
        self.newest = newest

    def key_pages(self) -> Iterator[Sequence[Key]]:
        self.newest[0] += 2
        self.entries[("a",)] = OpaqueValue(self.newest[0], 0, 1, 2)
        yield [("a",)]


def test_a_listing_that_commits_always_overtake_says_so() -> None:
    newest = [1]
    state = OpaqueMap(Overtaking({("a",): OpaqueValue(1, 0, None, 1)}, newest))
    winners, columns = Winners(((1, 0),)), Fields("k: string, value: int")
    view = StateView([state], lambda: Snapshot(newest[0], winners), "counts", columns=columns)
    with pytest.raises(StateError, match="commits batches faster than its keys can be listed") as raised:
        view.rows_at_once()
    assert isinstance(raised.value.__cause__, StaleTransactionError)
    assert newest[0] < 20  # a listing takes long, so it is not begun a hundred times


@pytest.mark.slow
def test_a_state_without_keys_has_one_row_or_none(topology: TridentTopology, tmp_path: Path) -> None:
    stream = topology.new_stream("s", FixedBatchSpout("n: bigint", 2, [1], [2], [3]))
    stream.persistent_aggregate(DeltaState.opaque(str(tmp_path / "sum")), "n", Sum(), "sum")
    stream.filter(lambda row: False).persistent_aggregate(DeltaState.opaque(str(tmp_path / "none")), "n", Sum(), "none")
    running = run_all(topology, "in_process", log_dir=str(tmp_path / "log"))
    assert running.state("sum").rows_at_once() == [(6,)]
    assert running.state("sum").at(1).rows_at_once() == [(3,)]


def test_a_store_that_cannot_list_says_so() -> None:
    class Unlisted(State):
        def multi_get(self, keys: Sequence[Key]) -> list[Any]:
            raise AssertionError

    view = StateView([Unlisted()], lambda: Snapshot(1), "counts", columns=Fields("k: string, value: int"))
    for read in (view.rows_at_once, lambda: view.top(3)):
        with pytest.raises(UnsupportedOperation, match="state 'counts' cannot list its keys"):
            read()


def test_columns_have_the_declared_types_or_those_of_their_values() -> None:
    rows = [("a", Decimal("1.50"), [1]), ("b", None, [])]
    table = table_of_state("s", Fields("k: string", "d: decimal(10,2)", "value"), rows)
    assert table.schema.types == [pa.string(), pa.decimal128(10, 2), pa.list_(pa.int64())]
    assert table.to_pylist() == [dict(zip(("k", "d", "value"), row, strict=True)) for row in rows]
    with pytest.raises(StateError, match="rows of state 's' cannot become columns: 'value' is declared as int, and"):
        table_of_state("s", Fields("value: int"), [("x",)])
    with pytest.raises(StateError, match="'value' has no declared type, and .*Read them with get_tuples"):
        table_of_state("s", Fields("value"), [("x",), (1,)])


@pytest.mark.spark
def test_a_state_is_a_frame_with_typed_columns(spark: SparkSession, topology: TridentTopology, tmp_path: Path) -> None:
    noon = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
    rows = [["a", noon, Decimal("1.10")], ["a", noon, Decimal("2.05")], ["b", noon, Decimal("1.00")]]
    stream = topology.new_stream("s", FixedBatchSpout("value: string, at: timestamp, d: decimal(10,2)", 3, *rows))
    sums = stream.group_by("value", "at").persistent_aggregate(MemoryMapState(), "d", Sum(), "sum").parallelism_hint(3)
    stream.group_by("value").persistent_aggregate(DeltaState.opaque(str(tmp_path / "n")), Count(), "n")
    running = run_all(topology, "in_process", log_dir=str(tmp_path / "log"))
    frame = running.state(sums).to_dataframe(spark)
    assert frame.columns == ["value", "at", "sum"]
    assert [type_ for _, type_ in frame.dtypes][:2] == ["string", "timestamp"]
    found = frame.selectExpr("value", "unix_seconds(at)", "double(sum)").collect()
    assert sorted(map(tuple, found)) == [("a", noon.timestamp(), 3.15), ("b", noon.timestamp(), 1.0)]
    # A session without Delta's library: the rows pass through this process.
    with trident.open_state(topology, "n", log_dir=str(tmp_path / "log")) as state:
        assert sorted(map(tuple, state.to_dataframe(spark).collect())) == [("a", 2), ("b", 1)]
        assert state.at(1).to_dataframe(spark).count() == 2


@pytest.mark.spark
def test_local_times_stay_local_times_in_a_dataframe(spark: SparkSession, topology: TridentTopology) -> None:
    odd = datetime.datetime(2024, 3, 10, 2, 30)  # which clocks in New York did not show
    stream = topology.new_stream("s", FixedBatchSpout("at: timestamp_ntz, of: array<timestamp_ntz>", 1, [odd, [odd]]))
    last = stream.group_by("at").persistent_aggregate(MemoryMapState(), "of", Last(), "of")
    running = run_all(topology, "in_process")
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = running.state(last).to_dataframe(spark)
        assert frame.dtypes == [("at", "timestamp_ntz"), ("of", "array<timestamp_ntz>")]
        assert [tuple(row) for row in frame.collect()] == [(odd, [odd])]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


MODULE = """
    from pathlib import Path
    from spouts import FixedBatchSpout
    from states.delta import DeltaState
    from states.memory import MemoryMapState
    from tests.harness.sqlite_map import sqlite_state
    from trident import TridentTopology
    from trident.operations import Count

    here = Path(__file__).parent
    topology = TridentTopology("counts")
    stream = topology.new_stream("s", FixedBatchSpout("k: string", 100, *([[f"k{n}"] for n in range(100)] * 3)))
    groups = stream.group_by("k")
    groups.persistent_aggregate(sqlite_state(str(here / "counts.db")), Count(), "rows").parallelism_hint(3)
    groups.persistent_aggregate(DeltaState.opaque(str(here / "table")), Count(), "table")
    groups.persistent_aggregate(MemoryMapState(), Count(), "memory")
    stream.persistent_aggregate(DeltaState.opaque(str(here / "total")), Count(), "total")
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "frame_counts.py").write_text(textwrap.dedent(MODULE), encoding="utf-8")
    sys.modules.pop("frame_counts", None)
    return f"{tmp_path}/frame_counts.py:topology"


@pytest.mark.slow
def test_what_the_format_cannot_read_it_says_when_spark_plans(target: str, tmp_path: Path) -> None:
    def refused(error: type[Exception], said: str, **options: str) -> None:
        def plan() -> None:
            source = TridentDataSource({"topology": target, "log_dir": str(tmp_path / "log"), **options})
            assert source.schema()
            source.reader(StructType()).partitions()

        with pytest.raises(error, match=said):
            plan()

    refused(LogError, "there is no transaction log in", state="rows")
    run_all(load_topology(target), "in_process", log_dir=str(tmp_path / "log"))
    refused(StateError, "read state 'rows' as of batch 2: its store is not a Delta table", state="rows", txid="2")
    refused(StateError, "read state 'rows' as of batch 4: 3 is the last one committed", state="rows", txid="4")
    refused(UnsupportedOperation, "state 'memory' is in the memory of the process that runs", path="memory")
    refused(TopologyError, "has no state 'nope'; it has .'rows', 'table', 'memory', 'total'", path="nope")
    refused(ConfigError, "name a state with load.* the topology has 'rows', 'table', 'memory', 'total'")
    refused(ConfigError, "the format trident has no option 'logdir'; did you mean 'log_dir'", logdir="x")
    refused(ConfigError, "say where the topology is declared", topology="", state="rows")
    (tmp_path / "table").rename(tmp_path / "elsewhere")
    gone = "partition 0 of state 'table' cannot be read: .*it was emptied or moved away"
    refused(StateReadError, gone, state="table")


def test_the_format_names_a_column_whatever_is_in_its_name(target: str, tmp_path: Path) -> None:
    module = tmp_path / "frame_counts.py"
    module.write_text(module.read_text().replace('"k: string"', '"`a``b`: string"').replace('"k"', '"`a``b`"'))
    source = TridentDataSource({"topology": target, "log_dir": str(tmp_path / "log"), "state": "rows"})
    assert source.schema() == "`a``b` string, `rows` bigint"


@pytest.mark.slow
def test_rows_that_commits_overtook_are_not_given(target: str, tmp_path: Path) -> None:
    run_all(load_topology(target), "in_process", log_dir=str(tmp_path / "log"))

    def read(state: str, planned_after: int) -> Counter[int]:
        source = TridentDataSource({"topology": target, "log_dir": str(tmp_path / "log"), "state": state})
        reader: Any = source.reader(StructType())
        found: Counter[int] = Counter()
        for planned in reader.partitions():
            partition, count, (_, *winners) = planned.value
            batches = reader.read(InputPartition((partition, count, (planned_after, *winners))))
            found.update(row[state] for batch in batches for row in batch.to_pylist())
        return found

    assert read("rows", 3) == read("table", 3) == {3: 100}
    assert read("rows", 2) == read("table", 2) == {2: 100}
    assert read("table", 1) == {1: 100}
    with pytest.raises(StateError, match="as of batch 1: its topology committed further batches while Spark read"):
        read("rows", 1)


@pytest.mark.slow
def test_what_the_planning_opens_is_closed(target: str, tmp_path: Path) -> None:
    run_all(load_topology(target), "in_process", log_dir=str(tmp_path / "log"))
    source = TridentDataSource({"topology": target, "log_dir": str(tmp_path / "log"), "state": "table", "txid": "2"})
    reader: Any = source.reader(StructType())
    with (
        mock.patch.object(data_source, "open_state", side_effect=open_state) as opened,
        mock.patch.object(DeltaMapState, "close", autospec=True, side_effect=DeltaMapState.close) as closed,
    ):
        reader.partitions()
    assert opened.call_count == closed.call_count == 2


@pytest.mark.long
@pytest.mark.spark
def test_the_tasks_of_spark_read_a_state(spark: SparkSession, target: str, tmp_path: Path) -> None:
    run_all(load_topology(target), "in_process", log_dir=str(tmp_path / "log"))
    spark.dataSource.register(TridentDataSource)
    reader = spark.read.format("trident").options(topology=target, log_dir=str(tmp_path / "log"))
    rows = reader.load("rows")
    assert (rows.dtypes, rows.rdd.getNumPartitions()) == ([("k", "string"), ("rows", "bigint")], 3)
    assert sorted(map(tuple, rows.collect())) == sorted((f"k{n}", 3) for n in range(100))
    assert reader.option("txid", 2).load("table").groupBy("table").count().collect() == [(2, 100)]
    assert reader.option("txid", 3).load("total").collect() == [(300,)]
