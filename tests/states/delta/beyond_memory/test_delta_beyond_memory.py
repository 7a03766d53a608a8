"""A Delta state that is too large for memory: it tells what one in memory tells, whatever fails, and a start reads no rows."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from states.delta.beyond_memory.bucketed_base import BucketFile, BucketLimits, OpenedBucket
from states.delta.beyond_memory.merging import Merging, OpenedBase
from states.delta.state_table import StateTable
from states.delta.state_tables import PublishedTable
from tests.harness.store_commits import commit_by
from tests.states.delta.delta_states import Log, changes, commit, people_read, reader_at, state_at, update
from trident.errors import BackendError, FencedError, StateError, StateMismatchError
from trident.state import Snapshot, StateConf, StateType

pytestmark = pytest.mark.slow

WORDS = [f"w{number}" for number in range(60)]
OPTIONS: dict[str, Any] = {
    "max_keys_in_memory": 10,
    "fsync": False,
    "publish_every_s": 1000,
    "compact_after_commits": 4,
}


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("states.delta.beyond_memory.bucketed_base.BucketLimits", lambda: BucketLimits(8))


def large_at(path: Path, kind: StateType = StateType.OPAQUE, background: bool = False, **options: Any) -> Any:
    return state_at(path, kind=kind, **{**OPTIONS, "background_maintenance": background, **options})


def is_large(path: Path) -> bool:
    return DeltaTable(path).transaction_version("trident/merged") not in (None, -1)


def told(state: Any, at: Snapshot | None = None) -> dict[str, int]:
    """The values of all words: the newest, or those as of a committed batch."""
    keys = [(word,) for word in WORDS]
    found = state.multi_get(keys) if at is None else state.multi_get_at(keys, at)
    return {word: value for word, value in zip(WORDS, found, strict=True) if value is not None}


@pytest.mark.parametrize("field", ["_trident_hash", "_Trident_Attempt"])
def test_a_field_may_be_called_like_a_column_of_the_files(tmp_path: Path, field: str) -> None:
    conf = StateConf("words", "counts", ((field, "string"),), "bigint", value_field=field.lower())
    state, log = state_at(tmp_path, conf, **OPTIONS), Log()
    for number in (1, 2, 3):
        commit(state, log, number, 1, dict.fromkeys(WORDS, 1))
    state.close()
    assert is_large(tmp_path)
    for told_by in (state_at(tmp_path, conf), state_at(tmp_path, conf).at(3)):
        assert dict(told_by.get_tuples()) == dict.fromkeys(WORDS, 3)
    assert DeltaTable(tmp_path).to_pyarrow_table().column_names == [f"key_{field}", f"{field.lower()}_"]


def filled(path: Path, log: Log, batches: int = 8, **options: Any) -> tuple[Any, Counter[str]]:
    """A large state after some batches of a few words each."""
    state, model = large_at(path, **options), Counter[str]()
    for number in range(1, batches + 1):
        batch = {WORDS[(number * 7 + at) % len(WORDS)]: 1 for at in range(12)}
        commit(state, log, number, 0, batch)
        state.recorded(Snapshot(number, log.winners))
        model.update(batch)
    assert is_large(path)
    return state, model


class Broken:
    """Breaks the next call of a method once, before or after it does its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def once(self, owner: type, name: str, after: bool) -> None:
        whole: Callable[..., Any] = getattr(owner, name)

        def broken(*args: Any, **kwargs: Any) -> Any:
            self._monkeypatch.setattr(owner, name, whole)
            if after:
                whole(*args, **kwargs)
            raise BackendError(f"{name} broke {'after' if after else 'before'} its work")

        self._monkeypatch.setattr(owner, name, broken)


POINTS = [(PublishedTable, "move"), (StateTable, "replace"), (StateTable, "commit")]


def at_of(kind: StateType, number: int, log: Log) -> Snapshot | None:
    return Snapshot(number, log.winners) if kind is StateType.OPAQUE else None


