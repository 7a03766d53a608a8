"""A Delta state that is too large for memory: it tells what one in memory tells, whatever fails and whatever is declared."""

import errno
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.delta.beyond_memory import bucketed_base
from states.delta.beyond_memory.bucketed_base import BucketedBase, BucketFile
from states.delta.index import Index
from states.delta.publishing import Publishing
from states.delta.state_table import StateTable
from states.delta.state_tables import PublishedTable
from tests.harness.store_commits import commit_by
from tests.harness.topology_runs import start
from tests.states.delta.delta_states import Log, changes, close_after, commit, people_read, reader_at, state_at, update
from trident import TridentError, TridentTopology, open_state, verify_state
from trident.errors import BackendError, FencedError, StateError, StateMismatchError, TopologyError
from trident.operations import Count, Max, Min, Sum
from trident.run.loop import BatchLoop
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
    monkeypatch.setattr(bucketed_base, "MOST_ROWS", 8)


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


def filled(path: Path, batches: int = 8, log: Log | None = None, **options: Any) -> tuple[Any, Log, Counter[str]]:
    """A large state after some batches of a few words each, its log, and what it has counted."""
    state, log, model = large_at(path, **options), log or Log(), Counter[str]()
    for number in range(1, batches + 1):
        batch = {WORDS[(number * 7 + at) % len(WORDS)]: 1 for at in range(12)}
        commit(state, log, number, 0, batch)
        state.recorded(Snapshot(number, log.winners))
        model.update(batch)
    assert is_large(path)
    return state, log, model


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


POINTS = [(PublishedTable, "move"), (StateTable, "replace"), (StateTable, "append")]


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
    close_after(last, log, number)
    assert is_large(tmp_path)
    assert people_read(tmp_path) == model
    assert told(large_at(tmp_path, kind), at_of(kind, number, log)) == model


