"""Fields whose names have spaces and marks: in every source, call and state, written in backquotes as in Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from spouts import CsvFileSpout, DeltaSpout, FeederBatchSpout, FixedBatchSpout, JsonFileSpout, ParquetFileSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.topology_runs import keep, topology_of
from tests.spouts.reading import rows
from trident import Stream, TridentTopology
from trident.arrow import schema_of
from trident.errors import SpoutError, TopologyError
from trident.explain import explain
from trident.fields import Fields, normal_type
from trident.operations import (
    Count,
    FirstN,
    KeyedProcess,
    Last,
    MapGet,
    SessionWindow,
    Split,
    Sum,
    TumblingDurationWindow,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ["unit price", "a,b", "c:d", "a.b", "back`quote", "é", "1st", "<x>", "(y)", "Ünit Price"]


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_same_after_it_was_written_and_read(name: str) -> None:
    fields = Fields(f"{quoted(name)}: struct<{quoted(name)}:array<int>, more: int>, `last one`")
    assert fields.names == (name, "last one")
    assert Fields(str(fields)) == fields
    (column,) = schema_of(fields.select([name]))
    assert (column.name, [one.name for one in column.type]) == (name, [name, "more"])


@pytest.mark.spark
def test_spark_reads_the_type_of_a_struct_with_such_members(spark: SparkSession) -> None:
    type_ = normal_type(f"struct<{','.join(f'{quoted(name)}:int' for name in [*NAMES, 'x.y', '1e3', 'a-b', '_1'])}>")
    assert spark.createDataFrame([], f"w {type_}").select("w.*").columns == [*NAMES, "x.y", "1e3", "a-b", "_1"]


@pytest.mark.parametrize("text", ["unit price: double", "``: int", "`open: int", ": int", "`a`b: int"])
def test_what_is_no_name_is_refused_with_backquotes_in_the_advice(text: str) -> None:
    with pytest.raises(TopologyError, match="and a name with spaces or marks in backquotes"):
        Fields(text)


def of_parquet(folder: Path, table: pa.Table, fields: str | None) -> Any:
    pq.write_table(table, folder / "a.parquet")
    return ParquetFileSpout(folder, fields)


def of_delta(folder: Path, table: pa.Table, fields: str | None) -> Any:
    write_deltalake(str(folder / "table"), table, mode="overwrite")
    return DeltaSpout(folder / "table", fields)


def of_csv(folder: Path, table: pa.Table, fields: str | None) -> Any:
    (name, more), ((one, two),) = table.column_names, [tuple(row.values()) for row in table.to_pylist()]
    Path(folder, "a.csv").write_text(f'"{name}",{more}\n{one},{two}\n')
    return CsvFileSpout(folder, fields or f"{quoted(name)}: bigint, {more}: bigint")


def of_json(folder: Path, table: pa.Table, fields: str | None) -> Any:
    Path(folder, "a.json").write_text(json.dumps(table.to_pylist()[0]) + "\n")
    return JsonFileSpout(folder, fields or f"{quoted(table.column_names[0])}: bigint, more: bigint")


@pytest.mark.parametrize("make", [of_parquet, of_delta, of_csv, of_json])
@pytest.mark.parametrize("name", NAMES[:6])
def test_every_source_reads_a_column_of_such_a_name(make: Callable[..., Any], name: str, tmp_path: Path) -> None:
    spout = make(tmp_path, pa.table({name: [7], "more": [1]}), None)
    assert spout.get_output_fields().names == (name, "more")
    assert rows(spout) == [(7, 1)]
    assert rows(make(tmp_path / "", pa.table({name: [7], "more": [1]}), f"{quoted(name)}: bigint"))[:1] == [(7,)]


def test_a_column_with_a_dot_is_not_the_member_of_a_struct(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a.b": [7], "a": [{"b": 1}]}), tmp_path / "a.parquet")
    assert rows(ParquetFileSpout(tmp_path, "`a.b`: bigint")) == [(7,)]
    assert rows(ParquetFileSpout(tmp_path, "a: struct<b:bigint>")) == [({"b": 1},)]


def test_calls_expressions_and_states_take_such_names(tmp_path: Path) -> None:
    topology = TridentTopology("odd")
    spout = FixedBatchSpout("`my shop`: string, `unit price`: bigint", 2, ("oslo", 3), ("rome", 4), ("oslo", 5))
    stream = topology.new_stream("in", spout).where("`unit price` > 2")
    priced = stream.select("`my shop`", "`unit price` * 2 AS `twice it`")
    sums = priced.group_by("`my shop`").persistent_aggregate(
        DeltaState.opaque(str(tmp_path / "sums")), Sum("twice it"), "in_all"
    )
    several = priced.group_by("`my shop`").persistent_aggregate(
        MemoryMapState(), {"`in all`": Sum("`twice it`"), "n": Count()}, "several"
    )
    with topology.start(engine="in_process", log_dir=str(tmp_path / "log")) as running:
        running.process_all_available()
        assert running.state(sums).multi_get(["oslo", "rome"]) == [16, 8]
        assert running.state(several).multi_get(["oslo"]) == [{"in all": 16, "n": 2}]
    assert "my shop" in explain(topology.graph())


def test_a_name_in_another_case_is_suggested_and_nothing_has_no_names(tmp_path: Path) -> None:
    stream = TridentTopology("t").new_stream("in", FixedBatchSpout("price: bigint", 1, [1]))
    with pytest.raises(
        TopologyError, match=r"no field 'Price' of stream 'in'; it has \['price'\]; did you mean 'price'\?"
    ):
        stream.group_by("Price")
    with pytest.raises(TopologyError, match="did you mean 'price'"):
        stream.where("PRICE > 1")
    with pytest.raises(TopologyError, match="no field 'x'; it has no fields"):
        Fields().select(["x"])
    pq.write_table(pa.table({"Unit Price": [7]}), tmp_path / "a.parquet")
    with pytest.raises(SpoutError, match="no column 'unit price', .* did you mean 'Unit Price'"):
        rows(ParquetFileSpout(tmp_path, "`unit price`: bigint"))


class Passes(KeyedProcess[Any]):
    def process(self, value: Any, tuple: Any, timers: Any, collector: Any) -> None:
        collector.emit([tuple["unit price"]])

    def on_timer(self, value: Any, time: Any, timers: Any, collector: Any) -> None: ...


TEN = TumblingDurationWindow.of(timedelta(milliseconds=10))
CALLS: dict[str, Callable[[Stream], Stream]] = {
    "max_by": lambda s: s.max_by("`unit price`").project("`unit price`"),
    "FirstN": lambda s: s.apply_assembly(FirstN(1, "`unit price`", reverse=True)).project("`unit price`"),
    "Last": lambda s: s.aggregate("`unit price`, `my at`", Last(by="`my at`"), "v").map(
        lambda row: row[0]["unit price"], "v: bigint"
    ),
    "a window": lambda s: s.window(TEN.by_event_time("`my at`"), "`unit price`", Sum(), "v"),
    "sessions": lambda s: (
        s.group_by("shop")
        .window(SessionWindow.of(timedelta(milliseconds=1), "`my at`"), "`unit price`", Sum(), "v")
        .project("v")
    ),
    "a process": lambda s: s.group_by("shop").process(Passes(), "v: bigint", event_time="`my at`").project("v"),
    "join_within": lambda s: (
        topology_of(s)
        .join_within(
            s, "shop", s.project("shop, `my at`"), "shop", "shop, v, a, b", times="`my at`", within=timedelta(0)
        )
        .project("v")
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_one_field_that_a_call_takes_may_have_such_a_name(call: str) -> None:
    topology = TridentTopology("odd")
    spout = FixedBatchSpout("shop: string, `unit price`: bigint, `my at`: bigint", 2, ("a", 7, 25), ("a", 1, 5))
    kept = keep(CALLS[call](topology.new_stream("in", spout)))
    with topology.start(engine="in_process") as running:
        running.process_all_available()
    wanted = {"a window": [1], "sessions": [1], "a process": [1, 7], "join_within": [1, 7]}
    assert sorted(kept.rows) == [(each,) for each in wanted.get(call, [7])]


def test_advice_on_such_names_can_be_followed() -> None:
    stream = TridentTopology("t").new_stream("in", FixedBatchSpout("`unit price`: bigint", 1, [1]))
    with pytest.raises(TopologyError, match=r"Write it in the field list \('`a b`: string'\)"):
        stream.each("`unit price`", lambda price: price, "`a b`")
    with pytest.raises(TopologyError, match=r"'a b' cannot name a state; .*: state_name=\.\.\."):
        stream.persistent_aggregate(MemoryMapState(), Count(), "`a b`")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["_row", "_row_max", "_seq", "_sentinel", "txid", "$request"])
def test_a_name_that_is_also_used_within_is_a_name_as_any_other(name: str, tmp_path: Path) -> None:
    for starts in (1, 2):
        topology, feeder = TridentTopology("odd"), FeederBatchSpout(f"{quoted(name)}: string, n: bigint")
        grouped = topology.new_stream("in", feeder).group_by(quoted(name))
        sums = grouped.persistent_aggregate(DeltaState.opaque(str(tmp_path / "d")), "n", Sum(), "s")
        asked = topology.new_drpc_stream("ask").each("args", Split(), quoted(name))
        asked.state_query(sums, quoted(name), MapGet(), "s").project(f"s, {quoted(name)}")
        with topology.start(engine="in_process", log_dir=str(tmp_path / "log")) as running:
            feeder.feed([("a", 1), ("a", 2), ("b", 4)])
            running.process_all_available()
            assert running.drpc("ask").execute("a b") == [[3 * starts, "a"], [4 * starts, "b"]]
        published = DeltaTable(tmp_path / "d").to_pyarrow_table()
        assert sorted(zip(*published.to_pydict().values(), strict=True)) == [("a", 3 * starts), ("b", 4 * starts)]