@pytest.mark.long
@pytest.mark.parametrize("kind", [StateType.OPAQUE, StateType.TRANSACTIONAL])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))])
def test_any_schedule_of_crashes_counts_each_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, kind: StateType
) -> None:
    monkeypatch.setattr("trident.state.map_commits.REMOVAL_LAG", 3)
    dice, log, model, breaks = random.Random(f"{seed} {kind}"), Log(), Counter[str](), Broken(monkeypatch)
    state, number, attempt = large_at(tmp_path, kind, dice.random() < 0.5), 1, 0
    batch = dict.fromkeys(dice.sample(WORDS, 15), 1)
    while number <= 30:
        if dice.random() < 0.3:
            breaks.once(*dice.choice(POINTS), after=dice.random() < 0.5)
        txid, gone = log.txid(number, attempt), dice.sample(WORDS, 2) if number % 5 == 0 else []
        try:
            state.begin_commit(txid)
            update(state, batch)
            if kind is StateType.OPAQUE:  # what is removed is not the same in each attempt
                state.multi_remove([(word,) for word in gone])
            state.commit(txid)
            recorded = dice.random() < 0.8
        except StateError:
            recorded = False
        if recorded:
            log.record(txid)
            model.update(batch)
            for word in gone if kind is StateType.OPAQUE else []:
                del model[word]
            state.recorded(Snapshot(number, log.winners))
            number += 1
            batch = dict.fromkeys(dice.sample(WORDS, 15), 1)
            assert told(state, at_of(kind, number - 1, log)) == model, f"seed {seed}, after batch {number - 1}"
        else:
            attempt += 1
            if kind is StateType.OPAQUE:
                batch = dict.fromkeys(dice.sample(WORDS, 15), 1)  # a replay may differ
        if not recorded or dice.random() < 0.2:
            if recorded and dice.random() < 0.5:
                state.close()
                if is_large(tmp_path):
                    assert people_read(tmp_path) == model
            state.wait_for_maintenance()
            state = large_at(tmp_path, kind, dice.random() < 0.5)
            assert state.read_sentinel() is not None or number == 1
    monkeypatch.undo()
    state.wait_for_maintenance()
    last = large_at(tmp_path, kind)
    commit(last, log, number, attempt, {"w0": 1})
    model["w0"] += 1
    last.recorded(Snapshot(number, log.winners))
    last.close()
    assert is_large(tmp_path)
    assert people_read(tmp_path) == model
    assert told(large_at(tmp_path, kind), at_of(kind, number, log)) == model


def test_a_start_reads_no_rows_and_a_commit_those_of_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    state, model = filled(tmp_path, log)
    state.close()
    opened, read = list[str](), list[Any]()
    open_bucket, scan = OpenedBucket.__init__, StateTable.scan

    def noted(self: OpenedBucket, file: BucketFile, *more: Any) -> None:
        opened.append(file.path)
        open_bucket(self, file, *more)

    def noted_scan(self: StateTable, filter: Any = None, columns: Any = None, files: Any = None) -> Any:
        read.append(columns)
        return scan(self, filter, columns, files)

    monkeypatch.setattr(OpenedBucket, "__init__", noted)
    monkeypatch.setattr(StateTable, "scan", noted_scan)
    state = large_at(tmp_path)
    assert state.read_sentinel() == log.expected
    assert opened == []
    assert read == [["_sentinel", "_seq"]]
    commit(state, log, 9, 0, {"w1": 5})
    assert 1 <= len(opened) <= 8  # the bucket of one key; a merge rewrites what has changed
    assert told(state) == model + Counter(w1=5)


@pytest.mark.long
def test_changes_leave_their_table_once_two_bases_hold_them(tmp_path: Path) -> None:
    log = Log()
    state, model = filled(tmp_path, log, 40)
    rows = DeltaTable(changes(tmp_path)).to_pyarrow_table().num_rows
    assert rows < 12 * 40 / 4
    assert told(state) == model


@pytest.mark.long
def test_a_base_of_an_earlier_time_is_refused(tmp_path: Path) -> None:
    log = Log()
    state, _ = filled(tmp_path, log, 20)
    state.close()
    table = DeltaTable(tmp_path)
    for version in range(table.version() - 12, table.version() + 1):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(StateError, match=r"table at its path is an older one, .* Restore its newest version"):
        commit(large_at(tmp_path), log, 21, 0, {"w1": 1})


@pytest.mark.sample(1)
@pytest.mark.parametrize("change", ["delete", "optimize"])
def test_a_base_that_another_program_changed_is_refused_until_it_is_restored(tmp_path: Path, change: str) -> None:
    log = Log()
    state, model = filled(tmp_path, log)
    state.close()
    table = DeltaTable(tmp_path)
    version = table.version()
    if change == "delete":
        table.delete("word = 'w7'")
    else:
        table.optimize.compact()
    with pytest.raises(StateError, match=r"changed by another program .* with Delta's RESTORE"):
        commit(large_at(tmp_path), log, 9, 0, {"w1": 1})
    DeltaTable(tmp_path).restore(version)
    state = large_at(tmp_path)
    commit(state, log, 9, 0, {"w1": 1})
    assert told(state) == model + Counter(w1=1)


