"""Who may write a Delta table: its sentinel, writers that were replaced, and states below the folder of another one."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spouts import FixedBatchSpout
from states.delta import DeltaBackingMap, DeltaState
from states.delta.data_files import only_data_files
from states.delta.state_table import StateTable
from tests.states.delta.delta_bucket import Bucket
from tests.states.delta.delta_states import (
    WORDS,
    Log,
    begun_at,
    changes,
    commit,
    count_men,
    reader_at,
    state_at,
    update,
    values,
    version_of,
)
from tests.states.delta.test_delta_object_store import storage
from trident import TridentTopology
from trident.errors import (
    BackendError,
    FencedError,
    StateError,
    StateLossDetected,
    StateMismatchError,
    StatePlaceError,
    TopologyError,
)
from trident.operations import Count
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel, Txid

pytestmark = pytest.mark.slow


def map_at(path: Path) -> DeltaBackingMap:
    return DeltaBackingMap(path, StateType.OPAQUE, WORDS)


def sentinel(txid: int, attempt: int = 0, place: str = "words/counts") -> Sentinel:
    return Sentinel("inc", txid, attempt, place)


def filled(path: Path) -> Path:
    log = Log()
    for number in (1, 2):
        state = state_at(path)
        commit(state, log, number, 1, {"man": 1})
        state.close()
    return path


def wipe(path: Path) -> None:
    shutil.rmtree(path)


def empty(path: Path) -> None:
    map_at(path).reset()


def roll_back(path: Path) -> None:
    DeltaTable(changes(path)).restore(1)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("lose", [wipe, empty, roll_back])
def test_a_sentinel_is_not_laid_on_a_table_that_lost_what_was_read(
    tmp_path: Path, lose: Callable[[Path], None], force: bool
) -> None:
    table = filled(tmp_path / "t")
    backing = map_at(table)
    assert backing.read_sentinel() == sentinel(2, 1)
    lose(table)
    with pytest.raises(StateLossDetected, match="is gone|was rolled back from batch 2 attempt 1"):
        backing.move_sentinel(sentinel(3, 1), force)
    assert lose is not wipe or not table.exists()
    with pytest.raises(StateLossDetected):  # what was read is remembered until it is read again
        backing.move_sentinel(sentinel(3, 2), force)


def bring_back(path: Path) -> None:
    wipe(path)
    path.with_name("copy").rename(path)


@pytest.mark.parametrize(("lose", "left"), [(wipe, None), (empty, None), (bring_back, 1)])
def test_a_table_that_is_emptied_or_set_back_within_a_commit_fails_it_as_a_loss(
    tmp_path: Path, lose: Callable[[Path], None], left: int | None
) -> None:
    table, log = tmp_path / "t", Log()
    state = state_at(table)
    count_men(state, log, [1])
    state.wait_for_maintenance()
    shutil.copytree(table, tmp_path / "copy")
    count_men(state, log, [2])
    txid = log.txid(3, 1)
    state.begin_commit(txid)
    update(state, {"man": 1})
    state.wait_for_maintenance()
    lose(table)
    with pytest.raises(StateLossDetected, match="rolled back from batch 2" if left else "its sentinel .* is gone"):
        state.commit(txid)
    assert (values(reader_at(table), "man"), reader_at(table).read_sentinel() is None) == ([left], left is None)
    with pytest.raises(StateMismatchError):
        state.begin_commit(log.txid(3, 2))


def test_a_move_without_a_read_reads_by_itself_and_own_moves_follow_each_other(tmp_path: Path) -> None:
    backing = map_at(tmp_path)
    for txid in (0, 0, 3, 7):
        backing.move_sentinel(sentinel(txid, 1), force=True)
    backing.move_sentinel(sentinel(8, 1))
    assert backing.read_sentinel() == sentinel(7, 1)
    with pytest.raises(FencedError):
        backing.move_sentinel(sentinel(6, 1))


def test_the_table_of_another_state_is_refused_by_its_name(tmp_path: Path) -> None:
    log = Log()
    commit(state_at(tmp_path), log, 1, 1, {"man": 1})
    other = state_at(tmp_path, StateConf("words", "others", WORDS.key_fields, "bigint"))
    with pytest.raises(StatePlaceError, match="words/counts"):
        other.begin_commit(log.txid(2, 1))
    with pytest.raises(StatePlaceError, match="words/counts"):
        map_at(tmp_path).move_sentinel(sentinel(2, 1, "words/others"))
    assert values(reader_at(tmp_path), "man") == [1]


def test_two_states_at_one_path_by_two_names_are_refused_where_they_are_declared(tmp_path: Path) -> None:
    topology = TridentTopology("t")
    words = topology.new_stream("s", FixedBatchSpout("word: string", 1, ("a",))).group_by("word")
    (tmp_path / "t").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "t")
    words.persistent_aggregate(DeltaState.opaque(tmp_path / "t"), Count(), "count", state_name="one")
    for folder in ("link", "link/inner"):
        with pytest.raises(TopologyError, match="states 'one' and 'two' are (both )?kept in "):
            words.persistent_aggregate(DeltaState.opaque(tmp_path / folder), Count(), "count", state_name="two")


def filled_once(path: Path) -> Path:
    commit(state_at(path), Log(), 1, 1, {"man": 1})
    return path


@pytest.mark.parametrize("inner", ["inner", "a/b/inner", "_delta_log/inner", "_hidden"])
def test_a_state_below_another_table_is_refused_and_nothing_is_written(tmp_path: Path, inner: str) -> None:
    outer = filled_once(tmp_path / "outer")
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
    filled_once(tmp_path / "outer" / "inner")
    with pytest.raises(StateError, match="another table, .*/outer/inner, lies in its folder"):
        state_at(tmp_path / "outer").begin_commit(Log().txid(1, 1))
    filled_once(tmp_path / "moved")
    (tmp_path / "outer" / "inner").rename(tmp_path / "moved" / "inner")
    state = state_at(tmp_path / "moved")
    with pytest.raises(StateError, match="another table, .*/moved/inner, lies in its folder"):
        state.read_sentinel()
    assert values(reader_at(tmp_path / "moved"), "man") == [1]


def test_neighbours_are_not_nested(tmp_path: Path) -> None:
    for partition in ("part-00000", "part-00001"):
        commit(state_at(tmp_path / "states" / "words" / partition), Log(), 1, 1, {"man": 1})
    filled_once(tmp_path / "states" / "words-2")
    assert values(state_at(tmp_path / "states" / "words" / "part-00001"), "man") == [1]


@pytest.mark.sample(1)
@pytest.mark.parametrize("foreign", ["inner/part-0.parquet", "letter.txt", "log/segment-1.log"])
def test_a_vacuum_deletes_no_file_of_others(tmp_path: Path, foreign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state, log = begun_at(tmp_path, compact_after_commits=1, vacuum_after_hours=1, background_maintenance=False)
    file = tmp_path / foreign
    file.parent.mkdir(exist_ok=True)
    file.write_text("dear")
    os.utime(file, (file.stat().st_mtime - 7200,) * 2)
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


def clean_log(path: Path) -> None:
    """Delete what a checkpoint holds, as Delta's own clean-up does."""
    DeltaTable(changes(path)).create_checkpoint()
    for entry in sorted((changes(path) / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()


FEW_VERSIONS = {"compact_after_commits": 8, "checkpoint_interval": 8, "retained_versions": 20, "fsync": False}
BETWEEN: dict[str, tuple[dict[str, Any], int, bool]] = {
    "one batch": ({}, 2, False),
    "a compaction": ({"compact_after_commits": 2}, 2, False),
    "batches of which the log was cleaned": ({"checkpoint_interval": 2}, 5, True),
    "batches whose versions are gone": (FEW_VERSIONS, 60, False),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_a_paused_writer_is_fenced_once_its_successor_has_committed(tmp_path: Path, between: str) -> None:
    options, last, is_cleaned = BETWEEN[between]
    old, new, log = state_at(tmp_path), state_at(tmp_path, background_maintenance=False, **options), Log()
    commit(old, log, 1, 1, {"man": 1})
    paused = log.txid(2, 1)
    old.begin_commit(paused)
    update(old, {"man": 100})
    count_men(new, log, range(2, last + 1), 2)
    if is_cleaned:
        clean_log(tmp_path)
    assert (changes(tmp_path) / "_delta_log" / f"{2:020}.json").exists() == (last == 2)
    rows, version = DeltaTable(changes(tmp_path)).to_pyarrow_table().num_rows, version_of(tmp_path)
    with pytest.raises(
        FencedError, match=f"this writer is batch 2 attempt 1 .* but batch {last} attempt 2 .*taken over"
    ):
        old.commit(paused)
    assert (DeltaTable(changes(tmp_path)).to_pyarrow_table().num_rows, version_of(tmp_path)) == (rows, version)
    with pytest.raises(FencedError):
        old.begin_commit(paused)
    assert values(state_at(tmp_path), "man") == [last]


@pytest.mark.parametrize("kind", [StateType.OPAQUE, StateType.TRANSACTIONAL])
def test_a_paused_writer_that_commits_between_begin_and_end_of_its_successor(tmp_path: Path, kind: StateType) -> None:
    old, new, log = state_at(tmp_path, kind=kind), state_at(tmp_path, kind=kind), Log()
    commit(old, log, 1, 1, {"man": 1})
    paused, live = log.txid(2, 1), log.txid(2, 2)
    # A transactional state belongs to a spout whose replay is identical; an opaque one may change.
    first = {"man": 10} if kind is StateType.TRANSACTIONAL else {"man": 100, "dog": 100}
    old.begin_commit(paused)
    update(old, first)
    new.begin_commit(live)
    update(new, {"man": 10})
    old.commit(paused)
    with pytest.raises(BackendError, match="moved the sentinel to batch 2 attempt 1 .* may be replayed") as caught:
        new.commit(live)
    assert caught.value.retryable
    commit(new, log, 2, 3, {"man": 10})
    assert values(state_at(tmp_path, kind=kind), "man") == [11]
    if kind is StateType.OPAQUE:
        commit(new, log, 3, 3, {"dog": 1})
        assert values(state_at(tmp_path), "man", "dog") == [11, 1]


def test_drivers_that_make_the_tables_together_are_told_apart_at_the_commit(tmp_path: Path) -> None:
    all_of_them = threading.Barrier(6, timeout=30)

    def begin(driver: Any, txid: Txid) -> None:
        all_of_them.wait()
        driver.begin_commit(txid)

    for turn in range(5):
        path, log = tmp_path / str(turn), Log()
        drivers, txids = [state_at(path) for _ in range(6)], [log.txid(1, attempt) for attempt in range(1, 7)]
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(begin, drivers, txids))
        for driver in drivers:
            driver.close()
        last = state_at(path)
        commit(last, log, 1, 7, {"man": 1})
        with pytest.raises(FencedError):
            drivers[0].begin_commit(txids[0])
        assert values(last, "man") == [1]


def test_a_batch_is_refused_if_another_program_committed_and_its_replay_is_exact(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 1, {"man": 1})
    commit(state, log, 2, 1, {"man": 1})
    txid = log.txid(3, 1)
    state.begin_commit(txid)
    update(state, {"man": 1})
    DeltaTable(changes(tmp_path)).optimize.compact()
    with pytest.raises(BackendError, match="version 3 was committed meanwhile"):
        state.commit(txid)
    commit(state, log, 3, 2, {"man": 1})
    assert values(state_at(tmp_path), "man") == [3]
