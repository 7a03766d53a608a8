"""A Delta table of files in buckets is an ordinary table: readers see its columns, and not the hash."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema
from deltalake.transaction import AddAction
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from states.delta.beyond_memory.bucketed_base import BucketedBase, BucketLimits
from states.delta.beyond_memory.sorted_rows import SortedRows

SCHEMA = pa.schema([("word", pa.string()), ("count", pa.int64())])


def table_in(path: Path, rows: int) -> DeltaTable:
    system = SubTreeFileSystem(str(path), LocalFileSystem())
    base = BucketedBase([], SCHEMA, ["word"], system, BucketLimits(50))
    words = pa.table({"word": [f"w{n}" for n in range(rows)], "count": range(rows)}, schema=SCHEMA)
    table = DeltaTable.create(str(path), Schema.from_arrow(SCHEMA))
    files = base.merge(SortedRows.of(words, ["word"])).files
    now = int(time.time() * 1000)
    adds: list[Any] = [
        AddAction(file.path, file.size, {}, now, True, json.dumps({"numRecords": file.rows})) for file in files
    ]
    table.create_write_transaction(adds, "append", Schema.from_arrow(SCHEMA))
    return DeltaTable(str(path))


def test_readers_of_the_table_see_its_columns(tmp_path: Path) -> None:
    table, expected = table_in(tmp_path, 200), [{"word": f"w{n}", "count": n} for n in range(200)]
    read = table.to_pyarrow_table()
    assert read.schema.names == ["word", "count"]
    assert sorted(read.to_pylist(), key=lambda row: row["count"]) == expected
    assert list(table.to_pandas().columns) == ["word", "count"]
    sql = "select * from t where word = 'w7' union all select 'sum', sum(count) from t"
    found = pa.table(QueryBuilder().register("t", table).execute(sql).read_all())
    assert sorted(found.to_pylist(), key=lambda row: row["count"]) == [
        {"word": "w7", "count": 7},
        {"word": "sum", "count": 199 * 100},
    ]


@pytest.mark.long
def test_the_hash_is_no_trouble_to_a_program_that_compacts_the_table(tmp_path: Path) -> None:
    table = table_in(tmp_path, 200)
    table.optimize.compact()
    assert len(table.file_uris()) == 1
    assert sorted(table.to_pyarrow_table()["count"].to_pylist()) == list(range(200))
