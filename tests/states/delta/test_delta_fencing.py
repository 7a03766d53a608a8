"""Real stale writers on a Delta table."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.states.delta.delta_states import Log, changes, commit, count_men, state_at, update, values, version_of
from trident.errors import BackendError, FencedError
from trident.state.interfaces import StateType
from trident.state.txid import Txid


def test_a_paused_writer_is_fenced_once_its_successor_has_committed(tmp_path: Path) -> None:
    old, new, log = state_at(tmp_path), state_at(tmp_path), Log()
    commit(old, log, 1, 1, {"man": 1})
    paused = log.txid(2, 1)
    old.begin_commit(paused)
    update(old, {"man": 100})
    commit(new, log, 2, 2, {"man": 1})
    rows, version = DeltaTable(changes(tmp_path)).to_pyarrow_table().num_rows, version_of(tmp_path)
    with pytest.raises(FencedError, match="this writer is batch 2 attempt 1 .* but batch 2 attempt 2"):
        old.commit(paused)
    assert (DeltaTable(changes(tmp_path)).to_pyarrow_table().num_rows, version_of(tmp_path)) == (rows, version)
    with pytest.raises(FencedError):
        old.begin_commit(paused)
    assert values(state_at(tmp_path), "man") == [2]


@pytest.mark.parametrize("kind", [StateType.OPAQUE, StateType.TRANSACTIONAL])
def test_a_paused_writer_that_commits_between_begin_and_end_of_its_successor(tmp_path: Path, kind: StateType) -> None:
    old, new, log = state_at(tmp_path, kind=kind), state_at(tmp_path, kind=kind), Log()
    commit(old, log, 1, 1, {"man": 1})
    paused, live = log.txid(2, 1), log.txid(2, 2)
    # A transactional state belongs to a spout whose replay is identical; an opaque one may change.
    first = {"man": 10} if kind is StateType.TRANSACTIONAL else {"man": 100, "dog": 100}
    old.begin_commit(paused)
    update(old, first)
    new.begin_commit(live)
    update(new, {"man": 10})
    old.commit(paused)
    with pytest.raises(BackendError, match="moved the sentinel to batch 2 attempt 1 .* may be replayed") as caught:
        new.commit(live)
    assert caught.value.retryable
    commit(new, log, 2, 3, {"man": 10})
    assert values(state_at(tmp_path, kind=kind), "man") == [11]
    if kind is StateType.OPAQUE:
        commit(new, log, 3, 3, {"dog": 1})
        assert values(state_at(tmp_path), "man", "dog") == [11, 1]


def test_drivers_that_make_the_tables_together_are_told_apart_at_the_commit(tmp_path: Path) -> None:
    all_of_them = threading.Barrier(6, timeout=30)

    def begin(driver: Any, txid: Txid) -> None:
        all_of_them.wait()
        driver.begin_commit(txid)

    for turn in range(5):
        path, log = tmp_path / str(turn), Log()
        drivers, txids = [state_at(path) for _ in range(6)], [log.txid(1, attempt) for attempt in range(1, 7)]
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(begin, drivers, txids))
        for driver in drivers:
            driver.close()
        last = state_at(path)
        commit(last, log, 1, 7, {"man": 1})
        with pytest.raises(FencedError):
            drivers[0].begin_commit(txids[0])
        assert values(last, "man") == [1]


def test_a_batch_is_refused_if_another_program_committed_and_its_replay_is_exact(tmp_path: Path) -> None:
    state, log = state_at(tmp_path), Log()
    commit(state, log, 1, 1, {"man": 1})
    commit(state, log, 2, 1, {"man": 1})
    txid = log.txid(3, 1)
    state.begin_commit(txid)
    update(state, {"man": 1})
    DeltaTable(changes(tmp_path)).optimize.compact()
    with pytest.raises(BackendError, match="version 3 was committed meanwhile"):
        state.commit(txid)
    commit(state, log, 3, 2, {"man": 1})
    assert values(state_at(tmp_path), "man") == [3]


def test_a_stale_writer_is_refused_after_the_log_was_cleaned(tmp_path: Path) -> None:
    old, new, log = state_at(tmp_path), state_at(tmp_path, checkpoint_interval=2), Log()
    commit(new, log, 1, 1, {"man": 1})
    paused = log.txid(2, 1)
    old.begin_commit(paused)
    update(old, {"man": 100})
    count_men(new, log, range(2, 6), 2)
    DeltaTable(changes(tmp_path)).create_checkpoint()
    entries = sorted((changes(tmp_path) / "_delta_log").glob("*.json"))
    for entry in entries[:-1]:  # what the clean-up does with entries that a checkpoint holds
        entry.unlink()
    with pytest.raises(FencedError):
        old.commit(paused)
    assert not entries[2].exists()
    assert values(state_at(tmp_path), "man") == [5]
