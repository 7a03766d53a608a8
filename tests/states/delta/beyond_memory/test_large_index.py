"""Values in buckets of files: an index over them gives the answers of the index in memory, whatever is merged."""

import datetime as dt
import math
import random
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from states.delta.beyond_memory import bucketed_base, sorted_rows
from states.delta.beyond_memory.bucketed_base import ATTEMPT, BucketedBase, BucketFile
from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.sorted_rows import Bucket, SortedRows, WantedKeys, comparable, hashes_of, same_keys
from states.delta.index import IndexedValues
from states.delta.layout import DeltaLayout
from trident.errors import StateError
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
    return LargeIndex(layout, BucketedBase([], schema, keys, system, "t"), 0)


def merged(index: LargeIndex, layout: DeltaLayout, shown: int) -> LargeIndex:
    """Return an index over the merged changes, taking the newest value of each key, as if each attempt had won."""

    def in_base(changes: SortedRows) -> SortedRows:
        rows = changes.rows
        value = rows[layout.value_columns[-1]]
        attempts = rows["attempt"] if layout.kind is StateType.OPAQUE else pa.nulls(rows.num_rows, ATTEMPT.type)
        names = [*(f"of_{name}" for name in layout.key_columns), "total", ATTEMPT.name]
        columns = [*(rows[name] for name in layout.key_columns), value, attempts]
        return changes.with_rows(pa.table(columns, names=names), names[:-2], "total")

    return LargeIndex(layout, index.merged(in_base), shown)


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
    large, small = large_index(tmp_path, layout), IndexedValues(layout)
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
        if dice.random() < 0.25:
            large = merged(large, layout, txid)
        asked = layout.pack_keys([(word, number) for word in WORDS for number in numbers])
        answers = [layout.unpack_values(index.get(asked)) for index in (large, small)]
        assert repr(bare(answers[0], kind)) == repr(bare(answers[1], kind))
        pages = [key for page in large.key_pages() for key in page]
        assert len(pages) == len(set(pages))
        assert [set(pages)] == list(map(set, small.key_pages()))


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
            index = merged(index, layout, 1)
    assert index.get([*keys, ("z", 1)[:width]]) == [*((3, 5, 2 * one, 3 * one) for one in (1, 10, 100, 1000)), None]
    values = index.find([keys[0], ("z", 1)[:width]])
    assert values is not None
    assert list(values) == [OpaqueValue(3, 5, 2, 3), None]
    assert index.find(KeyColumns([*parts, [1] * 4])) is None


def test_a_row_of_the_base_is_a_value_of_the_batch_that_it_shows(tmp_path: Path) -> None:
    layout = DeltaLayout(StateType.OPAQUE, CONFS["typed"])
    index = large_index(tmp_path, layout)
    index.put({("a", 1): (4, 7, 1, 2), ("b", 1): (4, 7, 1, None)})
    index = merged(index, layout, 9)
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


KEYS = ("word", "n")
LAYOUT = DeltaLayout(
    StateType.NON_TRANSACTIONAL, StateConf("words", "counts", (("word", "string"), ("n", "int")), "bigint")
)
VALUE_SCHEMA = LAYOUT.data_schema
MOST_ROWS = 6

Model = dict[tuple[str | None, int | None], int]


@pytest.fixture(autouse=True)
def most_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketed_base, "MOST_ROWS", MOST_ROWS)


def base_in(path: Path, files: Iterable[BucketFile] = ()) -> BucketedBase:
    system = SubTreeFileSystem(str(path), LocalFileSystem())
    return BucketedBase(list(files), VALUE_SCHEMA, KEYS, system, "t")


def rows_of(model: Mapping[tuple[str | None, int | None], int | None]) -> pa.Table:
    words, numbers = zip(*model, strict=True) if model else ((), ())
    return pa.table([words, numbers, list(model.values())], schema=VALUE_SCHEMA)


def changes_of(model: Model) -> SortedRows:
    return SortedRows.of(rows_of(model), KEYS, "value")


def keys_of(model: Iterable[Any]) -> pa.Table:
    return rows_of(dict.fromkeys(model, 0)).select(KEYS)


def told(values: LargeIndex, keys: list[Any]) -> Model:
    """Look up; the answer by the places of the keys, checked against the keys of the rows."""
    answer: Model = {}
    for found in values.lookup(keys_of(keys)):
        for row, place in zip(found.rows.to_pylist(), found.places.tolist(), strict=True):
            assert (row["word"], row["n"]) == keys[place]
            assert keys[place] not in answer
            answer[keys[place]] = row["value"]
    return answer


def listed(base: BucketedBase) -> Model:
    rows = [row for part in base.rows() for row in part.to_pylist()]
    assert len(rows) == len(base)
    return {(row["word"], row["n"]): row["value"] for row in rows}


