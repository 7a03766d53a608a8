"""Merging files, checkpoints and the deletion of old files and versions, beside the commits: their number is bounded."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from states.delta import data_files
from states.delta.data_files import DataFile
from states.delta.state_table import StateTable
from states.delta.upkeep import first_to_merge
from tests.harness.forked import die, exit_code_of
from tests.states.delta.delta_states import (
    ROOT,
    WORDS,
    Log,
    begun_at,
    changes,
    commit,
    commit_until_killed,
    count_men,
    live_files,
    reader_at,
    records_in,
    state_at,
    update,
    values,
)  # fmt: skip
from trident.errors import BackendError, StateError
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel, Snapshot, Txid

pytestmark = pytest.mark.slow


def notes(path: Path) -> list[str]:
    """The kinds of compaction in the log, oldest first."""
    entries = DeltaTable(changes(path)).history()
    return [entry["trident.compaction"] for entry in reversed(entries) if "trident.compaction" in entry]


def log_files(path: Path, suffix: str) -> list[Path]:
    return sorted(found for found in (changes(path) / "_delta_log").iterdir() if found.name.endswith(suffix))


SMALL: dict[str, Any] = {"compact_after_commits": 8, "checkpoint_interval": 8, "retained_versions": 20, "fsync": False}


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "most_live", "most_at_all"),
    # 20 versions and up to a checkpoint more, each with an entry and a file; checkpoints, merged files, and the hint
    [({"compact_after_commits": 16, "fsync": False}, 20, 2000), ({"background_maintenance": False, **SMALL}, 20, 100)],
    ids=["all versions", "few versions"],
)
def test_compaction_keeps_everything_and_bounds_the_files(
    tmp_path: Path, options: dict[str, Any], most_live: int, most_at_all: int
) -> None:
    dice, model = random.Random(7), dict[str, int]()
    state, log = state_at(tmp_path, **options), Log()
    reader, found = reader_at(tmp_path), list[tuple[int, int]]()
    for number in range(1, 301):
        # First the keys grow (files are merged), then the same keys come again (rows are dropped).
        counts = {f"w{dice.randrange(number * 20 if number < 150 else 200)}": 1 for _ in range(10)}
        commit(state, log, number, 1, counts)
        for word, n in counts.items():
            model[word] = model.get(word, 0) + n
        if number % 10 == 0:
            state.wait_for_maintenance()
            found.append((live_files(tmp_path), files_of(tmp_path)))
            words = dice.sample(sorted(model), 10)
            assert values(reader, *words) == [model[word] for word in words]
    state.close()
    most = [max(each) for each in zip(*found, strict=True)]
    assert most[0] <= most_live
    assert most[1] <= most_at_all
    assert dict(state_at(tmp_path).get_tuples()) == model
    assert state_at(tmp_path).read_sentinel() == Sentinel("inc", 300, 1)
    assert DeltaTable(changes(tmp_path)).to_pyarrow_table().num_rows <= 3 * len(model)
    if most_at_all > 100:
        assert set(notes(tmp_path)) == {"rows", "files"}


@pytest.mark.parametrize("background", [True, False])
def test_the_sentinel_survives_a_compaction_right_after_its_commit(tmp_path: Path, background: bool) -> None:
    state, log = state_at(tmp_path, compact_after_commits=1, background_maintenance=background), Log()
    for number in range(1, 6):
        commit(state, log, number, 1, {"man": 1})
        if background:
            state.wait_for_maintenance()
        assert live_files(tmp_path) == 1
        assert state_at(tmp_path).read_sentinel() == log.expected
    assert DeltaTable(changes(tmp_path)).history(1)[0]["trident.compaction"] == "rows"


def test_the_sentinel_survives_compaction_by_other_programs_and_log_clean_up(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    count_men(state, log, range(1, 5))
    table = DeltaTable(changes(tmp_path))
    table.optimize.compact()
    table.create_checkpoint()
    for entry in sorted((changes(tmp_path) / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    assert state_at(tmp_path).read_sentinel() == log.expected
    commit(state, log, 5, 1, {"man": 1})
    assert values(state_at(tmp_path), "man") == [5]


def test_files_that_no_version_refers_to_are_deleted_once_they_are_old(tmp_path: Path) -> None:
    state = state_at(tmp_path, compact_after_commits=1, vacuum_after_hours=1, background_maintenance=False)
    log = Log()
    commit(state, log, 1, 1, {"man": 1})
    folder = changes(tmp_path)
    old, young = folder / "part-left-over.snappy.parquet", folder / "part-under-way.snappy.parquet"
    for orphan in (old, young):
        shutil.copy(DeltaTable(changes(tmp_path)).file_uris()[0], orphan)
    os.utime(old, (old.stat().st_mtime - 7200,) * 2)
    count_men(state, log, range(2, 12))
    assert (old.exists(), young.exists()) == (False, True)
    assert values(state_at(tmp_path), "man") == [11]


# ---- beside the commits ---------------------------------------------------------------------------------------------


class Gate:
    """Holds compactions right before their Delta commit, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        replace = StateTable.replace

        def held(table: StateTable, *arguments: Any) -> None:
            self.reached.set()
            assert self.open.wait(30)
            replace(table, *arguments)

        monkeypatch.setattr(StateTable, "replace", held)


