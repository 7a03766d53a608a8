"""Values in buckets: whatever is put, deleted, merged or taken back, a lookup tells what a dict tells."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from states.delta.beyond_memory import bucketed_base, sorted_rows
from states.delta.beyond_memory.bucketed_base import BucketedBase, BucketFile, BucketLimits
from states.delta.beyond_memory.large_index import LargeIndex
from states.delta.beyond_memory.sorted_rows import Bucket, SortedRows, WantedKeys
from states.delta.layout import DeltaLayout
from trident.errors import StateError
from trident.state import StateConf, StateType

KEYS = ("word", "n")
LAYOUT = DeltaLayout(
    StateType.NON_TRANSACTIONAL, StateConf("words", "counts", (("word", "string"), ("n", "int")), "bigint")
)
SCHEMA = LAYOUT.data_schema
LIMITS = BucketLimits(rows=6)

Model = dict[tuple[str | None, int | None], int]


def base_in(path: Path, files: Iterable[BucketFile] = (), limits: BucketLimits = LIMITS) -> BucketedBase:
    return BucketedBase(list(files), SCHEMA, KEYS, SubTreeFileSystem(str(path), LocalFileSystem()), limits)


def rows_of(model: Mapping[tuple[str | None, int | None], int | None]) -> pa.Table:
    words, numbers = zip(*model, strict=True) if model else ((), ())
    return pa.table([words, numbers, list(model.values())], schema=SCHEMA)


def changes_of(model: Model) -> SortedRows:
    return SortedRows.of(rows_of(model), KEYS)


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
    frozen: tuple[SortedRows, Model] | None = None
    for _ in range(40):
        some = list({any_key(dice) for _ in range(dice.choice([0, 1, 5, 30]))})
        what = dice.choice(["put", "put", "delete", "freeze", "merge", "thaw"])
        if what in ("put", "delete"):
            new = {key: dice.randrange(1000) for key in some}
            values.add(rows_of(new if what == "put" else dict.fromkeys(new)))
            model = {**model, **new} if what == "put" else {k: v for k, v in model.items() if k not in new}
        elif what == "freeze" and frozen is None:
            frozen = values.freeze(), dict(model)
        elif what == "merge" and frozen is not None:
            base = values.base.merge(frozen[0])
            assert listed(base) == frozen[1]
            assert all(file.rows <= LIMITS.rows or file.bucket.depth > 2 for file in base.files)
            values.adopt_base(base_in(path, [BucketFile.of(*file[:3]) or file for file in base.files]), 0)
            frozen = None
        elif what == "thaw" and frozen is not None:
            values.thaw()
            frozen = None
        asked = list({*some, *(any_key(dice) for _ in range(20))})
        assert told(values, asked) == {key: model[key] for key in asked if key in model}, f"seed {seed}"


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_any_schedule_tells_what_a_dict_tells(tmp_path: Path, seed: int) -> None:
    run_schedule(tmp_path, seed)


@pytest.mark.usefixtures("few_hashes")
@pytest.mark.parametrize("seed", range(12, 18))
def test_keys_of_one_hash_are_told_apart(tmp_path: Path, seed: int) -> None:
    run_schedule(tmp_path, seed)


def test_a_merge_writes_the_buckets_that_it_touches_and_no_other(tmp_path: Path) -> None:
    base = base_in(tmp_path).merge(changes_of({(f"w{n}", n): n for n in range(200)}))
    assert len(base.files) > 30
    after = base.merge(changes_of({("w7", 7): -1}))
    assert len({*base.files} - {*after.files}) == len({*after.files} - {*base.files}) == 1
    assert listed(base)["w7", 7] == 7  # the files of the older version are as they were
    assert listed(after)["w7", 7] == -1


def test_a_bucket_without_rows_has_no_file_until_it_has_rows_again(tmp_path: Path) -> None:
    everything: Model = {(f"w{n}", n): n for n in range(40)}
    base = base_in(tmp_path).merge(changes_of(everything))
    first = base.files[0]
    with bucketed_base.OpenedBucket(first, base._system, SCHEMA) as opened:
        gone = opened.rows().drop_columns(["_trident_hash"])
    emptied = base.merge(SortedRows.of(gone, KEYS, np.ones(len(gone), np.bool_)))
    assert len(emptied) == 40 - len(gone)
    assert first.bucket not in [file.bucket for file in emptied.files]
    again = emptied.merge(SortedRows.of(gone, KEYS))
    assert listed(again) == everything


def test_a_lookup_reads_the_row_groups_of_its_keys_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketed_base, "ROWS_PER_GROUP", 10)
    base = base_in(tmp_path, limits=BucketLimits(1000)).merge(changes_of({(f"w{n}", n): n for n in range(500)}))
    assert len(base.files) == 1
    read: list[tuple[list[int], Any]] = []
    read_groups = pq.ParquetFile.read_row_groups

    def noted(self: pq.ParquetFile, groups: list[int], columns: Any = None) -> pa.Table:
        read.append((groups, columns))
        return read_groups(self, groups, columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", noted)
    found = base.lookup(WantedKeys.of(keys_of([("w3", 3), ("absent", 1)])))
    assert found.rows["value"].to_pylist() == [3]
    assert [(len(groups), columns) for groups, columns in read] in (
        [(2, ["_trident_hash"]), (1, None)],
        [(1, ["_trident_hash"]), (1, None)],
    )


def test_large_rows_split_a_bucket_by_their_bytes(tmp_path: Path) -> None:
    base = base_in(tmp_path, limits=BucketLimits(1000, 4000)).merge(changes_of({("x" * 1000, n): n for n in range(8)}))
    assert len(base.files) > 2
    assert len(listed(base)) == 8


def test_a_value_longer_than_any_bucket_is_written_whole(tmp_path: Path) -> None:
    base = base_in(tmp_path, limits=BucketLimits(1, 10)).merge(changes_of({("x" * 1000, 1): 1, ("y", 2): 2}))
    assert listed(base) == {("x" * 1000, 1): 1, ("y", 2): 2}


def test_the_hash_is_in_the_file_and_readers_of_the_columns_do_not_see_it(tmp_path: Path) -> None:
    base = base_in(tmp_path).merge(changes_of({("a", 1): 1}))
    (file,) = base.files
    assert pq.read_schema(tmp_path / file.path).names == ["_trident_hash", *SCHEMA.names]
    assert next(iter(base.rows())).schema == SCHEMA
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
        base_in(tmp_path).merge(changes_of({("a", 1): 1}))
    assert list(tmp_path.iterdir()) == []


def test_memory_is_counted_and_given_back_after_a_merge(tmp_path: Path) -> None:
    values = LargeIndex(LAYOUT, base_in(tmp_path), 0)
    assert (values.changes, values.nbytes) == (0, 0)
    values.add(rows_of({(f"w{n}", n): n for n in range(100)}))
    assert values.changes == 100
    assert values.nbytes > 100 * (8 + 8 + 4)
    frozen = values.freeze()
    assert values.changes == 100
    values.adopt_base(values.base.merge(frozen), 0)
    assert (values.changes, values.nbytes) == (0, 0)
