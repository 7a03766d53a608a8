"""A Delta state below another one's folder: refused both ways, and nothing that is not the table's own is deleted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from states.delta import DeltaState
from states.delta.data_files import only_data_files
from states.delta.state_table import StateTable
from tests.states.delta.delta_bucket import Bucket
from tests.states.delta.delta_states import WORDS, Log, begun_at, commit, count_men, reader_at, state_at, values
from tests.states.delta.test_delta_object_store import storage
from trident.errors import StateError


def aged(path: Path) -> Path:
    os.utime(path, (path.stat().st_mtime - 7200,) * 2)
    return path


def filled(path: Path) -> Path:
    commit(state_at(path), Log(), 1, 1, {"man": 1})
    return path


@pytest.mark.parametrize("inner", ["inner", "a/b/inner", "_delta_log/inner", "_hidden"])
def test_a_state_below_another_table_is_refused_and_nothing_is_written(tmp_path: Path, inner: str) -> None:
    outer = filled(tmp_path / "outer")
    state = state_at(outer / inner)
    with pytest.raises(
        StateError, match=f"it lies in the folder of Delta table {outer.resolve()}, which deletes files"
    ):
        state.begin_commit(Log().txid(1, 1))
    assert not (outer / inner).exists()
    (tmp_path / "link").symlink_to(outer)
    with pytest.raises(StateError, match="lies in the folder of Delta table"):
        state_at(tmp_path / "link" / inner).read_sentinel()


def test_a_state_above_another_table_is_refused_in_whatever_order_they_were_made(tmp_path: Path) -> None:
    filled(tmp_path / "outer" / "inner")
    with pytest.raises(StateError, match="another table, .*/outer/inner, lies in its folder"):
        state_at(tmp_path / "outer").begin_commit(Log().txid(1, 1))
    filled(tmp_path / "moved")
    (tmp_path / "outer" / "inner").rename(tmp_path / "moved" / "inner")
    state = state_at(tmp_path / "moved")
    with pytest.raises(StateError, match="another table, .*/moved/inner, lies in its folder"):
        state.read_sentinel()
    assert values(reader_at(tmp_path / "moved"), "man") == [1]


def test_neighbours_are_not_nested(tmp_path: Path) -> None:
    for partition in ("part-00000", "part-00001"):
        commit(state_at(tmp_path / "states" / "words" / partition), Log(), 1, 1, {"man": 1})
    filled(tmp_path / "states" / "words-2")
    assert values(state_at(tmp_path / "states" / "words" / "part-00001"), "man") == [1]


@pytest.mark.sample(1)
@pytest.mark.parametrize("foreign", ["inner/part-0.parquet", "letter.txt", "log/segment-1.log"])
def test_a_vacuum_deletes_no_file_of_others(tmp_path: Path, foreign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state, log = begun_at(tmp_path, compact_after_commits=1, vacuum_after_hours=1, background_maintenance=False)
    file = tmp_path / foreign
    file.parent.mkdir(exist_ok=True)
    file.write_text("dear")
    aged(file)
    vacuumed: list[Any] = []
    vacuum = StateTable.vacuum
    monkeypatch.setattr(StateTable, "vacuum", lambda table: vacuumed.append(vacuum(table)))
    count_men(state, log, range(2, 12))
    assert vacuumed
    assert file.exists()
    assert values(state_at(tmp_path), "man") == [11]


def test_only_the_names_of_data_files_count_as_the_tables_own() -> None:
    own = ["part-00000-6866f0c9-7c5d-431b-82da-582681c3ad8b-c000.snappy.parquet", "part-00001-ab.c000.zstd.parquet"]
    assert only_data_files([*own, "a/part-0.parquet", "x.parquet", "part-0.parquet.bak"]) == own


def test_a_state_below_another_table_in_a_bucket_is_refused() -> None:
    bucket = Bucket()
    try:
        outer = DeltaState.opaque("s3://bucket/states", storage_options=storage(bucket))
        commit(outer.factory.make_state(WORDS, 0, 1), Log(), 1, 1, {"man": 1})
        inner = DeltaState.opaque("s3://bucket/states/a/words", storage_options=storage(bucket))
        with pytest.raises(StateError, match="it lies in the folder of Delta table s3://bucket/states, which"):
            inner.factory.make_state(WORDS, 0, 1).begin_commit(Log().txid(1, 1))
    finally:
        bucket.close()
