"""The upkeep of a Delta state: compaction, old files, and rows that expire."""

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
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from states.delta import DeltaState, data_files, upkeep
from states.delta.data_files import DataFile
from states.delta.state_table import StateTable
from states.delta.upkeep import first_to_merge
from tests.harness.forked import die, exit_code_of
from tests.harness.topology_runs import RowsSpout
from tests.states.delta.delta_states import (
    ROOT,
    WORDS,
    Log,
    begun_at,
    changes,
    clean_log,
    commit,
    commit_until_killed,
    count_men,
    live_files,
    reader_at,
    records_in,
    state_at,
    update,
    values,
)
from tests.states.delta.test_delta_staging import stage, step
from trident import TopologyError, TridentTopology
from trident.errors import BackendError, ConfigError, StateError
from trident.operations import Count, TumblingCountWindow
from trident.spout import SpoutType
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel, Snapshot, Txid
from trident.testing import TopologyTestDriver

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
    state, log = begun_at(tmp_path, batches=4)
    DeltaTable(changes(tmp_path)).optimize.compact()
    clean_log(tmp_path)
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
        if not table.role.read_only:  # what is published is read by objects of its own
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
    begun_at(tmp_path, compact_after_commits=4, background_maintenance=False, batches=8)
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


def test_commits_themselves_write_no_checkpoint(tmp_path: Path) -> None:
    table = tmp_path / "table"
    state, log = begun_at(table, checkpoint_interval=2, background_maintenance=False)
    assert log_files(table, ".parquet") == []
    commit(state, log, 2, 1, {"man": 1})
    assert len(log_files(table, ".parquet")) == 1
    shutil.copytree(table, tmp_path / "copy")
    assert values(state_at(tmp_path / "copy"), "man") == [2]


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
    state, _ = begun_at(tmp_path, background_maintenance=False, **options, batches=60)
    assert [state.at(number).multi_get([("man",)]) for number in (1, 30, 60)] == [[1], [30], [60]]


def test_a_checkpoint_does_not_hold_the_files_that_were_merged(tmp_path: Path) -> None:
    begun_at(tmp_path, background_maintenance=False, **SMALL, batches=40)
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
    state, log = begun_at(tmp_path, **options, batches=3)
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


DAY = 86_400
STEP = DAY // 16