@pytest.fixture
def few_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many keys share a hash."""
    hashes_of: Callable[..., Any] = sorted_rows.hashes_of
    monkeypatch.setattr(sorted_rows, "hashes_of", lambda forms: hashes_of(forms) & ~((1 << 60) - 1))


def any_key(dice: random.Random) -> Any:
    return dice.choice([None, "", "a", "long" * 30, *"bcdefgh"]), dice.choice([None, *range(8)])


def run_schedule(path: Path, seed: int) -> None:
    dice, model = random.Random(seed), Model()
    values = LargeIndex(LAYOUT, base_in(path), 0)
    for _ in range(40):
        some = list({any_key(dice) for _ in range(dice.choice([0, 1, 5, 30]))})
        what = dice.choice(["put", "put", "delete", "merge"])
        if what in ("put", "delete"):
            new = {key: dice.randrange(1000) for key in some}
            values.add(rows_of(new if what == "put" else dict.fromkeys(new)))
            model = {**model, **new} if what == "put" else {k: v for k, v in model.items() if k not in new}
        else:
            base = values.merged()
            assert listed(base) == model
            assert all(file.rows <= MOST_ROWS or file.bucket.depth > 2 for file in base.files)
            values = LargeIndex(LAYOUT, base_in(path, [BucketFile.of(*file[:3]) or file for file in base.files]), 0)
        asked = list({*some, *(any_key(dice) for _ in range(20))})
        assert told(values, asked) == {key: model[key] for key in asked if key in model}, f"seed {seed}"


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_any_schedule_tells_what_a_dict_tells(tmp_path: Path, seed: int) -> None:
    run_schedule(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.usefixtures("few_hashes")
@pytest.mark.parametrize("seed", range(12, 18))
def test_keys_of_one_hash_are_told_apart(tmp_path: Path, seed: int) -> None:
    run_schedule(tmp_path, seed)


def test_a_merge_writes_the_buckets_that_it_touches_and_no_other(tmp_path: Path) -> None:
    base = base_in(tmp_path).merge(changes_of({(f"w{n}", n): n for n in range(200)}).within)
    assert len(base.files) > 30
    after = base.merge(changes_of({("w7", 7): -1}).within)
    assert len({*base.files} - {*after.files}) == len({*after.files} - {*base.files}) == 1
    assert listed(base)["w7", 7] == 7  # the files of the older version are as they were
    assert listed(after)["w7", 7] == -1


def test_a_bucket_without_rows_has_no_file_until_it_has_rows_again(tmp_path: Path) -> None:
    everything: Model = {(f"w{n}", n): n for n in range(40)}
    base = base_in(tmp_path).merge(changes_of(everything).within)
    first = base.files[0]
    gone = base._stored_rows(first).drop_columns(["_trident_hash"])
    deletions = gone.set_column(2, "value", pa.nulls(len(gone), pa.int64()))
    emptied = base.merge(SortedRows.of(deletions, KEYS, "value").within)
    assert len(emptied) == 40 - len(gone)
    assert first.bucket not in [file.bucket for file in emptied.files]
    again = emptied.merge(SortedRows.of(gone, KEYS, "value").within)
    assert listed(again) == everything


def test_a_lookup_reads_the_row_groups_of_its_keys_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketed_base, "ROWS_PER_GROUP", 10)
    monkeypatch.setattr(bucketed_base, "MOST_ROWS", 1000)
    base = base_in(tmp_path).merge(changes_of({(f"w{n}", n): n for n in range(500)}).within)
    assert len(base.files) == 1
    read: list[tuple[list[int], Any]] = []
    read_groups = pq.ParquetFile.read_row_groups

    def noted(self: pq.ParquetFile, groups: list[int], columns: Any = None) -> pa.Table:
        read.append((groups, columns))
        return read_groups(self, groups, columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", noted)
    found = base.lookup(WantedKeys.of(keys_of([("w3", 3), ("absent", 1)])))
    assert found.rows["value"].to_pylist() == [3]
    (looked, of_hashes), (rows, of_all) = ((len(groups), columns) for groups, columns in read)
    assert (looked in (1, 2), of_hashes, rows, of_all) == (True, ["_trident_hash"], 1, None)


def test_large_rows_split_a_bucket_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketed_base, "MOST_ROWS", 1000)
    monkeypatch.setattr(bucketed_base, "MOST_BYTES", 4000)
    base = base_in(tmp_path).merge(changes_of({("x" * 1000, n): n for n in range(8)}).within)
    assert len(base.files) > 2
    assert len(listed(base)) == 8


def test_a_value_longer_than_any_bucket_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketed_base, "MOST_BYTES", 10)
    base = base_in(tmp_path).merge(changes_of({("x" * 1000, 1): 1, ("y", 2): 2}).within)
    assert listed(base) == {("x" * 1000, 1): 1, ("y", 2): 2}


def test_the_hash_is_in_the_file_and_readers_of_the_columns_do_not_see_it(tmp_path: Path) -> None:
    base = base_in(tmp_path).merge(changes_of({("a", 1): 1}).within)
    (file,) = base.files
    assert pq.read_schema(tmp_path / file.path).names == ["_trident_hash", *VALUE_SCHEMA.names]
    assert next(iter(base.rows())).schema == VALUE_SCHEMA
    assert BucketFile.of(file.path, file.size, 1) == file
    assert BucketFile.of("part-00000-abc.snappy.parquet", 1, 1) is None


def test_overlapping_files_are_refused(tmp_path: Path) -> None:
    whole, half = (BucketFile(f"part-{n}", 1, 1, bucket) for n, bucket in enumerate([Bucket(0, 0), Bucket(1, 1)]))
    with pytest.raises(StateError, match=r"hashes of data file part-1 overlap with the hashes of part-0"):
        base_in(tmp_path, [half, whole])


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", broken)
    with pytest.raises(OSError, match="no space left"):
        base_in(tmp_path).merge(changes_of({("a", 1): 1}).within)
    assert list(tmp_path.iterdir()) == []


def test_memory_is_counted(tmp_path: Path) -> None:
    values = LargeIndex(LAYOUT, base_in(tmp_path), 0)
    assert (values.changes, values.nbytes) == (0, 0)
    values.add(rows_of({(f"w{n}", n): n for n in range(100)}))
    assert values.changes == 100
    assert values.nbytes > 100 * (8 + 8 + 4)


def hashes(*columns: pa.Array | pa.ChunkedArray) -> list[int]:
    found: list[int] = hashes_of(comparable(columns)).tolist()
    return found


TEXTS = [
    6949253834128675438,
    2511324216889676531,
    552288863421846674,
    4579564264047924765,
    7863958710719917384,
    2065452812496198522,
]
NUMBERS = [6949253834128675438, 4674226817634124425, 8611818879122034814, 7863958710719917384]
FLOATS = [6949253834128675438, 4304520953383323536, 6481945248427207801]
LISTS = [7128204207479162191, 2430688337618432282, 7863958710719917384]
PAIRS = [7741853805165258627, 3147215394732050242]


# Tables hold these numbers, so they may never change.
def test_hashes_are_those_of_every_release() -> None:
    assert hashes(pa.array(["", "a", "abcdefgh", "abcdefghi", None, "x" * 65])) == TEXTS
    assert hashes(pa.array([0, 1, -1, None])) == NUMBERS
    assert hashes(pa.array([0.0, 1.5, math.nan])) == FLOATS
    assert hashes(pa.array([[1, 2], [], None], pa.list_(pa.int64()))) == LISTS
    assert hashes(pa.array(["a", "b"]), pa.array([1, 2])) == PAIRS


EQUAL: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["", "é", "a\0", "a", "x" * 64, "x" * 65, "x" * 200, None]),
    (pa.binary(), [b"", b"\0", b"\0\0", b"\0" * 64, b"\0" * 65, None]),
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [-128, 0, 127, None]),
    (pa.int32(), [-(1 << 31), 0, None]),
    (pa.float32(), [1.5, math.inf, -math.inf, None]),
    (pa.date32(), [dt.date(1969, 1, 1), dt.date(2026, 1, 1), None]),
    (pa.timestamp("us", tz="UTC"), [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None]),
    (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-1.50"), Decimal(0), None]),
    (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]), [{"a": 1, "b": ["x"]}, {"a": 1, "b": None}, None]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], None]),
]


@pytest.mark.parametrize(
    ("kind", "values"), EQUAL, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
def test_a_key_has_one_hash_wherever_it_is_in_a_column(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array(values, kind)
    assert len(set(hashes(column))) == len(values)
    shifted = pa.array([*values[-1:], *values], kind).slice(1)
    assert hashes(shifted) == hashes(column)
    assert hashes(pa.chunked_array([column.slice(0, 1), column.slice(1)])) == hashes(column)
    assert [hashes(column.slice(at, 1))[0] for at in range(len(values))] == hashes(column)
    assert same_keys(comparable([column]), comparable([shifted])).all()
    turned = pa.array(values[1:] + values[:1], kind)
    assert not same_keys(comparable([column]), comparable([turned])).any()


def test_equal_floats_are_one_key() -> None:
    floats = pa.array([0.0, math.nan]), pa.array([-0.0, np.frombuffer(b"\1\0\0\0\0\0\xf8\x7f")[0]])
    assert hashes(floats[0]) == hashes(floats[1])
    assert same_keys(comparable(floats[:1]), comparable(floats[1:])).all()


def test_the_parts_of_a_key_do_not_run_together() -> None:
    one, other = pa.array(["ab", "a", None]), pa.array(["c", "bc", "abc"])
    assert len({*hashes(one, other), *hashes(other, one)}) == 6


@pytest.mark.parametrize("column", [pa.array(range(65_536)), pa.array([f"user{n}" for n in range(65_536)])])
def test_hashes_fill_all_buckets_alike(column: pa.Array) -> None:
    found = np.array(hashes(column))
    assert len(set(found.tolist())) == 65_536
    for bits in (found >> 55, found & 255):  # the first bits choose a bucket, the last ones an order
        counts = np.bincount(bits, minlength=256)
        assert counts.min() > 150  # 256 on average, with a deviation of 16
        assert counts.max() < 370
