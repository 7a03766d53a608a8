"""Parquet files as a source, written by this project and by others."""

import datetime
import datetime as dt
import os
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
from tests.spouts.files.test_text_files import LONG_AGO, write
from tests.spouts.reading import batches, begun, definitions, first_batch, refuse_both, rows, rows_of, tuple_rows
from trident.errors import BadDataError, ReplayMismatchError, SpoutError, TopologyError
from trident.fields import Fields
from trident.spout import Lag, TransactionAttempt


def table(start: int, end: int) -> pa.Table:
    numbers = np.arange(start, end)
    return pa.table(
        {"id": pa.array(numbers), "name": pa.array([f"n{k}" for k in numbers]), "more": pa.array(numbers / 2)}
    )


def parquet(path: Path, data: pa.Table, rows_per_group: int = 1000, at: float = LONG_AGO) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(data, path, row_group_size=rows_per_group)
    os.utime(path, (at, at))
    return path


def test_its_fields_are_those_of_the_files(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", table(0, 2))
    spout = ParquetFileSpout(tmp_path, with_file=True)
    assert str(spout.get_output_fields()) == "id: bigint, name: string, more: double, file: string"
    assert rows(spout) == [(0, "n0", 0.0, str(path)), (1, "n1", 0.5, str(path))]


def test_a_batch_is_row_groups_within_the_limits_and_a_larger_one_alone(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", table(0, 5000), 1000)
    parquet(tmp_path / "b.parquet", table(5000, 5100), 1000)
    by_rows = batches(ParquetFileSpout(tmp_path, "id", max_batch_rows=2050))
    assert [len(batch) for batch in by_rows] == [2000, 2000, 1100]
    assert [row for batch in by_rows for row in batch] == [(k,) for k in range(5100)]
    assert [len(one) for one in batches(ParquetFileSpout(tmp_path, "id", max_batch_rows=3))] == [1000] * 5 + [100]
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0).total_byte_size
    by_bytes = batches(ParquetFileSpout(tmp_path, "id", max_batch_bytes=int(group * 3.2)))
    assert [len(batch) for batch in by_bytes] == [3000, 2100]


def test_throttled_it_takes_fewer_row_groups_and_lag_is_in_bytes(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", table(0, 5000), 1000)
    coordinator = ParquetFileSpout(tmp_path, max_batch_rows=4000).get_coordinator({})
    coordinator.throttle(0.5)
    first = coordinator.initialize_transaction(1, None)
    assert first is not None
    ((_, start, end, _),) = first["ranges"]
    coordinator.success(1, first)
    assert coordinator.lag(first) == Lag(path.stat().st_size - end, "bytes")
    assert coordinator.size(first) == end - start
    spout = ParquetFileSpout(tmp_path, max_batch_rows=4000)
    assert len(rows_of(spout, coordinator, first)) == 2000


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("parallelism", [1, 2, 5, 40])
def test_row_groups_are_cut_for_tasks_without_a_gap(tmp_path: Path, parallelism: int) -> None:
    noise = np.random.default_rng(1).random(1_000_000)
    parquet(tmp_path / "a.parquet", pa.table({"id": np.arange(len(noise)), "x": noise}), 60_000)
    spout = ParquetFileSpout(tmp_path, "id")
    coordinator, made = first_batch(spout)
    assert len(coordinator.parts(TransactionAttempt(1, 0), made, parallelism)) == min(
        parallelism, (tmp_path / "a.parquet").stat().st_size >> 20
    )
    assert [row[0] for row in rows_of(spout, coordinator, made, parallelism)] == list(range(len(noise)))


def test_a_file_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "x", table(0, 10)).read_bytes()
    path = write(tmp_path / "a.parquet", whole[:-100], at=1000.0)
    spout = ParquetFileSpout(tmp_path, "id: bigint")
    coordinator = spout.get_coordinator({})
    assert coordinator.initialize_transaction(1, None) is None
    assert f"the rest of {path} (" in str(coordinator.unavailable())
    write(path, whole, at=1001.0)
    (made,) = definitions(coordinator)
    assert len(rows_of(spout, coordinator, made)) == 10
    write(tmp_path / "b.parquet", b"no Parquet")
    with pytest.raises(
        SpoutError, match=r"b.parquet has no footer: it is not a Parquet file, or its writer has not finished"
    ):
        coordinator.initialize_transaction(2, made)


@pytest.mark.parametrize("is_read", [False, True])
def test_a_file_that_was_replaced_is_refused(tmp_path: Path, is_read: bool) -> None:
    path = parquet(tmp_path / "a.parquet", table(0, 3000))
    spout = ParquetFileSpout(tmp_path, "id", max_batch_rows=3000 if is_read else 1000)
    coordinator, first = begun(spout)
    assert len(rows_of(spout, coordinator, first)) == (3000 if is_read else 1000)
    before = path.read_bytes()
    parquet(path, table(3000, 6000), at=LONG_AGO + 1)
    with pytest.raises(ReplayMismatchError, match=r"bytes now and another footer: it was replaced"):
        rows_of(spout, coordinator, first)
    said = r"a.parquet was read up to byte \d+ and is a different file now"
    refuse_both(spout, coordinator, first, ReplayMismatchError, said)
    path.write_bytes(before)
    assert len(rows_of(spout, coordinator, first)) == (3000 if is_read else 1000)
    path.unlink()
    with pytest.raises(SpoutError, match="the file .*a.parquet is gone; put it back and start again"):
        rows_of(spout, coordinator, first)


def test_columns_are_projected_checked_and_given_the_declared_types(tmp_path: Path) -> None:
    data = pa.table(
        {
            "kind": pa.array(["a", "b"]).dictionary_encode(),
            "count": pa.array([1, 2], pa.uint16()),
            "at": pa.array([datetime.datetime(2024, 1, 1)] * 2, pa.timestamp("ns")),
            "who": pa.array([{"name": "x"}, None], pa.struct([("name", pa.large_string())])),
            "clock": pa.array([1, 2], pa.time64("us")),
        }
    )
    parquet(tmp_path / "a.parquet", data)
    spout = ParquetFileSpout(tmp_path, ["who", "count", "kind", "at"])
    assert str(spout.get_output_fields()) == "who: struct<name:string>, count: int, kind: string, at: timestamp_ntz"
    assert rows(spout) == [
        ({"name": "x"}, 1, "a", datetime.datetime(2024, 1, 1)),
        (None, 2, "b", datetime.datetime(2024, 1, 1)),
    ]
    assert rows(ParquetFileSpout(tmp_path, "count: bigint")) == [(1,), (2,)]
    with pytest.raises(TopologyError, match="column 'clock' is of Arrow type time64"):
        ParquetFileSpout(tmp_path)
    with pytest.raises(SpoutError, match="column 'kind' of the Parquet file .*a.parquet is of type .*declared as int"):
        rows(ParquetFileSpout(tmp_path, "kind: int"))
    with pytest.raises(SpoutError, match="column 'clock' of the Parquet file .* is of type time64"):
        rows(ParquetFileSpout(tmp_path, "clock: bigint"))


def test_the_times_that_spark_writes_as_int96_are_moments_wherever_they_are(tmp_path: Path) -> None:
    moment, local = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC), datetime.datetime(2024, 1, 1, 12)
    data = pa.table(
        {
            "at": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "who": pa.array([{"at": [moment]}, None], pa.struct([("at", pa.list_(pa.timestamp("us", "UTC")))])),
        }
    )
    pq.write_table(data, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True, store_schema=False)
    spout = ParquetFileSpout(tmp_path)
    assert str(spout.get_output_fields()) == "at: timestamp, who: struct<at:array<timestamp>>"
    assert rows(spout) == [(moment, {"at": [moment]}), (None, None)]
    with pytest.raises(SpoutError, match="declared as timestamp_ntz"):
        rows(ParquetFileSpout(tmp_path, "at: timestamp_ntz"))
    pq.write_table(pa.table({"at": pa.array([local])}), tmp_path / "a.parquet")
    assert rows(ParquetFileSpout(tmp_path, "at: timestamp_ntz")) == [(local,)]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("year", [1970, 1000, 2500])
