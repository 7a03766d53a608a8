"""Who may commit to a Delta table: the sentinel of its commits, and what tasks stage for the driver to publish."""

import os
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spouts import FixedBatchSpout
from states.delta import DeltaBackingMap, DeltaState
from states.delta.data_files import only_data_files
from states.delta.index import IndexedValues
from states.delta.staging import STAGED
from states.delta.state_table import StateTable
from tests.harness.crashing_stores import tuples_at
from tests.harness.forked import die, exit_code_of
from tests.states.delta.delta_bucket import Bucket, storage
from tests.states.delta.delta_states import (
    WORDS,
    Log,
    begun_at,
    changes,
    clean_log,
    commit,
    count_men,
    people_read,
    reader_at,
    state_at,
    update,
    values,
    version_of,
)
from trident import TridentTopology
from trident.errors import (
    BackendError,
    FencedError,
    SecondRunError,
    StateError,
    StateLossDetected,
    StateMismatchError,
    StatePlaceError,
    TopologyError,
)
from trident.operations import Count
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel, Snapshot, Txid

pytestmark = pytest.mark.slow


def stage(task: Any, txid: Txid, counts: Mapping[str, int]) -> bytes:
    run = txid.of_run(secrets.token_hex(8))
    task.begin_commit(run)
    update(task, counts)
    staged: bytes = task.stage(run)
    return staged


def step(task: Any, driver: Any, log: Log, number: int, attempt: int, counts: Mapping[str, int]) -> None:
    """Do a batch whole."""
    txid = log.txid(number, attempt)
    driver.publish(txid, stage(task, txid, counts))
    log.record(txid)


def begun(path: Path) -> tuple[Any, Any, Log]:
    """Return a task, its driver and its log, after a first batch."""
    task, driver, log = state_at(path), state_at(path), Log()
    step(task, driver, log, 1, 1, {"man": 1})
    return task, driver, log


