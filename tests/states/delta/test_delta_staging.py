"""A batch that a task stages and the driver publishes: one transaction, by the driver alone, whatever was lost on the way."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from states.delta import DeltaState
from states.delta.index import IndexedValues
from states.delta.staging import STAGED
from states.delta.state_table import StateTable
from tests.harness.crashing_stores import tuples_at
from tests.harness.forked import die, exit_code_of
from tests.states.delta.delta_states import (
    Log,
    changes,
    commit,
    people_read,
    reader_at,
    state_at,
    update,
    values,
    version_of,
)
from trident.errors import BackendError, FencedError, SecondRunError
from trident.state.txid import Snapshot, Txid

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