class Clock:
    """The time of the driver."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(upkeep, "time", SimpleNamespace(time=clock.time))
    return clock


class Batches:
    """Commits batches, a step of the clock apart."""

    def __init__(self, clock: Clock, state: Any) -> None:
        self.clock, self.state, self.log, self.number = clock, state, Log(), 0

    def run(self, counts: dict[str, int], times: int = 1) -> None:
        for _ in range(times):
            self.number += 1
            commit(self.state, self.log, self.number, 1, counts)
            self.clock.now += STEP


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", list(StateType))
def test_what_was_not_written_for_so_long_goes_for_every_reader_and_starts_again(
    tmp_path: Path, clock: Clock, kind: StateType
) -> None:
    batches = Batches(clock, state_at(tmp_path, kind=kind, ttl_s=DAY, background_maintenance=False))
    batches.run({"old": 1, "new": 1})
    batches.run({"new": 1}, 16)
    assert values(batches.state, "old", "new") == [1, 17]
    before = batches.number
    batches.run({"x": 1}, 2)
    assert values(batches.state, "old", "new", "x") == [None, 17, 2]
    for reader in (reader_at(tmp_path, kind), state_at(tmp_path, kind=kind)):
        assert sorted(reader.get_tuples()) == [("new", 17), ("x", 2)]
        assert values(reader, "old") == [None]
    assert values(reader_at(tmp_path, kind).at(before), "old", "new") == [1, 17]
    batches.state.close()
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table().column("word").to_pylist()) == ["new", "x"]
    batches.run({"old": 5})
    assert values(batches.state, "old") == [5]


@pytest.mark.long
def test_the_next_full_compaction_takes_it_out_of_the_files(tmp_path: Path, clock: Clock) -> None:
    batches = Batches(clock, state_at(tmp_path, ttl_s=DAY, compact_after_commits=4, background_maintenance=False))
    batches.run({"old": 1, "new": 1})
    batches.run({"new": 1}, 40)
    rows = DeltaTable(changes(tmp_path)).to_pyarrow_table().to_pylist()
    assert {row["word"] for row in rows} == {"new", None}  # None: the sentinels, which never expire
    assert batches.state.read_sentinel() == batches.log.expected


@pytest.mark.long
def test_marks_go_on_after_a_start_and_another_ttl(tmp_path: Path, clock: Clock) -> None:
    batches = Batches(clock, state_at(tmp_path, ttl_s=DAY))
    batches.run({"old": 1})
    batches.run({"x": 1}, 8)
    batches.state = state_at(tmp_path, ttl_s=DAY)
    batches.run({"x": 1}, 8)
    batches.state = state_at(tmp_path)  # nothing expires, and nothing is noted
    batches.run({"other": 1})
    clock.now += 30 * DAY
    batches.run({"x": 1})
    assert values(batches.state, "old", "other") == [1, 1]
    batches.state = state_at(tmp_path, ttl_s=DAY)
    batches.run({"x": 1}, 2)
    assert values(batches.state, "old", "other") == [None, 1]  # of the other it is not known since when it is there
    batches.run({"x": 1}, 17)
    assert values(batches.state, "other") == [None]


def test_rows_of_before_count_from_the_first_commit_with_a_ttl(tmp_path: Path, clock: Clock) -> None:
    batches = Batches(clock, state_at(tmp_path))
    batches.run({"old": 1})
    clock.now += 30 * DAY
    batches.state = state_at(tmp_path, ttl_s=DAY)
    batches.run({"x": 1}, 17)
    assert values(batches.state, "old") == [1]
    batches.run({"x": 1}, 2)
    assert values(batches.state, "old") == [None]


@pytest.mark.long
def test_marks_of_before_make_no_row_of_an_emptied_table_older(tmp_path: Path, clock: Clock) -> None:
    batches = Batches(clock, state_at(tmp_path, ttl_s=DAY))
    batches.run({"x": 1}, 20)
    batches.state.reset()
    batches.log = Log("another")
    batches.run({"old": 1})
    batches.run({"x": 1}, 15)
    assert values(batches.state, "old", "x") == [1, 15]
    batches.run({"x": 1}, 4)
    assert values(batches.state, "old", "x") == [None, 19]


def test_a_clock_that_goes_back_makes_no_row_older(tmp_path: Path, clock: Clock) -> None:
    batches = Batches(clock, state_at(tmp_path, ttl_s=DAY))
    batches.run({"x": 1}, 3)
    clock.now -= 10 * DAY
    batches.run({"old": 1})
    batches.run({"x": 1}, 20)
    assert values(batches.state, "old") == [1]


def test_what_tasks_stage_expires_by_the_clock_of_their_driver(tmp_path: Path, clock: Clock) -> None:
    task, driver, log = state_at(tmp_path, ttl_s=DAY), state_at(tmp_path, ttl_s=DAY), Log()
    step(task, driver, log, 1, 1, {"old": 1})
    for number in range(2, 20):
        clock.now += STEP
        stage(task, log.txid(number, 2 * number), {"x": 100})  # lost
        txid = log.txid(number, 2 * number + 1)
        clock.now -= 5 * DAY  # in the task
        staged = stage(task, txid, {"x": 1})
        clock.now += 5 * DAY
        driver.publish(txid, staged)
        log.record(txid)
        assert values(reader_at(tmp_path), "old") == [1 if number < 18 else None]
    assert values(reader_at(tmp_path), "x") == [18]


def test_a_commit_that_writes_a_row_keeps_it(tmp_path: Path, clock: Clock) -> None:
    batches = Batches(clock, state_at(tmp_path, ttl_s=DAY))
    batches.run({"old": 1, "other": 1})
    batches.run({"x": 1}, 16)
    batches.run({"old": 1})  # in the very commit that deletes what has expired
    assert values(batches.state, "old", "other") == [2, None]


def test_a_state_with_a_ttl_stays_in_memory_and_one_in_files_takes_none(tmp_path: Path, clock: Clock) -> None:
    log, words = Log(), {f"w{number}": 1 for number in range(30)}
    state = state_at(tmp_path / "a", ttl_s=DAY, max_keys_in_memory=5)
    for number in range(1, 4):
        commit(state, log, number, 1, words)
    assert state_at(tmp_path / "a", ttl_s=DAY)._backing.read_sentinel() == log.expected
    state, log = state_at(tmp_path / "b", max_keys_in_memory=5), Log()
    for number in range(1, 4):
        commit(state, log, number, 1, words)
    state.close()
    assert values(reader_at(tmp_path / "b"), "w3") == [3]
    with pytest.raises(ConfigError, match=r"ttl_s=86400 of state 'counts' .*: the state has outgrown memory"):
        state_at(tmp_path / "b", ttl_s=DAY).read_sentinel()


def test_what_cannot_expire_is_refused(tmp_path: Path) -> None:
    stream = TridentTopology("t").new_stream("s", RowsSpout("word: string", {}))
    with pytest.raises(TopologyError, match="expire 86400 seconds after they were written"):
        stream.window(TumblingCountWindow.of(3), DeltaState.opaque(tmp_path, ttl_s=DAY), "word", Count(), "n")


POINTS = ["process", "begin_commit:count", "put:count", "commit:count", "record"]
LIVES = [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 300))]


@pytest.mark.long
@pytest.mark.parametrize("seed", LIVES)
def test_a_row_goes_whole_after_its_time_and_never_comes_back(seed: int, tmp_path: Path, clock: Clock) -> None:
    """A batch may be tried with other words each time, hours later; what an attempt wrote that failed counts as a write."""
    draw, topology, keys = random.Random(seed), TridentTopology("t"), "abcdef"
    spec = DeltaState.opaque(
        tmp_path, ttl_s=DAY, fsync=False, background_maintenance=False, compact_after_commits=draw.choice([3, 50])
    )
    stream = topology.new_stream("s", RowsSpout("word: string", {}, SpoutType.OPAQUE))
    counts = stream.group_by("word").persistent_aggregate(spec, Count(), "count")
    expected, written = Counter[str](), dict[str, float]()
    with TopologyTestDriver(topology, max_batch_attempts=9) as driver:
        for _ in range(25):
            rows = [draw.choice(keys[: draw.choice([1, 2, 6])]) for _ in range(draw.randint(1, 4))]
            driver.feed("s", *rows)
            for _ in range(draw.choice([0, 0, 0, 1, 2])):
                point = draw.choice(POINTS)
                driver.fail_at(point)
                result = driver.step()
                assert result is not None
                assert not result.committed
                if point not in ("process", "begin_commit:count", "put:count"):
                    written.update(dict.fromkeys(rows, clock.now))
                rows = [draw.choice(keys) for _ in range(draw.randint(1, 4))]
                driver.replay("s", *rows)
                clock.now += draw.choice([1, STEP, DAY // 2])
            found = dict(zip(keys, driver.state(counts).multi_get(list(keys)), strict=True))
            for key, value in found.items():
                if value is None and expected[key]:
                    assert clock.now - written[key] >= DAY, (seed, key)
                    del expected[key]  # it starts again
                assert value == (expected[key] or None), (seed, key)
            driver.run()
            gone = [key for key in keys if key not in rows and driver.state(counts).multi_get([key]) == [None]]
            for key in gone:
                assert not expected[key] or clock.now - written[key] >= DAY, (seed, key)
                del expected[key]
            expected.update(rows)
            written.update(dict.fromkeys(rows, clock.now))
            assert dict(driver.state(counts).get_tuples()) == dict(+expected), seed
            clock.now += draw.choice([1, STEP, DAY // 3])
        for _ in range(20):
            driver.feed("s", "z")
            driver.run()
            clock.now += STEP
        assert dict(driver.state(counts).get_tuples()) == {"z": 20}
