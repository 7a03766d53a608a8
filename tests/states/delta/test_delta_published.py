"""The table of a Delta state that people read, and its past: what is shown when, and which batches can be read again."""

import os
import random
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from spouts import DeltaSpout
from states.delta import DeltaStateAt, delta_state_at
from states.delta.state_tables import PublishedTable
from tests.harness.store_commits import commit_by
from tests.spouts.reading import batches
from tests.states.delta.delta_states import (
    WORDS,
    Log,
    add,
    begun_at,
    changes,
    clean_log,
    close_after,
    commit,
    count_men,
    people_read,
    reader_at,
    state_at,
    update,
    values,
)
from trident.errors import BackendError, StateError
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel, Snapshot, Winners
from trident.state.values import CombinerValueUpdater

pytestmark = pytest.mark.slow

DUCKDB_DELTA = next((Path(duckdb.__file__).parent.parent / "duckdb_ext").rglob("delta.duckdb_extension"))
EVERY_KIND = list(StateType)


def publish(state: Any, log: Log, txid: int) -> None:
    """Say that the log has a batch, and wait until it is shown."""
    state.recorded(Snapshot(txid, log.winners))
    state.wait_for_maintenance()


def batch_of(path: Path) -> str:
    return str(DeltaTable(path).history(1)[0]["trident.batch"])


def test_every_kind_of_reader_agrees(tmp_path: Path) -> None:
    keys = (("word", "string"), ("day", "date"))
    state, log = state_at(tmp_path, StateConf("t", "s", keys, "double", {}, False, "sum")), Log()
    day = datetime(2026, 1, 2, tzinfo=UTC).date()
    for number in (1, 2):
        counts: dict[Any, Any] = {("the", day): 1.5, ("a", day): float(number)}
        commit(state, log, number, 1, counts)
    close_after(state, log, 2)
    wanted = [("a", day, 3.0), ("the", day, 3.0)]
    frame = DeltaTable(tmp_path).to_pandas().sort_values("word")
    assert list(frame.columns) == ["word", "day", "sum"]
    assert [tuple(row) for row in frame.itertuples(index=False)] == wanted
    files = pd.concat(map(pd.read_parquet, DeltaTable(tmp_path).file_uris()))
    assert len(files) == 2
    database = duckdb.connect()
    database.execute(f"LOAD '{DUCKDB_DELTA}'")
    query = f"SELECT * FROM delta_scan('{tmp_path}') ORDER BY word"
    assert database.sql(query).columns == ["word", "day", "sum"]
    assert database.sql(query).fetchall() == wanted
    assert database.sql(f"SELECT sum(sum) FROM delta_scan('{tmp_path}')").fetchall() == [(6.0,)]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_batch_that_is_not_recorded_and_a_failed_attempt_are_never_shown(tmp_path: Path, kind: StateType) -> None:
    state, log = begun_at(tmp_path, kind=kind)
    state.recorded(Snapshot(1, log.winners))
    commit(state, log, 2, 1, {"man": 1, "lost": 1}, record=False)
    state.wait_for_maintenance()
    assert people_read(tmp_path) == {"man": 1}
    state.close()
    assert people_read(tmp_path) == {"man": 1}
    # The driver comes back. It says what its log holds, then tries the batch again.
    state = state_at(tmp_path, kind=kind)
    assert state.read_sentinel().txid == 2
    publish(state, log, 1)
    assert people_read(tmp_path) == {"man": 1}
    txid = log.txid(2, 2)
    state.begin_commit(txid)
    state.wait_for_maintenance()
    assert people_read(tmp_path) == {"man": 1}
    update(state, {"man": 5})
    state.commit(txid)
    state.wait_for_maintenance()
    assert people_read(tmp_path) == {"man": 1}
    log.record(txid)
    publish(state, log, 2)
    assert people_read(tmp_path)["man"] == values(state, "man")[0]
    if kind is StateType.OPAQUE:
        assert people_read(tmp_path) == {"man": 6}


def test_what_is_committed_is_known_at_the_next_commit_also_without_being_told(tmp_path: Path) -> None:
    state, _ = begun_at(tmp_path, batches=3)
    state.wait_for_maintenance()
    assert (people_read(tmp_path), batch_of(tmp_path)) == ({"man": 2}, "2")


