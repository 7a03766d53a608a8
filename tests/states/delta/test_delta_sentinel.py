"""The sentinel of a Delta state: moved only from what was read, "none" included; it names the state whose table it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spouts import FixedBatchSpout
from states.delta import DeltaBackingMap, DeltaState
from tests.states.delta.delta_states import WORDS, Log, changes, commit, count_men, reader_at, state_at, update, values
from trident import TridentTopology
from trident.errors import FencedError, StateLossDetected, StateMismatchError, StatePlaceError, TopologyError
from trident.operations import Count
from trident.state.backing_map import backing_map
from trident.state.interfaces import StateConf, StateType
from trident.state.txid import Sentinel


def map_at(path: Path) -> DeltaBackingMap:
    return DeltaBackingMap(path, StateType.OPAQUE, WORDS)


def sentinel(txid: int, attempt: int = 0, place: str = "words/counts") -> Sentinel:
    return Sentinel("inc", txid, attempt, place)


def filled(path: Path) -> Path:
    log = Log()
    for number in (1, 2):
        state = state_at(path)
        commit(state, log, number, 1, {"man": 1})
        state.close()
    return path


def wipe(path: Path) -> None:
    shutil.rmtree(path)


def empty(path: Path) -> None:
    map_at(path).reset()


def roll_back(path: Path) -> None:
    DeltaTable(changes(path)).restore(1)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("lose", [wipe, empty, roll_back])
def test_a_sentinel_is_not_laid_on_a_table_that_lost_what_was_read(
    tmp_path: Path, lose: Callable[[Path], None], force: bool
) -> None:
    table = filled(tmp_path / "t")
    backing = map_at(table)
    assert backing.read_sentinel() == sentinel(2, 1)
    lose(table)
    with pytest.raises(StateLossDetected, match="is gone|was rolled back from batch 2 attempt 1"):
        backing.move_sentinel(sentinel(3, 1), force)
    assert lose is not wipe or not table.exists()
    with pytest.raises(StateLossDetected):  # what was read is remembered until it is read again
        backing.move_sentinel(sentinel(3, 2), force)


@pytest.mark.parametrize("force", [False, True])
def test_none_is_compared_as_well(tmp_path: Path, force: bool) -> None:
    backing = map_at(tmp_path)
    assert backing.read_sentinel() is None
    map_at(tmp_path).move_sentinel(sentinel(1, 5), force=True)
    with pytest.raises(FencedError):
        backing.move_sentinel(sentinel(1, 1), force)
    assert map_at(tmp_path).read_sentinel() == sentinel(1, 5)


@pytest.mark.parametrize("lose", [wipe, empty])
def test_a_table_that_is_emptied_within_a_commit_fails_it_as_a_loss(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    table, log = tmp_path / "t", Log()
    state = state_at(table)
    count_men(state, log, (1, 2))
    txid = log.txid(3, 1)
    state.begin_commit(txid)
    update(state, {"man": 1})
    state.wait_for_maintenance()
    lose(table)
    with pytest.raises(StateLossDetected, match="its sentinel .* is gone"):
        state.commit(txid)
    assert reader_at(table).read_sentinel() is None
    with pytest.raises(StateMismatchError):
        state.begin_commit(log.txid(3, 2))


def test_a_table_that_is_replaced_by_an_older_copy_within_a_commit_gets_no_entry(tmp_path: Path) -> None:
    table, copy, log = tmp_path / "t", tmp_path / "copy", Log()
    state = state_at(table)
    for number in range(1, 5):
        commit(state, log, number, 1, {"man": 1})
        if number == 2:
            shutil.copytree(table, copy)
    txid = log.txid(5, 1)
    state.begin_commit(txid)
    update(state, {"man": 1})
    state.wait_for_maintenance()
    shutil.rmtree(table)
    copy.rename(table)
    with pytest.raises(StateLossDetected, match="rolled back from batch 4"):
        state.commit(txid)
    assert values(reader_at(table), "man") == [2]


def test_a_move_without_a_read_reads_by_itself_and_own_moves_follow_each_other(tmp_path: Path) -> None:
    backing = map_at(tmp_path)
    for txid in (0, 0, 3, 7):
        backing.move_sentinel(sentinel(txid, 1), force=True)
    backing.move_sentinel(sentinel(8, 1))
    assert backing.read_sentinel() == sentinel(7, 1)
    with pytest.raises(FencedError):
        backing.move_sentinel(sentinel(6, 1))


def test_all_five_fields_come_back_as_they_were_given(tmp_path: Path) -> None:
    for given in (
        Sentinel("a", 0, 9),
        Sentinel("b", 4, 1 << 60, "t%2F/ž", False),
        Sentinel("b", 4, 1 << 60, "p", True),
    ):
        map_at(tmp_path).move_sentinel(given, force=True)
        for one in (map_at(tmp_path), state_at(tmp_path), reader_at(tmp_path)):
            found: Sentinel | None = one.read_sentinel()
            assert found is not None
            assert tuple(found) == tuple(given)
    assert backing_map(map_at(tmp_path)).facts.commits_atomically


def test_the_table_of_another_state_is_refused_by_its_name(tmp_path: Path) -> None:
    log = Log()
    commit(state_at(tmp_path), log, 1, 1, {"man": 1})
    other = state_at(tmp_path, StateConf("words", "others", WORDS.key_fields, "bigint"))
    with pytest.raises(StatePlaceError, match="words/counts"):
        other.begin_commit(log.txid(2, 1))
    with pytest.raises(StatePlaceError, match="words/counts"):
        map_at(tmp_path).move_sentinel(sentinel(2, 1, "words/others"))
    assert values(reader_at(tmp_path), "man") == [1]


def test_two_states_at_one_path_by_two_names_are_refused_where_they_are_declared(tmp_path: Path) -> None:
    topology = TridentTopology("t")
    words = topology.new_stream("s", FixedBatchSpout("word: string", 1, ("a",))).group_by("word")
    (tmp_path / "t").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "t")
    words.persistent_aggregate(DeltaState.opaque(tmp_path / "t"), Count(), "count", state_name="one")
    for folder in ("link", "link/inner"):
        with pytest.raises(TopologyError, match="states 'one' and 'two' are (both )?kept in "):
            words.persistent_aggregate(DeltaState.opaque(tmp_path / folder), Count(), "count", state_name="two")