def staged_files(path: Path) -> list[Path]:
    folder = changes(path) / STAGED
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An entry for each time that an index reduces the rows of a table, or turns them into columns."""
    seen: list[str] = []
    dropped = IndexedValues._drop_scan

    def noted(index: IndexedValues) -> None:
        seen.append("scan")
        dropped(index)

    monkeypatch.setattr(IndexedValues, "_drop_scan", noted)
    return seen


def test_what_is_staged_is_seen_once_it_is_published_as_one_version(tmp_path: Path) -> None:
    task, driver, log = state_at(tmp_path), state_at(tmp_path), Log()
    assert task.facts.stage is not None
    assert DeltaState.opaque(tmp_path / "another").facts.stages_commits
    step(task, driver, log, 1, 1, {"man": 1})
    txid, before = log.txid(2, 1), version_of(tmp_path)
    staged = stage(task, txid, {"man": 10, "dog": 5})
    assert len(staged) < 300
    assert len(staged_files(tmp_path)) == 1
    assert version_of(tmp_path) == before
    assert values(reader_at(tmp_path), "man", "dog") == [1, None]
    driver.publish(txid, staged)
    assert version_of(tmp_path) == before + 1
    assert staged_files(tmp_path) == []
    assert values(reader_at(tmp_path), "man", "dog") == [11, 5]
    found = DeltaTable(changes(tmp_path))
    assert found.transaction_version("trident/words/counts/0") == 2 + 1
    log.record(txid)
    assert values(state_at(tmp_path), "man", "dog") == [11, 5]
    driver.recorded(Snapshot(2, log.winners))
    driver.wait_for_maintenance()
    assert people_read(tmp_path) == {"man": 11, "dog": 5}
    assert dict(reader_at(tmp_path).at(1).get_tuples()) == {"man": 1}


def test_a_task_reads_the_rows_once_and_the_driver_never(tmp_path: Path, reads: list[str]) -> None:
    task, log = state_at(tmp_path, compact_after_commits=3, background_maintenance=False), Log()
    driver = state_at(tmp_path, compact_after_commits=3, background_maintenance=False)
    for number in range(1, 12):  # compactions of the driver come between its versions
        step(task, driver, log, number, 1, {"man": 1} | {f"k{n}": 1 for n in range(20)})
    assert len(reads) == 1
    assert any("trident.compaction" in entry for entry in DeltaTable(changes(tmp_path)).history())
    assert values(reader_at(tmp_path), "man", "k7") == [11, 11]


def test_a_task_whose_index_another_task_has_overtaken_reads_again(tmp_path: Path, reads: list[str]) -> None:
    one, other, driver, log = *(state_at(tmp_path) for _ in range(3)), Log()
    for number in range(1, 9):
        step((one, other)[number // 2 % 2], driver, log, number, 1, {"man": number, "dog": 1})
    assert len(reads) == 5
    assert values(reader_at(tmp_path), "man", "dog") == [36, 8]


def test_a_task_does_not_keep_what_was_staged_and_lost(tmp_path: Path) -> None:
    task, driver, log = begun(tmp_path)
    stage(task, log.txid(2, 1), {"man": 100, "lost": 1})
    step(task, driver, log, 2, 2, {"man": 1})
    assert staged_files(tmp_path) == []
    step(task, driver, log, 3, 2, {"man": 1})
    assert values(task, "man", "lost") == [3, None]
    assert dict(reader_at(tmp_path).get_tuples()) == {"man": 3}


def test_a_task_reads_again_if_the_driver_published_another_run(tmp_path: Path) -> None:
    first, second, driver, log = *(state_at(tmp_path) for _ in range(3)), Log()
    step(first, driver, log, 1, 1, {"man": 1})
    txid = log.txid(2, 1)
    begun = txid.of_run("b" * 16)
    second.begin_commit(begun)  # before the first has staged, so it is not refused yet
    update(second, {"man": 20, "second": 1})
    stage(first, txid, {"man": 10, "first": 1})
    driver.publish(txid, second.stage(begun))
    log.record(txid)
    assert staged_files(tmp_path) == []
    step(first, driver, log, 3, 1, {"man": 1})
    assert dict(reader_at(tmp_path).get_tuples()) == {"man": 22, "second": 1}


def test_a_second_run_of_a_task_is_refused(tmp_path: Path) -> None:
    first, second, driver, log = *(state_at(tmp_path) for _ in range(3)), Log()
    step(first, driver, log, 1, 1, {"man": 1})
    txid = log.txid(2, 1)
    staged = stage(first, txid, {"man": 1})
    with pytest.raises(SecondRunError):
        stage(second, txid, {"man": 2})
    driver.publish(txid, staged)
    with pytest.raises(SecondRunError):
        stage(second, txid, {"man": 2})
    assert values(reader_at(tmp_path), "man") == [2]


def test_a_replaced_driver_publishes_nothing(tmp_path: Path) -> None:
    task, old, new, log = *(state_at(tmp_path) for _ in range(3)), Log()
    step(task, old, log, 1, 1, {"man": 1})
    replaced, live = log.txid(2, 1), log.txid(2, 2)
    staged = stage(task, replaced, {"man": 100})
    other = state_at(tmp_path)
    version = version_of(tmp_path)
    kept = staged_files(tmp_path)[0].read_bytes()
    late = stage(other, live, {"man": 1})
    assert not any(b"man" in file.read_bytes() and file.read_bytes() == kept for file in staged_files(tmp_path))
    with pytest.raises(BackendError, match="is gone; the batch may be replayed"):  # the new task has deleted it
        old.publish(replaced, staged)
    assert version_of(tmp_path) == version
    new.publish(live, late)
    with pytest.raises(FencedError, match="batch 2 attempt 2"):
        old.publish(replaced, staged)
    log.record(live)
    assert values(reader_at(tmp_path), "man") == [2]


def test_what_was_published_and_not_recorded_counts_as_never_written(tmp_path: Path) -> None:
    task, driver, log = begun(tmp_path)
    unrecorded = log.txid(2, 1)
    driver.publish(unrecorded, stage(task, unrecorded, {"man": 100, "lost": 1}))
    step(state_at(tmp_path), state_at(tmp_path), log, 2, 2, {"man": 1})
    assert values(state_at(tmp_path), "man") == [2]
    found = DeltaTable(changes(tmp_path)).to_pyarrow_table().to_pylist()
    assert [row["curr"] for row in found if row["word"] == "lost"] == [1]
    step(task, driver, log, 3, 2, {"lost": 5})
    assert values(reader_at(tmp_path), "man", "lost") == [2, 5]


def test_a_version_of_another_writer_after_the_task_began_refuses_what_it_staged(tmp_path: Path) -> None:
    task, driver, log = begun(tmp_path)
    step(task, driver, log, 2, 1, {"man": 1})
    txid = log.txid(3, 1)
    staged = stage(task, txid, {"man": 1})
    DeltaTable(changes(tmp_path)).optimize.compact()  # of another program, which says nothing in our notes
    with pytest.raises(BackendError, match="was committed meanwhile"):
        driver.publish(txid, staged)
    step(task, driver, log, 3, 2, {"man": 1})
    assert values(reader_at(tmp_path), "man") == [3]


def test_what_a_driver_that_ended_left_is_deleted_when_the_next_one_opens(tmp_path: Path) -> None:
    task, _, log = begun(tmp_path)
    stage(task, log.txid(2, 1), {"man": 100})
    other = changes(tmp_path) / STAGED / "of-another-program.txt"
    other.write_text("not ours")
    again = state_at(tmp_path)
    assert again.read_sentinel() == log.expected
    again.recorded(Snapshot(1, log.winners))
    assert staged_files(tmp_path) == [other]
    assert values(reader_at(tmp_path), "man") == [1]


def test_what_a_lost_task_staged_is_deleted_when_the_driver_commits_alone(tmp_path: Path) -> None:
    task, driver, log = begun(tmp_path)
    stage(task, log.txid(2, 1), {"man": 10})
    assert len(staged_files(tmp_path)) == 1
    commit(driver, log, 2, 2, {"man": 10})
    assert staged_files(tmp_path) == []
    assert values(reader_at(tmp_path), "man") == [11]


_append = StateTable.append

POINTS = {
    "staged": "a task has staged, and its driver has not begun to publish",
    "moved": "the driver has moved the file, and not made a version of it",
    "published": "the driver has published, and not recorded",
}


def _die_in_the_commit(table: StateTable, *args: Any, **options: Any) -> Any:
    """Die instead of appending; a merge beside the commits, in a thread of its own, may append."""
    if threading.current_thread() is threading.main_thread():
        die()
    return _append(table, *args, **options)


def die_at(point: str, path: Path, options: dict[str, Any]) -> None:
    """Stage and publish batches of a state, and die in the third one, at the point."""
    task, driver, log = state_at(path, **options), state_at(path, **options), Log()
    for number in (1, 2):
        step(task, driver, log, number, 1, {"man": 1, "dog": 1})
        driver.recorded(Snapshot(number, log.winners))
    txid = log.txid(3, 1)
    staged = stage(task, txid, {"man": 100, "lost": 1})
    if point == "staged":
        die()
    if point == "moved":
        StateTable.append = _die_in_the_commit  # type: ignore[method-assign,assignment]
    driver.publish(txid, staged)
    die()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("form", ["small", "large"])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_point_loses_and_doubles_nothing(tmp_path: Path, point: str, form: str) -> None:
    options: dict[str, Any] = {"max_keys_in_memory": 1} if form == "large" else {}
    assert exit_code_of(die_at, point, tmp_path, options) == -signal.SIGKILL
    assert len(staged_files(tmp_path)) == (point == "staged")
    log = Log()
    for number in (1, 2):
        log.record(log.txid(number, 1))
    before = Snapshot(2, log.winners)
    assert reader_at(tmp_path).multi_get_at([("man",), ("lost",)], before) == [2, None]
    task, driver = state_at(tmp_path, **options), state_at(tmp_path, **options)
    retry = log.txid(3, 2)
    staged = stage(task, retry, {"man": 1})
    assert len(staged_files(tmp_path)) == 1  # that of the attempt before is gone
    driver.publish(retry, staged)
    log.record(retry)
    assert staged_files(tmp_path) == []
    step(task, driver, log, 4, 2, {"man": 1, "lost": 5})
    assert values(reader_at(tmp_path), "man", "dog", "lost") == [4, 2, 5]
    at_end = Snapshot(4, log.winners)
    driver.recorded(at_end)
    driver.close()
    assert people_read(tmp_path) == dict(tuples_at(reader_at(tmp_path), at_end)) == {"man": 4, "dog": 2, "lost": 5}


def test_a_compaction_while_a_task_reads_the_log_hides_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, driver, log = *(state_at(tmp_path) for _ in range(3)), Log()
    for number in (1, 2):
        step(one, driver, log, number, 1, {"man": 1})
    assert one.read_sentinel() == log.expected
    step(other, driver, log, 3, 1, {"man": 1})
    reads, compactions = StateTable.notes, [driver._backing._maintenance]

    def noted(table: StateTable, count: int | None = None) -> Any:
        if compactions:
            compactions.pop().run(compact=True, checkpoint=False)  # after the table was refreshed
        return reads(table, count)

    monkeypatch.setattr(StateTable, "notes", noted)
    step(one, driver, log, 4, 1, {"man": 1})
    assert not compactions
    assert values(reader_at(tmp_path), "man") == [4]


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
    said = f"it lies in the folder of Delta table {outer.resolve()}, which deletes files"
    with pytest.raises(StateError, match=said):
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


def test_a_state_below_another_table_in_a_bucket_is_refused(bucket: Bucket) -> None:
    outer = DeltaState.opaque("s3://bucket/states", storage_options=storage(bucket))
    commit(outer.factory.make_state(WORDS, 0, 1), Log(), 1, 1, {"man": 1})
    inner = DeltaState.opaque("s3://bucket/states/a/words", storage_options=storage(bucket))
    with pytest.raises(StateError, match="it lies in the folder of Delta table s3://bucket/states, which"):
        inner.factory.make_state(WORDS, 0, 1).begin_commit(Log().txid(1, 1))


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
    said = f"this writer is batch 2 attempt 1 .* but batch {last} attempt 2 .*taken over"
    with pytest.raises(FencedError, match=said):
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
    state, log = begun_at(tmp_path)
    commit(state, log, 2, 1, {"man": 1})
    txid = log.txid(3, 1)
    state.begin_commit(txid)
    update(state, {"man": 1})
    DeltaTable(changes(tmp_path)).optimize.compact()
    with pytest.raises(BackendError, match="version 3 was committed meanwhile"):
        state.commit(txid)
    commit(state, log, 3, 2, {"man": 1})
    assert values(state_at(tmp_path), "man") == [3]