def test_a_state_without_a_log_is_published_as_it_is(tmp_path: Path) -> None:
    state = state_at(tmp_path)
    for txid in (1, 2):
        state.begin_commit(txid)
        update(state, {"man": 1})
        state.commit(txid)
    state.close()
    assert people_read(tmp_path) == {"man": 2}


def test_removed_keys_have_no_row(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 1, {"man": 1, "dog": 1})
    commit_by(state, log, 2, state.map_state.multi_remove, [("dog",)], attempt=1)
    close_after(state, log, 2)
    assert people_read(tmp_path) == {"man": 1}


def test_a_key_field_named_like_a_column_of_ours_keeps_its_name(tmp_path: Path) -> None:
    conf = StateConf("t", "s", (("txid", "string"), ("value", "bigint")), "bigint", {}, False, "Value")
    state, log = state_at(tmp_path, conf), Log()
    commit(state, log, 1, 1, {("x", 5): 7})
    close_after(state, log, 1)
    assert DeltaTable(tmp_path).to_pyarrow_table().to_pylist() == [{"txid": "x", "value": 5, "Value_": 7}]


def test_a_value_that_is_a_struct_or_a_list_is_a_column_of_that_type(tmp_path: Path) -> None:
    conf = StateConf("t", "s", (("word", "string"),), "struct<n:bigint,tags:array<string>>")
    state, log = state_at(tmp_path, conf), Log()
    for number in (1, 2):
        given = [{"n": number, "tags": ["a"]}] * 2
        commit_by(state, log, number, state.multi_put, [("man",), (f"w{number}",)], given, attempt=1)
    state.wait_for_maintenance()
    assert DeltaTable(tmp_path).to_pyarrow_table()["value"].to_pylist() == [{"n": 1, "tags": ["a"]}] * 2


def test_emptying_the_state_empties_what_is_shown(tmp_path: Path) -> None:
    state, log = begun_at(tmp_path)
    publish(state, log, 1)
    assert people_read(tmp_path) == {"man": 1}
    state.reset()
    assert people_read(tmp_path) == {}


def test_what_others_did_to_the_table_is_undone_with_the_next_batch(tmp_path: Path) -> None:
    state, log = begun_at(tmp_path)
    publish(state, log, 1)
    write_deltalake(tmp_path, pa.table({"word": ["x"], "value": [5]}), mode="append")
    commit(state, log, 2, 1, {"man": 1})
    close_after(state, log, 2)
    assert people_read(tmp_path) == {"man": 2}
    assert values(reader_at(tmp_path), "x", "man") == [None, 2]


def test_a_replaced_writer_that_wakes_up_shows_no_earlier_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, log = state_at(tmp_path), state_at(tmp_path), Log()
    reached, go_on = threading.Event(), threading.Event()
    show = PublishedTable.show

    def paused(table: PublishedTable, *rest: Any) -> None:
        reached.set()
        assert go_on.wait(30)
        show(table, *rest)

    commit(first, log, 1, 1, {"man": 1})
    monkeypatch.setattr(PublishedTable, "show", paused)
    first.recorded(Snapshot(1, log.winners))
    assert reached.wait(30)
    monkeypatch.undo()
    commit(second, log, 2, 2, {"man": 1})
    close_after(second, log, 2)
    assert people_read(tmp_path) == {"man": 2}
    go_on.set()
    first.close()
    assert (people_read(tmp_path), batch_of(tmp_path)) == ({"man": 2}, "2")


def test_publishing_that_fails_fails_no_batch_and_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state, log = state_at(tmp_path), Log()

    def full(*_: Any) -> None:
        raise BackendError("no space left")

    monkeypatch.setattr(PublishedTable, "show", full)
    commit(state, log, 1, 1, {"man": 1})
    publish(state, log, 1)
    assert "shows an earlier batch for now: no space left" in caplog.text
    monkeypatch.undo()
    commit(state, log, 2, 1, {"man": 1})
    close_after(state, log, 2)
    assert people_read(tmp_path) == {"man": 2}