def test_no_thread_starts_before_a_compaction_is_due_and_close_ends_it(tmp_path: Path) -> None:
    def threads() -> int:
        return sum(thread.name.endswith(": maintenance") for thread in threading.enumerate())

    before, everything = threads(), threading.active_count()
    state, log = state_at(tmp_path, compact_after_commits=3), Log()
    for number in (1, 2):
        commit(state, log, number, 1, {"man": 1})
        assert threads() == before
    commit(state, log, 3, 1, {"man": 1})
    state.close()
    assert threading.active_count() <= everything
    assert notes(tmp_path) == ["rows"]
    assert live_files(tmp_path) == 1


def test_batches_commit_while_a_compaction_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, log = Gate(monkeypatch), Log()
    state = state_at(tmp_path, compact_after_commits=4)
    for number in range(1, 5):
        commit(state, log, number, 1, {"man": 1, f"w{number}": 1})
    assert gate.reached.wait(30)
    for number in range(5, 8):
        commit(state, log, number, 1, {"man": 1, f"w{number}": 1})
    gate.open.set()
    state.wait_for_maintenance()
    assert live_files(tmp_path) == 4  # the merged one, and the three that came in between
    commit(state, log, 8, 1, {"man": 1})
    for one in (state, state_at(tmp_path), reader_at(tmp_path)):
        assert values(one, "man", "w1", "w7") == [8, 1, 1]
    state.close()


def test_a_compaction_between_begin_and_commit_of_a_batch_does_not_fail_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, log = Gate(monkeypatch), Log()
    state = state_at(tmp_path, compact_after_commits=4)
    count_men(state, log, range(1, 5))
    assert gate.reached.wait(30)
    txid = log.txid(5, 1)
    state.begin_commit(txid)
    update(state, {"man": 1})
    gate.open.set()
    state.wait_for_maintenance()
    assert notes(tmp_path) == ["rows"]
    state.commit(txid)
    assert values(state_at(tmp_path), "man") == [5]
    state.close()


def test_the_index_survives_a_compaction_without_reading_the_table_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, log = begun_at(tmp_path, compact_after_commits=3, background_maintenance=False)
    scans: list[StateTable] = []
    scan = StateTable.scan

    def noted(table: StateTable, *rest: Any) -> Any:
        if not table._opening.role.read_only:  # what is published is read by objects of its own
            scans.append(table)
        return scan(table, *rest)

    monkeypatch.setattr(StateTable, "scan", noted)
    count_men(state, log, range(2, 10))
    assert len(notes(tmp_path)) >= 2
    assert state.map_state.backing._table not in scans
    assert len(scans) == len(notes(tmp_path))  # only the compactions themselves read


def test_a_compaction_that_fails_fails_no_batch_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replace, failures = StateTable.replace, [BackendError("no space left")]

    def failing(table: StateTable, *arguments: Any) -> None:
        if failures:
            raise failures.pop()
        replace(table, *arguments)

    monkeypatch.setattr(StateTable, "replace", failing)
    state, log = state_at(tmp_path, compact_after_commits=4, background_maintenance=False), Log()
    count_men(state, log, range(1, 9))
    assert "maintenance of state 'counts' partition 0" in caplog.text
    assert notes(tmp_path) == ["rows"]
    assert values(state_at(tmp_path), "man") == [8]