def test_nanoseconds_are_refused_and_never_cut(tmp_path: Path, nested: bool, year: int) -> None:
    micros = pa.array([None, datetime.datetime(year, 1, 1, 12, 0, 0, 1)], pa.timestamp("us", "UTC"))
    for nanos in (0, 1):
        path = int96(tmp_path / "a.parquet", micros, nanos, nested)
        spout = ParquetFileSpout(path, f"at: {'array<map<string,timestamp>>' if nested else 'timestamp'}")
        if not nanos:
            moment = datetime.datetime(year, 1, 1, 12, 0, 0, 1, datetime.UTC)
            assert rows(spout) == ([([[("k", None)]],), ([[("k", moment)]],)] if nested else [(None,), (moment,)])
            continue
        with pytest.raises(BadDataError, match="column 'at' of .*a.parquet has a moment in INT96 with nanoseconds"):
            rows(spout)
    pq.write_table(pa.table({"at": pa.array([1_000_001], pa.timestamp("ns", "UTC"))}), tmp_path / "a.parquet")
    with pytest.raises(BadDataError, match="column 'at' .* would lose data"):
        rows(ParquetFileSpout(tmp_path, "at: timestamp"))


def int96(path: Path, moments: pa.Array, nanos: int, nested: bool) -> Path:
    """Write moments as INT96, with so many nanoseconds more: Arrow writes them only for years that 64 bits hold."""
    at = moments
    if nested:
        maps = pa.MapArray.from_arrays(range(len(at) + 1), ["k"] * len(at), at)
        at = pa.ListArray.from_arrays(range(len(at) + 1), maps)
    pq.write_table(
        pa.table({"at": at}), path, use_deprecated_int96_timestamps=True, store_schema=False, compression="none",
        use_dictionary=False,
    )  # fmt: skip
    of_day = (12 * 3600 * 10**9 + 1000).to_bytes(8, "little")
    data = path.read_bytes()
    assert data.count(of_day) == 1
    path.write_bytes(data.replace(of_day, (12 * 3600 * 10**9 + 1000 + nanos).to_bytes(8, "little")))
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def test_a_file_without_a_column_is_refused_or_gives_null(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", table(0, 1))
    parquet(tmp_path / "b.parquet", table(1, 2).drop_columns("name"))
    with pytest.raises(SpoutError, match=r"b.parquet has no column 'name', .*it has \['id', 'more'\]. Leave the field"):
        rows(ParquetFileSpout(tmp_path, "id, name"))
    assert rows(ParquetFileSpout(tmp_path, "id, name", missing_columns="null")) == [(0, "n0"), (1, None)]
    with pytest.raises(TopologyError, match="field 'town' has no type, and .*a.parquet has no such column"):
        ParquetFileSpout(tmp_path, "id, town")


def test_files_without_rows_are_read_too(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", table(0, 0))
    parquet(tmp_path / "b.parquet", table(0, 1))
    assert rows(ParquetFileSpout(tmp_path, "id")) == [(0,)]


def test_a_damaged_file_and_a_time_that_does_not_fit_are_named(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", table(0, 1000))
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    write(path, bytes(data))
    with pytest.raises(
        SpoutError, match=r"the Parquet file .*a.parquet cannot be read: Could(.|\n)* Put an undamaged file"
    ):
        rows(ParquetFileSpout(tmp_path, "id"))
    parquet(path, pa.table({"at": pa.array([1], pa.timestamp("ns"))}))
    with pytest.raises(SpoutError, match=r"parquet cannot be read: Casting from timestamp\[ns\] to .* would lose data"):
        rows(ParquetFileSpout(tmp_path))


def test_a_wrong_argument_or_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpoutError, match="there is no Parquet file yet in .*; declare them, as in"):
        ParquetFileSpout(tmp_path, allow_empty=True)
    with pytest.raises(ValueError, match="max_batch_rows=0 of ParquetFileSpout: give a whole number of at least 1"):
        ParquetFileSpout(tmp_path, "id: int", max_batch_rows=0)
    with pytest.raises(ValueError, match="missing_columns='x' of ParquetFileSpout: give 'error' or 'null'"):
        ParquetFileSpout(tmp_path, "id: int", missing_columns="x")  # type: ignore[arg-type]
    write(tmp_path / "a.parquet", b"no Parquet")
    with pytest.raises(SpoutError, match="the types of the fields cannot be taken from .*a.parquet: .*; declare them"):
        ParquetFileSpout(tmp_path)
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(SpoutError, match="is a Delta table: .* Read it with DeltaSpout"):
        ParquetFileSpout(tmp_path, "id: int")


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
            with pytest.raises(SpoutError, match=f"column '{name}' of .*a.parquet has days before 1582-10-15, or"):
                rows(spout)