def test_a_base_that_cannot_be_restored_is_begun_again_as_the_start_says(tmp_path: Path) -> None:
    table, log = tmp_path / "table", Log()
    state, _ = filled(table, log)
    state.close()
    version = DeltaTable(table).version()
    DeltaTable(table).optimize.compact()
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(Exception, match="missing file"):
        DeltaTable(table).restore(version)
    with pytest.raises(
        StateError, match=r"If its files were deleted \(VACUUM\), move the folder of the state away and start"
    ):
        commit(large_at(table), log, 9, 0, {"w1": 1})
    table.rename(tmp_path / "away")
    with pytest.raises(StateMismatchError, match="no commit at all"):  # a start tells more
        commit(large_at(table), log, 9, 0, {"w1": 1})


def test_a_full_disk_fails_the_batch_at_which_a_state_outgrows_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    state, log, counts = large_at(tmp_path), Log(), dict.fromkeys(WORDS, 1)
    commit(state, log, 1, 0, counts)
    with monkeypatch.context() as patch:
        patch.setattr("states.delta.beyond_memory.bucketed_base.write_bucket", full)
        with pytest.raises(
            BackendError, match=r"cannot write files of .* No space left .*; free some space on the disk"
        ):
            commit(state, log, 2, 0, counts)
    assert not is_large(tmp_path)
    commit(state, log, 2, 1, counts)
    assert is_large(tmp_path)
    assert told(state) == dict.fromkeys(WORDS, 2)


def test_a_file_of_the_base_that_is_gone_is_named_until_it_is_back(tmp_path: Path) -> None:
    log = Log()
    state, model = filled(tmp_path, log)
    state.close()
    files = list(tmp_path.glob("part-b*.parquet"))
    for file in files:
        file.rename(file.with_suffix(".away"))
    for one in (large_at(tmp_path), reader_at(tmp_path)):
        with pytest.raises(BackendError, match=r"cannot read Delta table .*\.parquet.* bring it back from a copy"):
            told(one)
    for file in files:
        file.with_suffix(".away").rename(file)
    assert told(large_at(tmp_path)) == model


def test_a_state_that_was_emptied_is_in_memory_again(tmp_path: Path) -> None:
    state, _ = filled(tmp_path, Log())
    state.reset()
    assert not is_large(tmp_path)
    assert people_read(tmp_path) == {}
    log = Log("another")
    commit(state, log, 1, 0, {"w1": 1})
    state.close()
    state = large_at(tmp_path)
    assert state.read_sentinel() == log.expected
    assert told(state) == {"w1": 1}
    commit(state, log, 2, 0, dict.fromkeys(WORDS, 1))
    commit(state, log, 3, 0, {"w1": 1})
    assert is_large(tmp_path)
    assert told(state) == dict.fromkeys(WORDS, 1) | {"w1": 3}


def test_a_merge_that_ended_before_the_state_was_emptied_is_not_used_after_it(tmp_path: Path) -> None:
    state, _ = filled(tmp_path, Log(), background=True, publish_every_s=1)
    merging = state._backing._publishing._merging
    state.wait_for_maintenance()
    log = Log("inc", 1 << 20)
    merging._not_before = 0.0
    commit(state, log, 9, 0, dict.fromkeys(WORDS[:20], 1))
    state.recorded(Snapshot(9, log.winners))
    assert merging.is_running
    state.reset()
    log, model = Log("another"), Counter[str]()
    for number in range(1, 6):
        commit(state, log, number, 0, dict.fromkeys(WORDS[:15], 1))
        model.update(WORDS[:15])
        state.recorded(Snapshot(number, log.winners))
        assert told(state) == model
    assert is_large(tmp_path)


def test_a_compaction_before_the_first_merge_of_a_writer_forgets_no_deletion(tmp_path: Path) -> None:
    log, kind = Log(), StateType.TRANSACTIONAL
    state, model = filled(tmp_path, log, kind=kind)
    state.close()
    batch = dict.fromkeys(WORDS[:12], 1)
    commit(large_at(tmp_path, kind), log, 9, 0, batch, record=False)
    gone = [word for word in sorted(model) if word not in batch][:10]
    state = large_at(tmp_path, kind, compact_after_commits=2)
    commit_by(state, log, 9, state._backing.multi_delete, [(word,) for word in gone], attempt=1, record=False)
    assert "trident.compaction" in DeltaTable(changes(tmp_path)).history(1)[0]
    wanted = {word: count for word, count in (model + Counter(batch)).items() if word not in gone}
    assert told(large_at(tmp_path, kind)) == wanted