@pytest.mark.long
def test_old_files_go_and_the_changes_stay(tmp_path: Path) -> None:
    state, log = state_at(tmp_path, background_maintenance=False), Log()
    publishing = state.map_state.backing._publishing
    for number in range(1, 40):
        publishing._not_before = 0.0
        commit(state, log, number, 1, {"man": 1})
        for file in tmp_path.glob("*.parquet"):
            os.utime(file, (0, 0))
    assert DeltaTable(tmp_path).version() >= 38
    assert any((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))
    close_after(state, log, 39)
    assert people_read(tmp_path) == {"man": 39}
    assert values(state_at(tmp_path), "man") == [39]
    assert pc.max(DeltaTable(changes(tmp_path)).to_pyarrow_table()["_seq"]).as_py() == 39


def test_a_delta_spout_follows_what_is_shown(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()

    def batch(number: int, counts: dict[str, int]) -> None:
        commit(state, log, number, 1, counts)
        publish(state, log, number)

    batch(1, {"man": 1, "dog": 1})
    DeltaTable(tmp_path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    start = DeltaTable(tmp_path).version() + 1
    batch(2, {"man": 1, "cow": 1})

    def read(**how: Any) -> set[tuple[Any, ...]]:
        return {tuple(row) for one in batches(DeltaSpout(tmp_path, **how)) for row in one}

    assert read(on_removal="added_files") == {("man", 2), ("dog", 1), ("cow", 1)}
    changed = {row[:3] for row in read(mode="changes", starting_version=start)}
    assert changed == {
        ("man", 1, "delete"), ("dog", 1, "delete"), ("man", 2, "insert"), ("dog", 1, "insert"), ("cow", 1, "insert"),
    }  # fmt: skip


def rows_at(state: Any, txid: int) -> dict[str, int]:
    return dict(state.at(txid).get_tuples())


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", list(StateType))
def test_a_history_with_lost_attempts_and_gaps_reads_as_a_dict_of_the_winners(
    tmp_path: Path, kind: StateType, seed: int
) -> None:
    dice, log, attempt = random.Random(f"{seed} {kind}"), Log(), 1
    state = state_at(tmp_path, kind=kind, compact_after_commits=3, background_maintenance=False, fsync=False)
    counts, model, touched = Counter[str](), dict[int, Counter[str]](), 0
    for number in range(1, 13):
        while kind is StateType.OPAQUE and dice.random() < 0.3:
            commit(state, log, number, attempt, {f"w{dice.randrange(4)}": 100}, record=False)
            attempt += 1
        if number == 1 or dice.random() < 0.7:
            words, touched = {f"w{dice.randrange(4)}": dice.randrange(1, 9)}, number
            commit(state, log, number, attempt, words)
            counts = counts + Counter(words)
        else:  # what won had no input for this state
            log.winners = log.winners.with_winner(number, attempt)
        model[number] = counts
    for number, expected in model.items():
        assert dict(state.at(Snapshot(number, log.winners)).get_tuples()) == expected
        assert number > touched or rows_at(state, number) == expected
    then = delta_state_at(tmp_path, touched, WORDS, kind)
    assert isinstance(then, DeltaStateAt)
    assert (then.txid, then.multi_get([("never",)]), dict(then.get_tuples())) == (touched, [None], model[touched])


def test_compactions_in_between_change_nothing_even_when_all_older_files_are_gone(tmp_path: Path) -> None:
    state, log = state_at(tmp_path, compact_after_commits=4, background_maintenance=False), Log()
    for number in range(1, 9):
        commit(state, log, number, 1, {"man": 1, f"w{number}": 1})
    live = set(DeltaTable(changes(tmp_path)).file_uris())
    for found in changes(tmp_path).glob("*.parquet"):
        if str(found) not in live:
            found.unlink()
    assert rows_at(state, 8) == {"man": 8} | {f"w{n}": 1 for n in range(1, 9)}
    with pytest.raises(StateError, match="as of batch 7: it is no longer retained; batches 8 to 8 are"):
        state.at(7)


def test_a_batch_that_is_not_there_is_named(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    with pytest.raises(StateError, match="as of batch 1: there is no table"):
        state.at(1)
    assert state.at(Snapshot(3, Winners())).multi_get([("man",)]) == [None]
    count_men(state, log, (4, 5))
    with pytest.raises(StateError, match="as of batch 3: it is no longer retained; batches 4 to 5 are"):
        state.at(3)
    said = "as of batch 6: the last batch that touched it is 5, .* give a Snapshot of its log"
    with pytest.raises(StateError, match=said):
        state.at(6)
    committed = log.winners
    commit(state, log, 9, 2, {"man": 50}, record=False)
    assert state.at(Snapshot(8, committed)).multi_get([("man",)]) == [2]
    state.reset()
    with pytest.raises(StateError, match="holds no commit of a batch"):
        state.at(Snapshot(9, committed))  # it may be of before: no commit notes when the state was emptied


def test_a_long_untouched_state_is_found_though_its_tables_log_was_cleaned(tmp_path: Path) -> None:
    state, log = begun_at(tmp_path)
    clean_log(tmp_path, 0)
    assert [state.at(Snapshot(number, log.winners)).multi_get([("man",)]) for number in (1, 7)] == [[1], [1]]


def test_a_sentinel_laid_before_the_first_batch_is_none(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    state.move_sentinel(Sentinel("inc", 0, 1), force=True)
    with pytest.raises(StateError, match="holds no commit of a batch"):
        state.at(1)
    for number in (3, 4):
        log.expected = state.read_sentinel()
        commit(state, log, number, 1, {"man": 1})
    assert [state.at(number).multi_get([("man",)]) for number in (1, 3, 4)] == [[None], [1], [2]]
    assert state.at(Snapshot(2, log.winners)).multi_get([("man",)]) == [None]


def test_the_retained_range_is_named_once_the_log_was_cleaned(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    for number in range(1, 11):
        commit(state, log, number, 1, {"man": 1})
        if number == 6:
            DeltaTable(changes(tmp_path)).create_checkpoint()
    for entry in sorted((changes(tmp_path) / "_delta_log").glob("*.json"))[:6]:
        entry.unlink()
    assert [rows_at(state, number)["man"] for number in (6, 8, 10)] == [6, 8, 10]
    with pytest.raises(StateError, match="as of batch 5: it is no longer retained; batches 6 to 10 are"):
        state.at(5)


def test_a_table_whose_files_are_all_gone_says_so(tmp_path: Path) -> None:
    state, _ = begun_at(tmp_path)
    for found in changes(tmp_path).glob("*.parquet"):
        found.unlink()
    with pytest.raises(StateError, match="none of its batches can be read any more; its data files are missing"):
        state.at(1)


def test_only_batches_since_the_last_restart_of_the_log_count(tmp_path: Path) -> None:
    state, _ = begun_at(tmp_path, batches=5)
    state.reset()
    with pytest.raises(StateError, match="holds no commit of a batch"):
        state.at(3)
    commit(state, Log(), 1, 1, {"dog": 1})
    assert rows_at(state, 1) == {"dog": 1}
    with pytest.raises(StateError, match="the last batch that touched it is 1"):
        state.at(3)
    state.move_sentinel(Sentinel("another", 40, 1), force=True)
    assert rows_at(state, 40) == {"dog": 1}
    with pytest.raises(StateError, match="batches 40 to 40 are"):
        state.at(1)


def test_removed_and_deleted_keys_are_there_before_their_removal(tmp_path: Path) -> None:
    state = state_at(tmp_path)
    for txid in range(1, 25):
        state.begin_commit(txid)
        update(state, {f"w{txid}": txid})
        if txid == 3:
            state.multi_remove([("w1",)])
        state.commit(txid)
    assert [state.at(number).multi_get([("w1",)]) for number in (2, 3, 24)] == [[1], [None], [None]]
    assert "w1" in rows_at(state, 2)
    assert "w1" not in rows_at(state, 3)


def test_plain_txids_and_single_values_can_be_read_again(tmp_path: Path) -> None:
    conf = StateConf(value_type="bigint")
    state = state_at(tmp_path, conf)
    for txid in (1, 2, 3):
        state.begin_commit(txid)
        state.update(CombinerValueUpdater(add, 5))
        state.commit(txid)
    assert [state.at(number).get() for number in (1, 2, 3)] == [5, 10, 15]


def test_other_kinds_than_the_tables_are_refused(tmp_path: Path) -> None:
    commit(state_at(tmp_path), Log(), 1, 1, {"man": 1})
    with pytest.raises(StateError, match="expected columns"):
        delta_state_at(tmp_path, 1, WORDS, "transactional")
