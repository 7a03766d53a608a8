"""Fields whose names have spaces and marks: in every source, call and state, written in backquotes as in Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from spouts import CsvFileSpout, DeltaSpout, FixedBatchSpout, JsonFileSpout, ParquetFileSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.spouts.reading import rows
from trident import TridentTopology
from trident.arrow import schema_of
from trident.errors import SpoutError, TopologyError
from trident.explain import explain
from trident.fields import Fields
from trident.operations import Count, Sum

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
