"""The number of a table's versions and files is bounded, however fast batches come, and everybody reads what is right."""

from __future__ import annotations

import itertools
import os
import random
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from states.delta import data_files
from tests.harness.forked import die, exit_code_of
from tests.states.delta.delta_states import (
    Log,
    changes,
    commit,
    commit_until_killed,
    count_men,
    reader_at,
    records_in,
    state_at,
    update,
    values,
)
from tests.states.delta.test_delta_published import state_after
from trident.errors import FencedError, StateError
from trident.state.txid import Snapshot, Txid

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {"compact_after_commits": 8, "checkpoint_interval": 8, "retained_versions": 20, "fsync": False}


def files_of(path: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(changes(path)))


@pytest.mark.long
def test_however_many_batches_there_were_the_folder_holds_the_files_of_the_last_ones(tmp_path: Path) -> None:
    state, log, model, most = state_at(tmp_path, background_maintenance=False, **SMALL), Log(), dict[str, int](), 0
    commit(state, log, 1, 1, {"w1": 1})
    reader, dice = reader_at(tmp_path), random.Random(5)
    assert values(reader, "w1") == [1]
    model["w1"] = 1
    for number in range(2, 301):
        word = f"w{dice.randrange(50)}"
        commit(state, log, number, 1, {word: 1})
        model[word] = model.get(word, 0) + 1
        most = max(most, files_of(tmp_path))
        if number % 50 == 0:
            assert values(reader, *model) == list(model.values())
    # 20 versions and up to a checkpoint more, each with an entry and a file; checkpoints, merged files, and the hint
    assert most <= 100
    assert dict(state_at(tmp_path).get_tuples()) == model
    assert state_at(tmp_path).read_sentinel() == log.expected


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


def test_a_writer_that_was_replaced_is_fenced_though_its_version_is_gone(tmp_path: Path) -> None:
    old, new, log = state_at(tmp_path), state_at(tmp_path, background_maintenance=False, **SMALL), Log()
    commit(old, log, 1, 1, {"man": 1})
    paused = log.txid(2, 1)
    old.begin_commit(paused)
    update(old, {"man": 100})
    count_men(new, log, range(2, 61), 2)
    assert not (changes(tmp_path) / "_delta_log" / f"{2:020}.json").exists()
    with pytest.raises(FencedError):
        old.commit(paused)
    assert values(reader_at(tmp_path), "man") == [60]


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
    commit_until_killed(state, records, attempt, publishes=False)


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
        assert dict(at.get_tuples()) == state_after(done, len(done))
    state = state_at(path, background_maintenance=False, **OPTIONS)
    for number in range(len(done) + 1, len(done) + 41):
        commit(state, log, number, 9, {"all": 1})
    assert values(reader_at(path), "all") == [len(done) + 40]
    assert files_of(path) <= 70
