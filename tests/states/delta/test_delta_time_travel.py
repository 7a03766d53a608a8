"""A Delta state as it was after an earlier batch."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts import FixedBatchSpout
from states.delta import DeltaState, DeltaStateAt, delta_state_at
from tests.harness.topology_runs import start
from tests.states.delta.delta_states import WORDS, Log, add, changes, commit, count_men, state_at, update
from trident import TridentTopology
from trident.errors import StateError
from trident.operations import Count
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel, Snapshot, Winners
from trident.state.values import CombinerValueUpdater

pytestmark = pytest.mark.slow


def rows_at(state: Any, txid: int) -> dict[str, int]:
    return dict(state.at(txid).get_tuples())


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", list(StateType))
def test_each_batch_can_be_read_again(tmp_path: Path, kind: StateType) -> None:
    state, log, model = state_at(tmp_path, kind=kind), Log(), dict[int, dict[str, int]]()
    counts: dict[str, int] = {}
    for number in range(1, 13):
        words = {f"w{number % 5}": number, "all": 1}
        commit(state, log, number, 1, words)
        counts = counts | {word: counts.get(word, 0) + n for word, n in words.items()}
        model[number] = counts
    assert {number: rows_at(state, number) for number in model} == model
    then = delta_state_at(tmp_path, 7, WORDS, kind)
    assert isinstance(then, DeltaStateAt)
    assert then.multi_get([("all",), ("w2",), ("never",)]) == [7, 9, None]
    assert (then.txid, then.version) == (7, 7)


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


def test_what_a_lost_attempt_wrote_is_undone(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 1, {"man": 1, "dog": 1})
    commit(state, log, 2, 1, {"man": 10, "dog": 10, "cow": 10}, record=False)
    commit(state, log, 2, 2, {"man": 2})  # the replay has no "dog" and no "cow"
    commit(state, log, 3, 2, {"cat": 1})
    assert rows_at(state, 1) == {"man": 1, "dog": 1}
    assert rows_at(state, 2) == {"man": 3, "dog": 1}
    assert rows_at(state, 3) == {"man": 3, "dog": 1, "cat": 1}


def test_a_lost_attempt_whose_replay_left_the_state_alone_is_undone(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 1, {"man": 1})
    commit(state, log, 2, 1, {"man": 10}, record=False)
    log.winners = log.winners.with_winner(2, 2)  # its replay had no input for this state
    assert state.at(Snapshot(2, log.winners)).multi_get([("man",)]) == [1]
    commit(state, log, 3, 2, {"dog": 1})
    assert rows_at(state, 2) == {"man": 1}
    assert rows_at(state, 3) == {"man": 1, "dog": 1}


def test_a_batch_that_did_not_touch_the_state_shows_the_one_before_it(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 2, 1, {"man": 1})
    commit(state, log, 7, 1, {"man": 1})
    assert [rows_at(state, number)["man"] for number in (2, 3, 6, 7)] == [1, 1, 1, 2]


def test_a_batch_to_come_is_named(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    with pytest.raises(StateError, match="as of batch 1: there is no table"):
        state.at(1)
    commit(state, log, 4, 1, {"man": 1})
    with pytest.raises(
        StateError, match="as of batch 5: the last batch that touched it is 4, .* give a Snapshot of its log"
    ):
        state.at(5)


def test_a_committed_batch_after_the_last_that_touched_the_state_shows_that_one(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    assert state.at(Snapshot(3, Winners())).multi_get([("man",)]) == [None]
    count_men(state, log, (4, 6))
    committed = log.winners
    commit(state, log, 9, 2, {"man": 50}, record=False)
    assert [state.at(Snapshot(number, committed)).multi_get([("man",)]) for number in (4, 5, 7, 8)] == [
        [1],
        [1],
        [2],
        [2],
    ]
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


def test_a_topology_reads_a_batch_that_left_the_state_alone(tmp_path: Path) -> None:
    topology = TridentTopology("t")
    lines = topology.new_stream("s", FixedBatchSpout("word: string, n: bigint", 1, *[("a", n) for n in range(1, 5)]))
    few = lines.filter("n", lambda n: n == 2).group_by("word")
    few.persistent_aggregate(DeltaState.opaque(tmp_path / "few"), Count(), "count", state_name="few")
    with start(topology, "in_process", log_dir=str(tmp_path / "log")) as running:
        running.process_all_available()
        assert [running.state("few").at(txid).multi_get(["a"]) for txid in (1, 2, 3, 4)] == [[None], [1], [1], [1]]


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


def test_batches_before_the_first_are_not_retained(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    count_men(state, log, (4, 5))
    with pytest.raises(StateError, match="as of batch 3: it is no longer retained; batches 4 to 5 are"):
        state.at(3)


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


@pytest.mark.long
@settings(max_examples=12)
@given(st.integers(0, 1 << 30))
def test_random_histories_with_lost_attempts_read_as_a_dict_of_the_winners(seed: int) -> None:
    dice = random.Random(seed)
    path = Path(tempfile.mkdtemp()) / "state"
    state, log = state_at(path, compact_after_commits=3, background_maintenance=False, fsync=False), Log()
    log.winners, attempt, counts, model = Winners(), 1, dict[str, int](), dict[int, dict[str, int]]()
    try:
        for number in range(1, dice.randrange(3, 15)):
            while dice.random() < 0.3:
                commit(state, log, number, attempt, {f"w{dice.randrange(4)}": 100}, record=False)
                attempt += 1
            words = {f"w{dice.randrange(4)}": dice.randrange(1, 9)}
            commit(state, log, number, attempt, words)
            counts = counts | {word: counts.get(word, 0) + n for word, n in words.items()}
            model[number] = counts
        for number, expected in model.items():
            assert rows_at(state, number) == expected, (seed, number)
    finally:
        shutil.rmtree(path.parent)


def test_other_kinds_than_the_tables_are_refused(tmp_path: Path) -> None:
    commit(state_at(tmp_path), Log(), 1, 1, {"man": 1})
    with pytest.raises(StateError, match="expected columns"):
        delta_state_at(tmp_path, 1, WORDS, "transactional")
