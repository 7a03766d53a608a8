"""A Delta state of an earlier version has its changes at its path. It is read there, and moved by its first commit."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from states.delta.change_table import ChangeTable
from tests.states.delta.delta_states import ROOT, Log, changes, commit, reader_at, state_at, values
from tests.states.delta.move_child import POINTS
from tests.states.delta.test_delta_published import read
from trident.errors import FencedError
from trident.state.interfaces import StateType
from trident.state.txid import Snapshot

BATCHES = 5


def old_state(folder: Path, log: Log, kind: StateType = StateType.OPAQUE, lost: bool = False) -> Path:
    """Make a state as earlier versions did, which had the changes at the path."""
    state = state_at(folder / "new", kind=kind)
    for number in range(1, BATCHES + 1):
        commit(state, log, number, 1, {"man": 1, f"w{number}": number})
    if lost:
        commit(state, log, BATCHES + 1, 1, {"man": 100, "never": 1}, record=False)
    state.close()
    return changes(folder / "new").rename(folder / "old")


WORDS_OF_ALL = {"man": BATCHES} | {f"w{n}": n for n in range(1, BATCHES + 1)}


def is_old(path: Path) -> bool:
    return any(field.name == "_sentinel" for field in DeltaTable(path).schema().fields)


@pytest.mark.parametrize("kind", list(StateType))
def test_a_state_of_an_earlier_version_is_read_where_it_is_and_moved_by_the_first_commit(
    tmp_path: Path, kind: StateType
) -> None:
    log = Log()
    path = old_state(tmp_path, log, kind)
    assert is_old(path)
    reader = reader_at(path, kind)
    assert values(reader, "man", "w3") == [5, 3]
    assert dict(state_at(path, kind=kind).get_tuples()) == WORDS_OF_ALL
    assert is_old(path), "a reader moves nothing"
    state = state_at(path, kind=kind)
    commit(state, log, 6, 1, {"man": 1, "new": 1})
    assert not is_old(path)
    assert values(reader, "man", "w3", "new") == [6, 3, 1], "the reader has followed"
    assert dict(state_at(path, kind=kind).get_tuples()) == WORDS_OF_ALL | {"man": 6, "new": 1}
    assert state.read_sentinel() == log.expected
    state.recorded(Snapshot(6, log.winners))
    state.close()
    assert read(path) == WORDS_OF_ALL | {"man": 6, "new": 1}
    assert state.at(6).multi_get([("man",)]) == [6]


def test_the_step_itself_shows_the_committed_batches_only(tmp_path: Path) -> None:
    log = Log()
    path = old_state(tmp_path, log, lost=True)
    state = state_at(path)
    state.begin_commit(log.txid(6, 2))
    assert read(path) == WORDS_OF_ALL
    state.wait_for_maintenance()
    assert read(path) == WORDS_OF_ALL
    state = state_at(path)
    commit(state, log, 6, 3, {"man": 1})
    state.recorded(Snapshot(6, log.winners))
    state.close()
    assert read(path) == WORDS_OF_ALL | {"man": 6}
    assert values(state.at(Snapshot(6, log.winners)), "man", "never") == [6, None]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_in_the_middle_of_the_move_harms_nothing(tmp_path: Path, point: str) -> None:
    log = Log()
    path = old_state(tmp_path, log)
    child = [sys.executable, "-m", "tests.states.delta.move_child", str(path), point]
    for _ in range(2):  # the second one meets what the first one left
        run = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=False)
        assert run.returncode == -signal.SIGKILL, run.stderr
        assert is_old(path) == (point != "after the step")
        assert dict(reader_at(path).get_tuples()) == WORDS_OF_ALL
        assert reader_at(path).read_sentinel() == log.expected
        if not is_old(path):
            assert read(path) == WORDS_OF_ALL
            break
    state = state_at(path)
    for number in (6, 7):
        commit(state, log, number, 3, {"man": 1})
    state.recorded(Snapshot(7, log.winners))
    state.close()
    assert dict(state_at(path).get_tuples()) == WORDS_OF_ALL | {"man": 7}
    assert read(path) == WORDS_OF_ALL | {"man": 7}


def test_two_writers_that_move_at_once_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    path = old_state(tmp_path, log)
    paused, successor = state_at(path), state_at(path)
    copy = ChangeTable.copy

    def overtaken(table: ChangeTable, *rest: Any) -> None:
        monkeypatch.undo()
        commit(successor, log, 6, 2, {"man": 1})
        copy(table, *rest)

    monkeypatch.setattr(ChangeTable, "copy", overtaken)
    with pytest.raises(FencedError, match="has taken over"):
        paused.begin_commit(log.txid(6, 1))
    assert dict(reader_at(path).get_tuples()) == WORDS_OF_ALL | {"man": 6}
    commit(successor, log, 7, 2, {"man": 1})
    assert dict(reader_at(path).get_tuples()) == WORDS_OF_ALL | {"man": 7}