def test_a_reset_waits_for_the_compaction_and_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, log = Gate(monkeypatch), Log()
    state = state_at(tmp_path, compact_after_commits=2)
    count_men(state, log, (1, 2))
    assert gate.reached.wait(30)
    threading.Timer(0.1, gate.open.set).start()
    state.reset()
    assert values(state_at(tmp_path), "man") == [None]
    assert DeltaTable(changes(tmp_path)).to_pyarrow_table().num_rows == 0


@pytest.mark.long
def test_a_process_that_ends_without_close_ends_in_order(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.states.delta.delta_states import *\n"
        "state, log = state_at(Path(sys.argv[1]), compact_after_commits=2), Log()\n"
        "for number in range(1, 20): commit(state, log, number, 1, {str(n): 1 for n in range(2000)})\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert values(state_at(tmp_path), "7") == [19]


# ---- what is merged -------------------------------------------------------------------------------------------------


def files_of_rows(*rows: int) -> list[DataFile]:
    return [DataFile(f"{number}", 1, count, number, number) for number, count in enumerate(rows)]


@pytest.mark.parametrize(
    ("rows", "first"),
    [((), 0), ((5,), 1), ((5, 5), 0), ((100, 20, 5), 3), ((100, 20, 15), 1), ((100, 20, 5, 1, 1), 3), ((1, 100), 0)],
)
def test_the_newest_files_are_merged_so_that_each_left_is_twice_what_follows(rows: tuple[int, ...], first: int) -> None:
    assert first_to_merge(files_of_rows(*rows)) == first


def test_the_files_that_are_left_grow_with_the_logarithm_of_the_rows() -> None:
    dice = random.Random(3)
    for _ in range(300):
        rows = [dice.randrange(1, 10 ** dice.randrange(1, 6)) for _ in range(dice.randrange(1, 200))]
        first = first_to_merge(files_of_rows(*rows))
        left = [*rows[:first], *([sum(rows[first:])] if first < len(rows) else [])]
        assert len(left) <= 12
        assert all(left[n] >= 2 * sum(left[n + 1 :]) for n in range(first - 1))


OF_LISTS = StateConf(key_fields=(("k", "array<string>"),))


@pytest.mark.parametrize(
    ("conf", "kind"),
    [*((conf, StateType.OPAQUE) for conf in (WORDS, StateConf(), OF_LISTS)), (WORDS, StateType.NON_TRANSACTIONAL)],
)
def test_keys_and_states_of_every_kind_are_merged(tmp_path: Path, conf: StateConf, kind: StateType) -> None:
    part: Any = ("a",) if conf.key_fields and "<" in conf.key_fields[0][1] else "a"
    state = state_at(tmp_path, conf, kind, compact_after_commits=4, background_maintenance=False)
    for txid in range(1, 9):
        state.begin_commit(txid)
        state.multi_put([(part,)], [txid])
        state.commit(txid)
    assert DeltaTable(changes(tmp_path)).to_pyarrow_table().num_rows == 1
    assert state_at(tmp_path, conf, kind).multi_get([(part,)]) == [8]


# ---- bounds ---------------------------------------------------------------------------------------------------------


def test_commits_themselves_write_no_checkpoint(tmp_path: Path) -> None:
    table = tmp_path / "table"
    state, log = begun_at(table, checkpoint_interval=2, background_maintenance=False)
    assert log_files(table, ".parquet") == []
    commit(state, log, 2, 1, {"man": 1})
    assert len(log_files(table, ".parquet")) == 1
    shutil.copytree(table, tmp_path / "copy")
    assert values(state_at(tmp_path / "copy"), "man") == [2]


# ---- old versions -------------------------------------------------------------------------------------------------------


def files_of(path: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(changes(path)))


@pytest.mark.long
def test_batches_of_the_versions_kept_can_be_read_and_the_others_are_named(tmp_path: Path) -> None:
    state, log = state_at(tmp_path, background_maintenance=False, **SMALL), Log()
    for number in range(1, 41):
        commit(state, log, number, 1, {"man": 1, f"w{number}": 1})
    then = state.at(30)
    count_men(state, log, range(41, 101))
    assert then.multi_get([("man",), ("w30",), ("w31",)]) == [30, 1, None]  # it was read before
    # A compaction is a version as well.
    assert [state.at(number).multi_get([("man",)]) for number in range(84, 101)] == [[n] for n in range(84, 101)]
    with pytest.raises(StateError, match="as of batch 30: it is no longer retained.* Raise retained_versions, "):
        state.at(30)
    assert state.at(Snapshot(100, log.winners)).multi_get([("man",)]) == [100]


@pytest.mark.long
def test_without_the_bound_all_versions_of_the_hours_are_kept(tmp_path: Path) -> None:
    options = {**SMALL, "retained_versions": None}
    state, log = state_at(tmp_path, background_maintenance=False, **options), Log()
    count_men(state, log, range(1, 61))
    assert [state.at(number).multi_get([("man",)]) for number in (1, 30, 60)] == [[1], [30], [60]]


def test_a_checkpoint_does_not_hold_the_files_that_were_merged(tmp_path: Path) -> None:
    state, log = state_at(tmp_path, background_maintenance=False, **SMALL), Log()
    count_men(state, log, range(1, 41))
    newest = max((changes(tmp_path) / "_delta_log").glob("*.checkpoint.parquet"))
    assert pq.read_table(newest)["remove"].null_count == pq.read_table(newest).num_rows


@pytest.mark.long
def test_files_that_another_program_brought_back_stay(tmp_path: Path) -> None:
    state, log = state_at(tmp_path, background_maintenance=False, **SMALL), Log()
    for number in range(1, 9):
        commit(state, log, number, 1, {f"w{number}": 1})
    DeltaTable(changes(tmp_path)).restore(8)  # before the files were merged
    count_men(state, log, range(9, 100))
    assert not (changes(tmp_path) / "_delta_log" / f"{9:020}.json").exists()
    assert values(reader_at(tmp_path), "man", *(f"w{n}" for n in range(1, 9))) == [91, *[1] * 8]


def test_a_file_that_was_replaced_only_now_is_not_deleted_for_its_age(tmp_path: Path) -> None:
    options: dict[str, Any] = {"compact_after_commits": 4, "vacuum_after_hours": 1, "background_maintenance": False}
    state, log = state_at(tmp_path, **options), Log()
    count_men(state, log, range(1, 4))
    for file in changes(tmp_path).glob("*.parquet"):
        os.utime(file, (file.stat().st_mtime - 7200,) * 2)
    for number in range(4, 41):  # files are deleted after every eighth compaction
        commit(state, log, number, 1, {"man": 1})
    assert [state.at(number).multi_get([("man",)]) for number in (1, 3, 40)] == [[1], [3], [40]]


OPTIONS: dict[str, Any] = {"compact_after_commits": 3, "checkpoint_interval": 2, "retained_versions": 10}


def state_after(records: list[tuple[int, int]]) -> dict[str, int]:
    model = Counter[str]()
    for number, attempt in records:
        model.update({"all": 1, f"attempt {attempt}": 1, f"w{number % 5}": 1})
    return model


def die_before_a_deletion(path: Path, records: Path, attempt: int, deletions: int) -> None:
    """Commit batches, and die right before the n-th file of old versions is deleted."""
    left, delete = itertools.count(deletions, -1), data_files.delete_files

    def dies(system: Any, names: Any) -> None:
        for name in names:
            if next(left) == 0:
                die()
            delete(system, [name])

    data_files.delete_files = dies
    state = state_at(path, background_maintenance=False, **OPTIONS)
    commit_until_killed(state, records, attempt)


@pytest.mark.long
@pytest.mark.parametrize("deletions", [(0, 1), (2, 9), (30, 61)])
def test_a_kill_between_two_deletions_leaves_the_rest_to_the_next_writer(
    tmp_path: Path, deletions: tuple[int, ...]
) -> None:
    path, records, log, done = tmp_path / "state", tmp_path / "records", Log(), list[tuple[int, int]]()
    for attempt, number in enumerate(deletions, 1):
        assert exit_code_of(die_before_a_deletion, path, records, attempt, number) == -signal.SIGKILL
        # It came after the commit of a batch and before its record, so that batch counts as never written.
        done, log = records_in(records), Log()
        for each in done:
            log.record(Txid(*each, incarnation=log.incarnation))
        at = state_at(path).at(Snapshot(len(done), log.winners))
        assert dict(at.get_tuples()) == state_after(done)
    state = state_at(path, background_maintenance=False, **OPTIONS)
    for number in range(len(done) + 1, len(done) + 41):
        commit(state, log, number, 9, {"all": 1})
    assert values(reader_at(path), "all") == [len(done) + 40]
    assert files_of(path) <= 70