def test_the_newest_row_of_a_key_stays_if_another_program_merged_files(
    tmp_path: Path,
) -> None:
    log = Log()
    state, model = filled(tmp_path, log, compact_after_commits=1000)
    for number in range(9, 14):
        commit(state, log, number, 0, {"w1": 1, WORDS[number]: 1})
        model.update(["w1", WORDS[number]])
    table = large_at(tmp_path)._backing._table
    table.refresh()
    files = table.files()
    pair = [files[-4], files[-1]]  # as a program does that packs files by their sizes
    table.replace(table.scan(None, None, pair), pair, ("another", 1), {"trident.compaction": "files"})
    assert told(large_at(tmp_path)) == model


def test_a_merge_of_a_writer_that_was_replaced_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    state, model = filled(tmp_path, log)
    state.close()
    old, goes_on, waits = large_at(tmp_path, background=True), threading.Event(), threading.Event()
    move = PublishedTable.move

    def paused(self: PublishedTable, *args: Any) -> Any:
        if not goes_on.is_set() and self is old._backing._publishing._merging._published:
            waits.set()
            assert goes_on.wait(60)
        return move(self, *args)

    monkeypatch.setattr(PublishedTable, "move", paused)
    number = 8
    while not waits.is_set():
        number += 1
        commit(old, log, number, 0, {WORDS[number % 60]: 1, "w0": 1})
        model.update([WORDS[number % 60], "w0"])
        old.recorded(Snapshot(number, log.winners))
        waits.wait(0.05)
    log.epoch = 1 << 20  # the successor's
    new = large_at(tmp_path)
    for _ in range(6):
        number += 1
        commit(new, log, number, 0, dict.fromkeys(WORDS[:20], 1))
        model.update(WORDS[:20])
    goes_on.set()
    old.wait_for_maintenance()
    assert told(new) == model
    with pytest.raises((FencedError, StateError)):
        commit(old, Log("inc"), number + 1, 0, {"w0": 1})
    number += 1
    commit(new, log, number, 0, {"w0": 1})
    new.recorded(Snapshot(number, log.winners))
    new.close()
    assert people_read(tmp_path) == model + Counter(w0=1)


def test_listing_keys_goes_bucket_by_bucket(tmp_path: Path) -> None:
    state, model = filled(tmp_path, Log())
    assert sorted(state.get_tuples()) == sorted((word, count) for word, count in model.items())


@pytest.mark.long
def test_batches_of_the_past_are_read_over_the_base_of_their_time(tmp_path: Path) -> None:
    log, state, models = Log(), large_at(tmp_path), list[Counter[str]]([Counter()])
    for number in range(1, 25):
        batch = dict.fromkeys(WORDS[number * 3 % 50 : number * 3 % 50 + 8], 1)
        commit(state, log, number, 0, batch)
        state.recorded(Snapshot(number, log.winners))
        models.append(models[-1] + Counter(batch))
    assert is_large(tmp_path)
    for number in range(1, 25):
        past = state.at(number if number < 24 else Snapshot(24, log.winners))
        assert dict(past.get_tuples()) == models[number]
        assert past.multi_get([(word,) for word in WORDS]) == [models[number].get(word) for word in WORDS]


@pytest.mark.long
def test_memory_is_bounded_if_batches_are_faster_than_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, goes_on, waits = Log(), threading.Event(), list[int]()
    monkeypatch.setattr(OpenedBase, "bytes_of_changes", 600)
    wait, move = Merging.wait, PublishedTable.move

    def noted_wait(self: Merging) -> None:
        waits.append(1)
        goes_on.set()
        wait(self)
        goes_on.clear()

    def endless(self: PublishedTable, before: Any, *args: Any) -> None:  # unless the commits wait for it
        assert before is None or goes_on.wait(60)  # the first base is a commit's
        move(self, before, *args)

    monkeypatch.setattr(Merging, "wait", noted_wait)
    monkeypatch.setattr(PublishedTable, "move", endless)
    state, model = filled(tmp_path, log, 20, background=True)
    assert len(waits) > 2
    assert told(state) == model
    state.close()
