"""Merging files, checkpoints and the deletion of old files, beside the commits."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from states.delta.data_files import DataFile
from states.delta.state_table import StateTable
from states.delta.upkeep import first_to_merge
from tests.states.delta.delta_states import (
    ROOT,
    WORDS,
    Log,
    begun_at,
    changes,
    commit,
    count_men,
    live_files,
    reader_at,
    state_at,
    update,
    values,
)  # fmt: skip
from trident.errors import BackendError
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel

pytestmark = pytest.mark.slow


def notes(path: Path) -> list[str]:
    """The kinds of compaction in the log, oldest first."""
    entries = DeltaTable(changes(path)).history()
    return [entry["trident.compaction"] for entry in reversed(entries) if "trident.compaction" in entry]


def log_files(path: Path, suffix: str) -> list[Path]:
    return sorted(found for found in (changes(path) / "_delta_log").iterdir() if found.name.endswith(suffix))


@pytest.mark.long
def test_compaction_keeps_everything_and_bounds_the_files(tmp_path: Path) -> None:
    dice, model = random.Random(7), dict[str, int]()
    state, log = state_at(tmp_path, compact_after_commits=16, fsync=False), Log()
    reader, most = reader_at(tmp_path), 0
    for number in range(1, 301):
        # First the keys grow (files are merged), then the same keys come again (rows are dropped).
        counts = {f"w{dice.randrange(number * 20 if number < 150 else 200)}": 1 for _ in range(10)}
        commit(state, log, number, 1, counts)
        for word, n in counts.items():
            model[word] = model.get(word, 0) + n
        if number % 10 == 0:
            state.wait_for_maintenance()
            most = max(most, live_files(tmp_path))
            words = dice.sample(sorted(model), 10)
            assert values(reader, *words) == [model[word] for word in words]
    state.close()
    assert most <= 20
    assert dict(state_at(tmp_path).get_tuples()) == model
    assert state_at(tmp_path).read_sentinel() == Sentinel("inc", 300, 1)
    assert set(notes(tmp_path)) == {"rows", "files"}
    assert DeltaTable(changes(tmp_path)).to_pyarrow_table().num_rows <= 3 * len(model)


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


def test_a_stale_writer_is_fenced_although_a_compaction_came_in_between(tmp_path: Path) -> None:
    old, log = state_at(tmp_path), Log()
    new = state_at(tmp_path, compact_after_commits=2, background_maintenance=False)
    commit(old, log, 1, 1, {"man": 1})
    paused = log.txid(2, 1)
    old.begin_commit(paused)
    update(old, {"man": 100})
    commit(new, log, 2, 2, {"man": 1})
    assert notes(tmp_path) == ["rows"]
    with pytest.raises(Exception, match="batch 2 attempt 2 .* has taken over"):
        old.commit(paused)
    assert values(state_at(tmp_path), "man") == [2]


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


def data_files(*rows: int) -> list[DataFile]:
    return [DataFile(f"{number}", 1, count, number, number) for number, count in enumerate(rows)]


@pytest.mark.parametrize(
    ("rows", "first"),
    [((), 0), ((5,), 1), ((5, 5), 0), ((100, 20, 5), 3), ((100, 20, 15), 1), ((100, 20, 5, 1, 1), 3), ((1, 100), 0)],
)
def test_the_newest_files_are_merged_so_that_each_left_is_twice_what_follows(rows: tuple[int, ...], first: int) -> None:
    assert first_to_merge(data_files(*rows)) == first


def test_the_files_that_are_left_grow_with_the_logarithm_of_the_rows() -> None:
    dice = random.Random(3)
    for _ in range(300):
        rows = [dice.randrange(1, 10 ** dice.randrange(1, 6)) for _ in range(dice.randrange(1, 200))]
        first = first_to_merge(data_files(*rows))
        left = [*rows[:first], *([sum(rows[first:])] if first < len(rows) else [])]
        assert len(left) <= 12
        assert all(left[n] >= 2 * sum(left[n + 1 :]) for n in range(first - 1))


@pytest.mark.parametrize("conf", [WORDS, StateConf(), StateConf(key_fields=(("k", "array<string>"),))])
def test_keys_of_every_kind_are_merged(tmp_path: Path, conf: StateConf) -> None:
    part: Any = ("a",) if conf.key_fields and "<" in conf.key_fields[0][1] else "a"
    state = state_at(tmp_path, conf, compact_after_commits=4, background_maintenance=False)
    for txid in range(1, 9):
        state.begin_commit(txid)
        state.multi_put([(part,)], [txid])
        state.commit(txid)
    assert DeltaTable(changes(tmp_path)).to_pyarrow_table().num_rows == 1
    assert state_at(tmp_path, conf).multi_get([(part,)]) == [8]


# ---- bounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_thousand_small_batches_leave_few_files_and_a_table_that_opens_at_once(tmp_path: Path) -> None:
    state = state_at(tmp_path, fsync=False, compact_after_commits=32, checkpoint_interval=16)
    log, model = Log(), dict[str, int]()
    for number in range(1, 1001):
        words = {f"w{number % 300}": 1, f"w{number * 7 % 300}": 1}
        commit(state, log, number, 1, words)
        for word in words:
            model[word] = model.get(word, 0) + 1
        if number in (600, 900):  # two days later
            state.wait_for_maintenance()
            for found in log_files(tmp_path, ""):
                os.utime(found, (found.stat().st_mtime - 48 * 3600,) * 2)
    state.wait_for_maintenance()  # it may be behind
    commit(state, log, 1001, 1, {"w0": 1})
    model["w0"] += 1
    state.wait_for_maintenance()
    state.close()
    assert live_files(tmp_path) <= 40
    assert len(log_files(tmp_path, ".json")) <= 180
    started = time.process_time()
    assert dict(state_at(tmp_path).get_tuples()) == model
    assert time.process_time() - started < 2
    newest = DeltaTable(changes(tmp_path)).version()
    last = max(int(found.name[:20]) for found in log_files(tmp_path, ".parquet"))
    assert newest - last <= 16 * 3  # what is read besides the checkpoint


def test_commits_themselves_write_no_checkpoint(tmp_path: Path) -> None:
    table = tmp_path / "table"
    state, log = begun_at(table, checkpoint_interval=2, background_maintenance=False)
    assert log_files(table, ".parquet") == []
    commit(state, log, 2, 1, {"man": 1})
    assert len(log_files(table, ".parquet")) == 1
    shutil.copytree(table, tmp_path / "copy")
    assert values(state_at(tmp_path / "copy"), "man") == [2]


def test_a_kind_without_transactions_is_merged_as_well(tmp_path: Path) -> None:
    state = state_at(tmp_path, kind=StateType.NON_TRANSACTIONAL, compact_after_commits=3, background_maintenance=False)
    log = Log()
    count_men(state, log, range(1, 8))
    assert values(state_at(tmp_path, kind=StateType.NON_TRANSACTIONAL), "man") == [7]
    assert notes(tmp_path) == ["rows", "rows"]
