"""A Delta state as it was after an earlier batch."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from states.delta import DeltaStateAt, delta_state_at
from tests.states.delta.delta_states import WORDS, Log, add, changes, commit, count_men, state_at, update
from trident.errors import StateError
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel, Snapshot, Winners
from trident.state.values import CombinerValueUpdater

pytestmark = pytest.mark.slow


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
    with pytest.raises(
        StateError, match="as of batch 6: the last batch that touched it is 5, .* give a Snapshot of its log"
    ):
        state.at(6)
    committed = log.winners
    commit(state, log, 9, 2, {"man": 50}, record=False)
    assert state.at(Snapshot(8, committed)).multi_get([("man",)]) == [2]
    state.reset()
    with pytest.raises(StateError, match="holds no commit of a batch"):
        state.at(Snapshot(9, committed))  # it may be of before: no commit notes when the state was emptied


def test_a_long_untouched_state_is_found_though_its_tables_log_was_cleaned(
    tmp_path: Path,
) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 1, {"man": 1})
    table = DeltaTable(changes(tmp_path))
    table.create_checkpoint()
    for entry in (changes(tmp_path) / "_delta_log").glob("*.json"):
        entry.unlink()
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
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 1, {"man": 1})
    for found in changes(tmp_path).glob("*.parquet"):
        found.unlink()
    with pytest.raises(StateError, match="none of its batches can be read any more; its data files are missing"):
        state.at(1)


def test_only_batches_since_the_last_restart_of_the_log_count(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    count_men(state, log, range(1, 6))
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
