"""Parquet files as pandas, DuckDB and Spark write them by default: read without a loss, or refused with a way out."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spouts import ParquetFileSpout
from spouts.rows.driver_rows import fit_table
from tests.spouts.reading import rows, tuple_rows
from trident.errors import SpoutError, TopologyError
from trident.fields import Fields

DAY = dt.datetime(2024, 1, 1)
PANDAS: dict[str, tuple[Any, str, list[Any]]] = {
    "nothing": ([None, None], "string", [None, None]),
    "with_null": ([1, None], "double", [1.0, None]),
    "u8": (np.array([1, 255], np.uint8), "smallint", [1, 255]),
    "u64": (np.array([1, 2**64 - 1], np.uint64), "decimal(20,0)", [Decimal(1), Decimal(2**64 - 1)]),
    "half": (np.array([1.5, 2], np.float16), "float", [1.5, 2.0]),
    "category": (pd.Categorical(["x", "y"]), "string", ["x", "y"]),
    "numbers": (pd.Categorical([7, 8]), "bigint", [7, 8]),
    "local": (pd.to_datetime(["2024-01-01"] * 2), "timestamp_ntz", [DAY] * 2),
    "zoned": (pd.to_datetime(["2024-01-01"] * 2).tz_localize("UTC"), "timestamp", [DAY.replace(tzinfo=dt.UTC)] * 2),
    "day": ([dt.date(2024, 1, 1), None], "date", [dt.date(2024, 1, 1), None]),
    "price": ([Decimal("1.50"), Decimal("22.25")], "decimal(4,2)", [Decimal("1.50"), Decimal("22.25")]),
    "list": ([[1, 2], None], "array<bigint>", [[1, 2], None]),
    "nulls": ([[None], None], "array<string>", [[None], None]),
    "struct": ([{"a": 1}, {"b": 2}], "struct<a:bigint,b:bigint>", [{"a": 1, "b": None}, {"a": None, "b": 2}]),
    "Int64": (pd.array([1, None], "Int64"), "bigint", [1, None]),
}


@pytest.mark.parametrize("name", PANDAS)
def test_what_pandas_writes_is_read_undeclared(name: str, tmp_path: Path) -> None:
    values, type_, wanted = PANDAS[name]
    pd.DataFrame({name: values}).to_parquet(tmp_path / "a.parquet")
    spout = ParquetFileSpout(tmp_path)
    assert str(spout.get_output_fields()) == f"{name}: {type_}"
    assert rows(spout) == [(value,) for value in wanted]


DUCKDB = {
    "NULL": ("int", None),
    "170141183460469231731687303715884105727::HUGEINT": ("double", 2.0**127),
    "18446744073709551615::UBIGINT": ("decimal(20,0)", Decimal(2**64 - 1)),
    "1.5::DECIMAL(38,2)": ("decimal(38,2)", Decimal("1.50")),
    "TIMESTAMP_S '2024-01-01 00:00:00'": ("timestamp_ntz", DAY),
    "TIMESTAMP_NS '2024-01-01 00:00:00'": ("timestamp_ntz", DAY),
    "'x'::ENUM('x', 'y')": ("string", "x"),
    "'00000000-0000-0000-0000-000000000001'::UUID": ("binary", bytes(15) + b"\1"),
    "[1, 2]::INTEGER[2]": ("array<int>", [1, 2]),
    "MAP {'a': 1}": ("map<string,int>", [("a", 1)]),
    "'{}'::JSON": ("string", "{}"),
    "INTERVAL 1 MONTH": ("binary", b"\1" + bytes(11)),
}


@pytest.mark.parametrize("value", DUCKDB)
def test_what_duckdb_writes_is_read_undeclared(value: str, tmp_path: Path) -> None:
    type_, wanted = DUCKDB[value]
    duckdb.sql(f"copy (select {value} as v) to '{tmp_path}/a.parquet' (format parquet)")
    spout = ParquetFileSpout(tmp_path)
    assert str(spout.get_output_fields()) == f"v: {type_}"
    assert rows(spout) == [(wanted,)]


@pytest.mark.parametrize("value", ["TIME '01:02:03'", "'01:02:03+02'::TIMETZ"])
def test_a_type_that_spark_does_not_have_is_refused_with_a_way_out(value: str, tmp_path: Path) -> None:
    duckdb.sql(f"copy (select {value} as clock, 1 as id) to '{tmp_path}/a.parquet' (format parquet)")
    with pytest.raises(TopologyError, match="column 'clock' .* or leave it out: name the fields to read, of 'id'"):
        ParquetFileSpout(tmp_path)
    with pytest.raises(SpoutError, match=r"column 'clock' of the Parquet file .* cast it where it is written"):
        rows(ParquetFileSpout(tmp_path, "clock: bigint"))
    assert rows(ParquetFileSpout(tmp_path, "id")) == [(1,)]


WHO = pa.struct([("a", pa.int32()), ("b", pa.null())])
LOSSLESS: list[tuple[pa.Array, str, Any]] = [
    (pa.nulls(1), "struct<a:int>", None),
    (pa.array([[None]], pa.list_(pa.null())), "array<int>", [None]),
    (pa.array([5], pa.int64()), "double", 5.0),
    (pa.array([2**53 + 2], pa.int64()), "double", float(2**53 + 2)),
    (pa.array([5], pa.int64()), "int", 5),
    (pa.array([5.0]), "bigint", 5),
    (pa.array([0.5]), "float", 0.5),
    (pa.array([5], pa.int64()), "decimal(10,2)", Decimal("5.00")),
    (pa.array([Decimal("1.50")], pa.decimal128(5, 2)), "decimal(20,4)", Decimal("1.5000")),
    (pa.array([Decimal("1.50")], pa.decimal128(20, 4)), "decimal(5,2)", Decimal("1.50")),
    (pa.array([Decimal("1.50")], pa.decimal256(50, 2)), "decimal(5,2)", Decimal("1.50")),
    (pa.array([{"a": 1}], WHO), "struct<b:string,a:bigint>", {"b": None, "a": 1}),
    (pa.array([{"a": 1}], WHO), "struct<a:bigint,b:string,new:double>", {"a": 1, "b": None, "new": None}),
    (pa.array([{"a": 1}], WHO), "struct<a:bigint>", {"a": 1}),
    (pa.array([[{"a": 1}], None][:1], pa.large_list(WHO)), "array<struct<b:int,a:int>>", [{"b": None, "a": 1}]),
    (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())), "map<string,bigint>", [("k", 1)]),
    (pa.array([86_400_000], pa.int64()).view(pa.date64()), "date", dt.date(1970, 1, 2)),
    (pa.array(["x"], pa.large_string()), "string", "x"),
]


@pytest.mark.parametrize(("column", "type_", "value"), LOSSLESS, ids=lambda one: str(getattr(one, "type", one)))
def test_a_column_of_another_type_is_read_without_a_loss(
    column: pa.Array, type_: str, value: Any, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"v": column, "more": [1]}), tmp_path / "a.parquet")
    assert rows(ParquetFileSpout(tmp_path, f"v: {type_}")) == [(value,)]
    table = pa.table({"v": pa.concat_arrays([pa.nulls(1, column.type), column]).slice(1)})
    assert tuple_rows(fit_table(table, Fields(f"v: {type_}"))) == [(value,)]


LOSSY: list[tuple[pa.Array, str, str]] = [
    (pa.array([1, 2**53 + 1], pa.int64()), "double", "the value 9007199254740993 of column 'v'"),
    (pa.array([1, 3_000_000_000], pa.int64()), "int", "the value 3000000000 of column 'v'"),
    (pa.array([1.0, 1.5]), "bigint", "the value 1.5 of column 'v'"),
    (pa.array([0.5, 0.1]), "float", "the value 0.1 of column 'v'"),
    (pa.array([0.5, 1e300]), "float", r"the value 1e\+300 of column 'v'"),
    (pa.array([Decimal("22.25")]), "decimal(3,1)", "the value 22.25 of column 'v'"),
    (pa.array([{"a": 1}, {"a": 300}]), "struct<a:tinyint>", r"the value 300 of column 'v\.a'"),
    (
        pa.array([1, 1001], pa.timestamp("ns")),
        "timestamp_ntz",
        r"the value 1970-01-01 00:00:00.000000001 of column 'v'",
    ),
    (pa.array([{"a": 1, "b": 2}]), "struct<a:bigint,c:bigint>", r"Declare it as struct<a:bigint,b:bigint>"),
    (pa.array([0], pa.timestamp("us")), "timestamp", "Declare it as timestamp_ntz"),
    (pa.array([0], pa.timestamp("us", "UTC")), "timestamp_ntz", "Declare it as timestamp,"),
    (pa.array([0.5]), "decimal(10,2)", "Declare it as double"),
    (pa.array([Decimal("0.1")]), "double", r"Declare it as decimal\(1,1\)"),
    (pa.array(["1"]), "int", "Declare it as string"),
    (pa.array([1], pa.duration("us")), "bigint", "cast it where it is written"),
]


@pytest.mark.parametrize(("column", "type_", "told"), LOSSY, ids=lambda one: str(getattr(one, "type", one)))
def test_a_value_that_would_lose_something_is_refused_with_a_way_out(
    column: pa.Array, type_: str, told: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"v": column}), tmp_path / "a.parquet")
    with pytest.raises(SpoutError, match=told) as caught:
        rows(ParquetFileSpout(tmp_path, f"v: {type_}"))
    assert "a.parquet" in str(caught.value)
    assert "leave it out" in str(caught.value)
    assert "undamaged" not in str(caught.value)
    with pytest.raises(TopologyError, match=told):
        fit_table(pa.table({"v": column}), Fields(f"v: {type_}"))


def test_moments_in_int96_beside_a_column_whose_name_has_a_point(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a.b": pa.array([DAY], pa.timestamp("us")),
            "a": pa.array([{"b": DAY}], pa.struct([("b", pa.timestamp("us"))])),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    moment = DAY.replace(tzinfo=dt.UTC)
    assert rows(ParquetFileSpout(tmp_path, "a, `a.b`")) == [({"b": moment}, moment)]
    assert rows(ParquetFileSpout(tmp_path, "a")) == [({"b": moment},)]


@pytest.mark.parametrize("key", ["legacyDateTime", "version"])
def test_days_that_spark_wrote_by_the_julian_calendar_are_refused(tmp_path: Path, key: str) -> None:
    days = [dt.date(1582, 10, 14), dt.date(1582, 10, 15)]
    moments = [dt.datetime(1899, 12, 31, 23, tzinfo=dt.UTC), dt.datetime(1900, 1, 1, tzinfo=dt.UTC)]
    for at in (0, 1):
        table = pa.table({"d": days[at:], "t": moments[at:], "l": [[day] for day in days[at:]]})
        spark = {f"org.apache.spark.{key}": "2.4.8"}
        pq.write_table(table.replace_schema_metadata(spark), tmp_path / "a.parquet")
        for name in table.schema.names:
            spout = ParquetFileSpout(tmp_path, name)
            if at:
                assert len(rows(spout)) == 1
                continue
            with pytest.raises(
                SpoutError, match=f"column '{name}' of .*a.parquet has days before 1582-10-15, or moments"
            ):
                rows(spout)