def columns_scanned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The columns that scans read from now on; None: whole rows."""
    columns_of_each, scan = list[Any](), StateTable.scan

    def noted(self: StateTable, filter: Any = None, columns: Any = None, files: Any = None) -> Any:
        columns_of_each.append(columns)
        return scan(self, filter, columns, files)

    monkeypatch.setattr(StateTable, "scan", noted)
    return columns_of_each


def test_a_start_reads_no_rows_and_a_commit_those_of_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, log, model = filled(tmp_path)
    state.close()
    opened, open_bucket, read = list[str](), BucketedBase._opened, columns_scanned(monkeypatch)

    def noted(self: BucketedBase, file: BucketFile) -> Any:
        opened.append(file.path)
        return open_bucket(self, file)

    monkeypatch.setattr(BucketedBase, "_opened", noted)
    state = large_at(tmp_path)
    assert state.read_sentinel() == log.expected
    assert opened == []
    assert read == [["_sentinel", "_seq"]]
    commit(state, log, 9, 0, {"w1": 5})
    assert 1 <= len(opened) <= 8  # the bucket of one key; a merge rewrites what has changed
    assert told(state) == model + Counter(w1=5)


@pytest.mark.long
def test_changes_leave_their_table_once_two_bases_hold_them(tmp_path: Path) -> None:
    state, _, model = filled(tmp_path, 40)
    rows = DeltaTable(changes(tmp_path)).to_pyarrow_table().num_rows
    assert rows < 12 * 40 / 4
    assert told(state) == model


@pytest.mark.long
def test_a_base_of_an_earlier_time_is_refused(tmp_path: Path) -> None:
    state, log, _ = filled(tmp_path, 20)
    state.close()
    table = DeltaTable(tmp_path)
    for version in range(table.version() - 12, table.version() + 1):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(StateError, match=r"are not of one moment, and rows are missing.* Restore both from one copy"):
        commit(large_at(tmp_path), log, 21, 0, {"w1": 1})
    with pytest.raises(StateError, match="are not of one moment"):
        told(reader_at(tmp_path))
    with pytest.raises(StateError, match="are not of one moment"):
        list(reader_at(tmp_path).key_pages())


def test_a_base_with_later_changes_than_those_beside_it_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    state, log, _ = filled(tmp_path / "table", 4)
    state.close()
    shutil.copytree(tmp_path / "table" / "_trident", copy)
    before = deepcopy(log)
    state = large_at(tmp_path / "table")
    for number in (5, 6):
        commit(state, log, number, 0, {"w1": 1, "w2": 1})
    state.close()
    shutil.rmtree(tmp_path / "table" / "_trident")
    copy.rename(tmp_path / "table" / "_trident")
    with pytest.raises(StateError, match="are not of one moment, and rows are missing"):
        told(reader_at(tmp_path / "table"))
    with pytest.raises(StateError, match="are not of one moment, and rows are missing"):
        commit(large_at(tmp_path / "table"), before, 5, 0, {})


def test_a_state_without_its_changes_begins_with_nothing_over_any_base(tmp_path: Path) -> None:
    state, log, _ = filled(tmp_path)
    state.close()
    shutil.rmtree(tmp_path / "_trident")  # and its log is gone, too
    reader = reader_at(tmp_path)
    for one in (reader, reader.at(Snapshot(8, log.winners))):
        assert (told(reader), list(one.get_tuples())) == ({}, [])
    state, log = large_at(tmp_path), Log()
    commit(state, log, 1, 0, {"w1": 1})
    close_after(state, log, 1)
    assert told(reader_at(tmp_path)) == told(large_at(tmp_path)) == people_read(tmp_path) == {"w1": 1}


@pytest.mark.sample(1)
@pytest.mark.parametrize("change", ["delete", "optimize"])
def test_a_base_that_another_program_changed_is_refused_until_it_is_restored(tmp_path: Path, change: str) -> None:
    state, log, model = filled(tmp_path)
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
    table = tmp_path / "table"
    state, log, _ = filled(table)
    state.close()
    version = DeltaTable(table).version()
    DeltaTable(table).optimize.compact()
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(Exception, match="missing file"):
        DeltaTable(table).restore(version)
    said = r"If its files were deleted \(VACUUM\), move the folder of the state away and start"
    with pytest.raises(StateError, match=said):
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
        said = r"cannot write files of .* No space left .*; free some space on the disk"
        with pytest.raises(BackendError, match=said):
            commit(state, log, 2, 0, counts)
    assert not is_large(tmp_path)
    commit(state, log, 2, 1, counts)
    assert is_large(tmp_path)
    assert told(state) == dict.fromkeys(WORDS, 2)


def test_a_row_that_was_added_by_hand_without_a_seq_is_in_the_first_base(tmp_path: Path) -> None:
    log = Log()
    commit(large_at(tmp_path), log, 1, 0, {"w1": 1})
    table = DeltaTable(changes(tmp_path)).to_pyarrow_table()
    rows = [row | {"word": "w2", "_seq": None} for row in table.to_pylist() if row["_sentinel"] is None]
    write_deltalake(str(changes(tmp_path)), pa.Table.from_pylist(rows, table.schema), mode="append")
    state = large_at(tmp_path)
    for number in (2, 3):
        commit(state, log, number, 0, dict.fromkeys(WORDS[3:], 1))
    assert is_large(tmp_path)
    assert told(state) == {"w1": 1, "w2": 1} | dict.fromkeys(WORDS[3:], 2)


def test_a_file_of_the_base_that_is_gone_is_named_until_it_is_back(tmp_path: Path) -> None:
    state, _, model = filled(tmp_path)
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
    state, _, _ = filled(tmp_path)
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


def test_an_emptied_state_has_no_former_row_though_its_base_was_not_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def died(_: PublishedTable) -> None:
        raise Died("in a test")

    state, _, _ = filled(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(PublishedTable, "clear", died)
        with pytest.raises(Died):
            state.reset()
    for one in (large_at(tmp_path), reader_at(tmp_path)):
        assert (told(one), list(one.get_tuples())) == ({}, [])
    commit(large_at(tmp_path), Log("another"), 1, 0, {"w1": 1})
    assert not is_large(tmp_path)
    for one in (large_at(tmp_path), reader_at(tmp_path)):
        assert told(one) == {"w1": 1}


def test_a_paused_writer_empties_no_base_that_its_successor_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, _, _ = filled(tmp_path)
    state.close()
    shutil.rmtree(tmp_path / "_trident")
    old, clear, counts = large_at(tmp_path), Publishing.clear, Counter[str]()

    def paused(self: Publishing, *args: Any, **options: Any) -> None:
        if self is old._backing._publishing and not counts:
            _, _, model = filled(tmp_path, log=Log("another"))
            counts.update(model)
        clear(self, *args, **options)

    monkeypatch.setattr(Publishing, "clear", paused)
    with pytest.raises((FencedError, StateError)):
        commit(old, Log("former"), 1, 0, {"w1": 1})
    assert told(large_at(tmp_path)) == told(reader_at(tmp_path)) == counts != Counter()


def test_a_merge_that_ended_before_the_state_was_emptied_is_not_used_after_it(tmp_path: Path) -> None:
    state, _, _ = filled(tmp_path, background=True, publish_every_s=1)
    publishing = state._backing._publishing
    state.wait_for_maintenance()
    log = Log("inc", 1 << 20)
    publishing._not_before = 0.0
    commit(state, log, 9, 0, dict.fromkeys(WORDS[:20], 1))
    state.recorded(Snapshot(9, log.winners))
    state.reset()
    log, model = Log("another"), Counter[str]()
    for number in range(1, 6):
        commit(state, log, number, 0, dict.fromkeys(WORDS[:15], 1))
        model.update(WORDS[:15])
        state.recorded(Snapshot(number, log.winners))
        assert told(state) == model
    assert is_large(tmp_path)


def test_a_compaction_before_the_first_merge_of_a_writer_forgets_no_deletion(tmp_path: Path) -> None:
    kind = StateType.TRANSACTIONAL
    state, log, model = filled(tmp_path, kind=kind)
    state.close()
    batch = dict.fromkeys(WORDS[:12], 1)
    commit(large_at(tmp_path, kind), log, 9, 0, batch, record=False)
    gone = [word for word in sorted(model) if word not in batch][:10]
    state = large_at(tmp_path, kind, compact_after_commits=2)
    commit_by(state, log, 9, state._backing.multi_delete, [(word,) for word in gone], attempt=1, record=False)
    assert "trident.compaction" in DeltaTable(changes(tmp_path)).history(1)[0]
    wanted = {word: count for word, count in (model + Counter(batch)).items() if word not in gone}
    assert told(large_at(tmp_path, kind)) == wanted


def test_the_newest_row_of_a_key_stays_if_another_program_merged_files(tmp_path: Path) -> None:
    state, log, model = filled(tmp_path, compact_after_commits=1000)
    for number in range(9, 14):
        commit(state, log, number, 0, {"w1": 1, WORDS[number]: 1})
        model.update(["w1", WORDS[number]])
    table = large_at(tmp_path)._backing._table
    table.refresh()
    files = table.files()
    pair = [files[-4], files[-1]]  # as a program does that packs files by their sizes
    table.replace(table.scan(None, None, pair), pair, ("another", 1), {"trident.compaction": "files"})
    assert told(large_at(tmp_path)) == model


def test_a_merge_takes_changes_from_memory_as_of_the_batch_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, log, model = filled(tmp_path, compact_after_commits=1000)
    state.wait_for_maintenance()
    commit(state, log, 9, 0, {"w1": 1})
    read = columns_scanned(monkeypatch)
    state.recorded(Snapshot(9, log.winners))
    commit(state, log, 10, 0, {"w1": 1, "w2": 1}, record=False)
    state.wait_for_maintenance()
    assert None not in read
    assert people_read(tmp_path) == model + Counter(w1=1)
    commit(state, log, 10, 1, {"w2": 1})
    close_after(state, log, 10)
    assert people_read(tmp_path) == told(large_at(tmp_path)) == model + Counter(w1=1, w2=1)


def test_a_merge_reads_the_changes_if_another_base_is_there_than_that_of_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, log, model = filled(tmp_path, compact_after_commits=1000)
    state.wait_for_maintenance()
    commit(state, log, 9, 0, {"w1": 1})
    other = large_at(tmp_path)
    assert other.read_sentinel() == log.expected
    other.recorded(Snapshot(9, log.winners))
    other.wait_for_maintenance()  # merges batch 9
    commit(state, log, 10, 0, {"w2": 1})
    read = columns_scanned(monkeypatch)
    state.recorded(Snapshot(10, log.winners))
    state.wait_for_maintenance()
    assert None in read
    assert people_read(tmp_path) == model + Counter(w1=1, w2=1)


def test_a_merge_of_a_writer_that_was_replaced_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, log, model = filled(tmp_path)
    state.close()
    old, goes_on, waits = large_at(tmp_path, background=True), threading.Event(), threading.Event()
    move = PublishedTable.move

    def paused(self: PublishedTable, *args: Any) -> Any:
        if not goes_on.is_set() and self is old._backing._publishing._published:
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
    close_after(new, log, number)
    assert people_read(tmp_path) == model + Counter(w0=1)


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
    goes_on, waits = threading.Event(), list[int]()
    monkeypatch.setattr(Index, "bytes_of_changes", 600)
    finish, move = Publishing.finish, PublishedTable.move

    def noted(self: Publishing) -> None:
        waits.append(1)
        goes_on.set()
        finish(self)
        goes_on.clear()

    def endless(self: PublishedTable, before: Any, *args: Any) -> None:  # unless the commits wait for it
        assert before is None or goes_on.wait(60)  # the first base is a commit's
        move(self, before, *args)

    monkeypatch.setattr(Publishing, "finish", noted)
    monkeypatch.setattr(PublishedTable, "move", endless)
    state, _, model = filled(tmp_path, 20, background=True)
    assert len(waits) > 2
    assert told(state) == model
    state.close()


KEYS = [f"w{number:02}" for number in range(30)]
AGGREGATES: dict[str, Any] = {"sum": Sum("n"), "rows": Count(), "most": Max("n"), "least": Min("n")}
FIRST = [(key, at) for at, key in enumerate(KEYS)]
LATER = [("w07", 100), ("new", 5)]


class Died(TridentError):
    """The driver ends here."""

    can_heal = False


class Declared:
    """A topology over a state beyond memory at `folder`, with aggregates by their names."""

    def __init__(self, folder: Path, aggregates: Mapping[str, Any] | Any, key: str = "k", type_: str = "int") -> None:
        self.path = folder / "state"
        self._conf: dict[str, Any] = {"log_dir": str(folder / "log"), "history": "7d"}
        self._aggregates, self._key, self._type = aggregates, key, type_

    def topology(self, rows: list[tuple[str, Any]], rename: Mapping[str, str] | None = None) -> TridentTopology:
        topology = TridentTopology("t", rename=rename)
        spout = FixedBatchSpout(f"{self._key}: string, n: {self._type}", 10, *map(list, rows))
        stream = topology.new_stream("s", spout).group_by(self._key)
        spec = DeltaState.opaque(self.path, max_keys_in_memory=5, fsync=False, background_maintenance=False)
        if isinstance(self._aggregates, Mapping):
            stream.persistent_aggregate(spec, self._aggregates, "total")
        else:
            stream.persistent_aggregate(spec, "n", self._aggregates, "total")
        return topology

    def run(self, rows: list[tuple[str, Any]], **rename: str) -> None:
        """Take all rows, of which the log knows the first ones."""
        with start(self.topology(rows, rename), "in_process", **self._conf) as running:
            running.process_all_available()

    def found(self, at: int | None = None, **rename: str) -> dict[str, Any]:
        topology = self.topology(FIRST, rename)
        with open_state(topology, "total", log_dir=self._conf["log_dir"]) as reader:
            return dict((reader if at is None else reader.at(at)).get_tuples())

    def verified(self, rows: list[tuple[str, Any]]) -> bool:
        done = verify_state(self.topology(rows), "total", log_dir=self._conf["log_dir"])
        return [(list(one.wrong), one.refused) for one in done] == [([], "")]


def of(*names: str) -> dict[str, Any]:
    return {name: AGGREGATES[name] for name in names}


def expected(rows: list[tuple[str, int]], /, **since: int) -> dict[str, dict[str, Any]]:
    """What the aggregates give, each from a row on."""
    kernels: dict[str, Callable[[list[int]], int]] = {"sum": sum, "rows": len, "most": max, "least": min}
    wanted: dict[str, dict[str, Any]] = {key: {} for key, _ in rows}
    for key, values in wanted.items():
        for name, first in since.items():
            ns = [n for one, n in rows[first:] if one == key]
            values[name] = kernels[name](ns) if ns else None
    return wanted


def forms(path: Path) -> set[pa.DataType]:
    """The types that the value has in the files of the table at the path, and in the table."""
    table = DeltaTable(path)
    assert table.transaction_version("trident/merged") is not None
    schemas = [pq.read_schema(path / add["path"]) for add in pa.table(table.get_add_actions()).to_pylist()]
    assert len(schemas) > 3
    assert {schema.names[-1] for schema in schemas} == {"_trident_attempt"}
    return {schema.field(2).type for schema in schemas} | {pa.schema(table.schema().to_arrow()).field(1).type}


def dies_before_its_first_record(declared: Declared, rows: list[tuple[str, int]], **rename: str) -> None:
    def record(*_: Any) -> None:
        raise Died("in a test")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BatchLoop, "_record", record)
        with pytest.raises(TridentError, match="in a test"):
            declared.run(rows, **rename)


def test_a_merge_gives_all_files_and_the_table_the_new_columns(tmp_path: Path) -> None:
    former, new = Declared(tmp_path, of("sum", "most")), Declared(tmp_path, of("rows", "sum"))
    former.run(FIRST)
    assert forms(former.path) == {pa.struct([("sum", pa.int64()), ("most", pa.int32())])}
    new.run([*FIRST, *LATER])
    (form,) = forms(new.path)
    assert {field.name for field in form} == {"sum", "rows", "most"}  # which the former declaration would need
    wanted = expected([*FIRST, *LATER], rows=30, sum=0)
    assert new.found() == wanted
    assert new.found(at=3) == {key: {"rows": None, "sum": n} for key, n in FIRST}
    assert new.verified([*FIRST, *LATER])
    table = DeltaTable(new.path)
    people = {row["k"]: row["total"] for row in table.to_pyarrow_table().to_pylist()}
    assert {key: (value["sum"], value["rows"]) for key, value in people.items()} == {
        key: (value["sum"], value["rows"]) for key, value in wanted.items()
    }
    sql = "select sum(t.total['sum']) as s, sum(t.total['rows']) as r from t"
    assert pa.table(QueryBuilder().register("t", table).execute(sql).read_all()).to_pylist() == [{"s": 540, "r": 2}]


def test_files_of_the_former_columns_are_read_until_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = Declared(tmp_path, of("sum", "most"))
    former.run(FIRST)
    before = forms(former.path)
    new = Declared(tmp_path, {"biggest": Max("n"), "least": Min("n")})
    early = {key: {"biggest": n, "least": None} for key, n in FIRST}
    assert new.found(most="biggest") == early  # before it has run
    with monkeypatch.context() as patched:
        patched.setattr(Publishing, "_offer", lambda *_: None)  # nothing is merged
        new.run([*FIRST, *LATER], most="biggest")
        assert forms(new.path) == before
        late = early | {"w07": {"biggest": 100, "least": 100}, "new": {"biggest": 5, "least": 5}}
        assert new.found() == late
        newer = Declared(tmp_path, {"biggest": Max("n"), "sum": Sum("n")})  # under a name that another one had
        newer.run([*FIRST, *LATER, ("w08", 3)])
        assert forms(new.path) == before
        wanted = {key: {"biggest": value["biggest"], "sum": None} for key, value in late.items()}
        assert newer.found() == wanted | {"w08": {"biggest": 8, "sum": 3}}
    newer.run([*FIRST, *LATER, ("w08", 3), ("w09", 1)])
    assert forms(new.path) != before
    assert newer.found() == wanted | {"w08": {"biggest": 8, "sum": 3}, "w09": {"biggest": 9, "sum": 1}}
    assert newer.found(at=3) == {key: {"biggest": n, "sum": None} for key, n in FIRST}


def test_the_former_code_comes_back_after_the_new_code_has_merged(tmp_path: Path) -> None:
    former, new = Declared(tmp_path, of("sum", "most")), Declared(tmp_path, of("most", "rows"), type_="bigint")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Publishing, "_offer", lambda *_: None)  # nothing is merged
        former.run(FIRST)
    dies_before_its_first_record(new, [*FIRST, *LATER])
    (form,) = forms(former.path)
    assert {field.name for field in form} == {"sum", "rows", "most"}
    assert form.field("most").type == pa.int64()
    assert former.found() == expected(FIRST, sum=0, most=0)
    rows: list[tuple[str, int]] = [*FIRST, *LATER]
    former.run(rows)
    assert forms(former.path) == {pa.struct([("sum", pa.int64()), ("most", pa.int32())])}
    assert former.found() == expected(rows, sum=0, most=0)
    assert former.verified(rows)
    rows += [("w07", 1), ("new", 2**40)]
    new.run(rows)
    assert new.found() == expected(rows, most=0, rows=32)
    assert new.verified(rows)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("old", "new", "some", "more"),
    [
        ("int", "bigint", 7, 2**40),
        ("float", "double", 0.5, 1e300),
        ("decimal(4,1)", "decimal(20,2)", "1.5", "1234567.25"),
    ],
)
def test_a_single_value_gets_a_wider_type(tmp_path: Path, old: str, new: str, some: Any, more: Any) -> None:
    some, more = (Decimal(one) if isinstance(one, str) else one for one in (some, more))
    first: list[tuple[str, Any]] = [(key, some) for key in KEYS]
    narrow, wide = Declared(tmp_path, Max("n"), type_=old), Declared(tmp_path, Max("n"), type_=new)
    narrow.run(first)
    before = forms(narrow.path)
    dies_before_its_first_record(wide, [*first, ("w07", some)])
    assert narrow.found() == dict(first)
    wide.run([*first, ("w07", more), ("w08", some)])
    assert wide.found() == {**dict(first), "w07": more}
    assert len(forms(wide.path)) == 1
    assert forms(wide.path) != before
    people = {row["k"]: row["total"] for row in DeltaTable(wide.path).to_pyarrow_table().to_pylist()}
    assert people == {**dict(first), "w07": more}


def test_a_field_of_the_key_keeps_its_name_in_the_table(tmp_path: Path) -> None:
    former, new = Declared(tmp_path, Sum("n")), Declared(tmp_path, Sum("n"), key="word")
    former.run(FIRST)
    new.run([*FIRST, *LATER], k="word")
    assert new.found() == {**dict(FIRST), "w07": 107, "new": 5}
    assert DeltaTable(new.path).to_pyarrow_table().column_names == ["k", "total"]


def test_files_that_do_not_say_who_wrote_a_value_are_of_the_first_declaration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = bucketed_base.write_bucket

    def without_attempts(rows: pa.Table, *more: Any) -> Any:
        return write(rows.drop_columns(["_trident_attempt"]), *more)

    former, new = Declared(tmp_path, of("sum", "most")), Declared(tmp_path, {"biggest": Max("n"), "sum": Sum("n")})
    with monkeypatch.context() as patched:
        patched.setattr(bucketed_base, "write_bucket", without_attempts)
        former.run(FIRST)
    new.run([*FIRST, *LATER], most="biggest")
    wanted = {
        key: {"biggest": value["most"], "sum": value["sum"]}
        for key, value in expected([*FIRST, *LATER], sum=0, most=0).items()
    }
    assert new.found() == wanted
    again = Declared(tmp_path, {"largest": Max("n"), "sum": Sum("n")})
    again.run([*FIRST, *LATER, ("w08", 200)], biggest="largest")
    values = expected([*FIRST, *LATER, ("w08", 200)], sum=0, most=0)
    assert again.found() == {key: {"largest": one["most"], "sum": one["sum"]} for key, one in values.items()}


def test_a_state_whose_declaration_has_changed_grows_beyond_memory(tmp_path: Path) -> None:
    former, new = Declared(tmp_path, of("sum", "most")), Declared(tmp_path, of("sum", "rows"))
    former.run(FIRST[:3])
    new.run(FIRST)
    assert forms(new.path)
    assert new.found() == expected(FIRST, sum=0, rows=3)
    assert new.verified(FIRST)


def test_a_name_whose_column_cannot_hold_what_had_it_before_is_refused(tmp_path: Path) -> None:
    rows = [(key, 2**31 - 1) for key in [*KEYS, *KEYS]]
    Declared(tmp_path, of("sum", "rows")).run(rows)
    Declared(tmp_path, of("rows")).run([*rows, *LATER])
    changes = DeltaTable(tmp_path / "state" / "_trident" / "changes")
    before = changes.version()
    narrow = Declared(tmp_path, {"rows": Count(), "sum": Max("n")})
    said = r"'sum' of state 'total' is of type int, and what had this name before is of type "
    with pytest.raises(TopologyError, match=said):
        narrow.run([*rows, *LATER, *LATER])
    changes.update_incremental()
    assert changes.version() == before
