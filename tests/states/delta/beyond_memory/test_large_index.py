"""An index over files in buckets gives the answers of the index in memory, whatever is put, removed or merged."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema
from deltalake.transaction import AddAction
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from states.delta.beyond_memory.bucketed_base import ATTEMPT, BucketedBase, BucketLimits
from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.sorted_rows import SortedRows
from states.delta.index import IndexedValues
from states.delta.layout import DeltaLayout
from trident.state import OpaqueValue, StateConf, StateType, TransactionalValue, Txid, Winners
from trident.state.table import KeyColumns

WORDS = [*"abcdefgh", "long" * 20, None]
CONFS = {
    "typed": StateConf("words", "counts", (("word", "string"), ("n", "int")), "bigint"),
    "floats": StateConf("words", "counts", (("word", "string"), ("n", "double")), "double"),
    "encoded": StateConf("words", "counts"),
}


def large_index(path: Path, layout: DeltaLayout) -> LargeIndex:
    value = pa.field("total", layout.value_types[-1])
    keys = [f"of_{name}" for name in layout.key_columns]  # people may read them under other names
    schema = pa.schema([*map(pa.field, keys, layout.key_types), value, ATTEMPT])
    system = SubTreeFileSystem(str(path), LocalFileSystem())
    return LargeIndex(layout, BucketedBase([], schema, keys, system, BucketLimits(5)), 0)


def merged(index: LargeIndex, layout: DeltaLayout, frozen: SortedRows, shown: int) -> None:
    """Merge changes, taking the newest value of each key, as if each attempt had won."""

    def in_base(changes: SortedRows) -> SortedRows:
        rows = changes.rows
        value = rows[layout.value_columns[-1]]
        attempts = rows["attempt"] if layout.kind is StateType.OPAQUE else pa.nulls(rows.num_rows, ATTEMPT.type)
        names = [*(f"of_{name}" for name in layout.key_columns), "total", ATTEMPT.name]
        columns = [*(rows[name] for name in layout.key_columns), value, attempts]
        return changes.with_rows(
            pa.table(columns, names=names), changes.deleted | value.is_null().to_numpy(), names[:-2]
        )

    index.adopt_base(index.base.merge(frozen, in_base), shown)


def value_of(kind: StateType, txid: int, number: Any) -> Any:
    if kind is StateType.OPAQUE:
        return OpaqueValue(txid, 1 << 20, None, number)
    return TransactionalValue(txid, number) if kind is StateType.TRANSACTIONAL else number


def bare(values: list[Any], kind: StateType) -> list[Any]:
    """Leave out the batch of a value: the one of a published row is that of its base."""
    return [None if value is None else value if kind is StateType.NON_TRANSACTIONAL else value[-1] for value in values]


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("kind", StateType)
def test_an_index_in_buckets_answers_as_one_in_memory(tmp_path: Path, kind: StateType, conf: str) -> None:
    dice, layout = random.Random(f"{kind} {conf}"), DeltaLayout(kind, CONFS[conf])
    large, small, frozen = large_index(tmp_path, layout), IndexedValues(layout), None
    nan = float("nan")
    numbers: list[Any] = [0.0, -0.0, 1.5, nan] if conf == "floats" else [0, 1, 7, -1]
    for txid in range(1, 30):
        some = [(dice.choice(WORDS), dice.choice(numbers)) for _ in range(dice.choice([1, 4, 20]))]
        raw = list(dict.fromkeys(layout.pack_keys(some)))
        if dice.random() < 0.7:
            new = [value_of(kind, txid, float(txid) if conf == "floats" else txid) for _ in raw]
            for index in (large, small):
                index.put(dict(zip(raw, layout.pack_values(new), strict=True)))
        else:
            for index in (large, small):
                index.put(dict.fromkeys(raw, layout.deleted))
        frozen = step(large, layout, frozen, dice.choice(["freeze", "merged", "thaw", "wait"]), txid)
        asked = layout.pack_keys([(word, number) for word in WORDS for number in numbers])
        answers = [layout.unpack_values(index.get(asked)) for index in (large, small)]
        assert repr(bare(answers[0], kind)) == repr(bare(answers[1], kind))
        pages = [key for page in large.key_pages() for key in page]
        assert len(pages) == len(set(pages))
        assert [set(pages)] == list(map(set, small.key_pages()))


def step(large: LargeIndex, layout: DeltaLayout, frozen: SortedRows | None, what: str, txid: int) -> SortedRows | None:
    if frozen is None:
        return large.freeze() if what == "freeze" else None
    if what == "merged":
        merged(large, layout, frozen, txid)
        return None
    if what == "thaw":
        large.thaw()
        return None
    return frozen


@pytest.mark.parametrize("width", [1, 2])
def test_columns_give_the_numbers_of_rows(tmp_path: Path, width: int) -> None:
    layout = DeltaLayout(StateType.OPAQUE, StateConf("words", "counts", CONFS["typed"].key_fields[:width], "bigint"))
    index = large_index(tmp_path, layout)
    keys = [(word, 1)[:width] for word in "abcd"]
    parts = [pa.array([*"abcd"]), [1] * 4][:width]
    for number in (1, 2, 3):
        found = index.find(KeyColumns(parts))
        assert found is not None
        new = found.combine_with(np.array([1, 10, 100, 1000]), "sum", Txid(number, 5))
        assert new is not None
        index.put(new)
        if number == 1:
            merged(index, layout, index.freeze(), 1)
    assert index.get([*keys, ("z", 1)[:width]]) == [*((3, 5, 2 * one, 3 * one) for one in (1, 10, 100, 1000)), None]
    values = index.find([keys[0], ("z", 1)[:width]])
    assert values is not None
    assert list(values) == [OpaqueValue(3, 5, 2, 3), None]
    assert index.find(KeyColumns([*parts, [1] * 4])) is None


def test_a_row_of_the_base_is_a_value_of_the_batch_that_it_shows(tmp_path: Path) -> None:
    layout = DeltaLayout(StateType.OPAQUE, CONFS["typed"])
    index = large_index(tmp_path, layout)
    index.put({("a", 1): (4, 7, 1, 2), ("b", 1): (4, 7, 1, None)})
    merged(index, layout, index.freeze(), 9)
    assert index.get([("a", 1), ("b", 1)]) == [(10, 7, 2, 2), None]
    found = index.find(KeyColumns([["a"], [1]]))
    assert found is not None
    assert list(found) == [OpaqueValue(10, 7, 2, 2)]
    assert found.values_before(10, Winners()) == found.values_before(99, Winners()) == [2]
    assert found.first_after(9) == (0, 10)  # a reader at batch 8 or before takes a newer snapshot


@pytest.mark.parametrize("rows_at_once", [1, 2, 100])
def test_changes_since_the_base_are_loaded_at_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr("states.delta.beyond_memory.large_index._ROWS_AT_ONCE", rows_at_once)
    layout = DeltaLayout(StateType.OPAQUE, CONFS["typed"])
    index = large_index(tmp_path, layout)
    first = layout.table(dict.fromkeys([("a", 1), ("b", 1), ("c", 1)], (1, 1, None, 1)), 1, None)
    second = layout.table({("a", 1): (2, 1, 1, 2), ("b", 1): layout.deleted}, 2, None)
    index.load(pa.concat_tables([first, second]))
    assert index.get([("a", 1), ("b", 1), ("c", 1)]) == [(2, 1, 1, 2), None, (1, 1, None, 1)]


# ---- an ordinary table: readers see its columns, and not the hash ----------------------------------------------------

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
