"""The value rules, by the worked examples of Trident's documentation and by their table."""

from __future__ import annotations

import operator
import pickle
from typing import Any

import pytest

from tests.harness.crashing_stores import DictMap
from trident.errors import StaleTransactionError
from trident.state import (
    EVERYTHING_WON,
    CombinerUpdates,
    CombinerValueUpdater,
    OpaqueMap,
    OpaqueValue,
    ReducerValueUpdater,
    Sentinel,
    Snapshot,
    TransactionalMap,
    TransactionalValue,
    Txid,
    Winners,
)


def test_transactional_example_of_the_documentation() -> None:
    store = DictMap(
        {("man",): TransactionalValue(1, 3), ("dog",): TransactionalValue(3, 4), ("apple",): TransactionalValue(2, 10)}
    )
    state = TransactionalMap(store)
    state.begin_commit(3)
    counts = state.multi_update([("man",), ("dog",)], [CombinerValueUpdater(operator.add, n) for n in (2, 1)])
    state.commit(3)
    assert counts == [5, 4]
    assert store.entries == {
        ("man",): TransactionalValue(3, 5),
        ("dog",): TransactionalValue(3, 4),
        ("apple",): TransactionalValue(2, 10),
    }


@pytest.mark.parametrize(("txid", "value", "prev"), [(3, 6, 4), (2, 3, 1)])
def test_opaque_example_of_the_documentation(txid: int, value: int, prev: int) -> None:
    store = DictMap({("count",): OpaqueValue(2, 0, prev=1, curr=4)})
    state = OpaqueMap(store)
    state.begin_commit(txid)
    assert state.multi_update([("count",)], [CombinerValueUpdater(operator.add, 2)]) == [value]
    state.commit(txid)
    assert store.entries == {("count",): OpaqueValue(txid, 0, prev, value)}


@pytest.mark.parametrize(
    ("stored", "txid", "base"),
    [
        (OpaqueValue(4, 7, "prev", "curr"), 5, "curr"),  # the winner of batch 4
        (OpaqueValue(4, 6, "prev", "curr"), 5, "prev"),  # a failed attempt of batch 4
        (OpaqueValue(5, 7, "prev", "curr"), 5, "prev"),  # an earlier attempt of this batch, or a retried task
        (OpaqueValue(5, 8, "prev", "curr"), 5, "prev"),
    ],
)
def test_what_a_commit_starts_from(stored: OpaqueValue, txid: int, base: str) -> None:
    assert stored.at(Snapshot(txid - 1, Winners(((1, 7),)))) == base


@pytest.mark.parametrize(
    ("stored", "seen"),
    [
        (OpaqueValue(3, 7, "prev", "curr"), "curr"),
        (OpaqueValue(4, 7, "prev", "curr"), "curr"),
        (OpaqueValue(4, 6, "prev", "curr"), "prev"),
        (OpaqueValue(5, 7, "prev", "curr"), "prev"),
    ],
)
def test_what_a_snapshot_of_batch_4_sees(stored: OpaqueValue, seen: str) -> None:
    assert stored.at(Snapshot(4, Winners(((1, 7),)))) == seen


def test_a_snapshot_that_is_too_old_says_by_how_much() -> None:
    state = OpaqueMap(DictMap({("a",): OpaqueValue(4, 0, 1, 2), ("b",): OpaqueValue(5, 0, 1, 2)}))
    assert state.multi_get_at([("a",), ("b",)], Snapshot(4)) == [2, 1]
    with pytest.raises(StaleTransactionError, match=r"batch 3 is behind batch 5 stored for \('b',\)") as caught:
        state.multi_get_at([("a",), ("b",)], Snapshot(3))
    assert (caught.value.txid, caught.value.stored_txid) == (3, 5)


def test_combiner_takes_the_argument_where_nothing_is_stored() -> None:
    updater = CombinerValueUpdater(operator.add, 5)
    assert [updater.update(None), updater.update(0), updater.update(2)] == [5, 5, 7]


def test_reducer_folds_the_tuples_over_the_stored_value_or_the_initial_one() -> None:
    updater = ReducerValueUpdater(lambda: 100, operator.sub, [1, 2])
    assert [updater.update(None), updater.update(10)] == [97, 7]


def test_winners_are_ranges() -> None:
    winners = Winners().with_winner(1, 5).with_winner(2, 5).with_winner(3, 6)
    assert winners.ranges == ((1, 5), (3, 6))
    assert [winners.winner(txid) for txid in range(5)] == [None, 5, 5, 6, 6]
    assert [winners.won(2, 5), winners.won(2, 6), winners.won(3, 5), winners.won(3, 6)] == [True, False, False, True]
    assert Winners.of([[1, 5], [3, 6]]) == winners


def test_adopted_batches_stand_whatever_wrote_them() -> None:
    winners = Winners(((5, 9),)).with_adopted(6)
    assert [winners.won(4, 1), winners.won(6, 2), winners.won(7, 2), winners.won(7, 9)] == [True, True, False, True]
    assert winners.with_adopted(3).adopted == 6
    assert Winners.of([[5, 9]], 6) == winners


def test_a_plain_number_is_a_commit_in_which_everything_before_won() -> None:
    commit = Txid.of(7)
    assert (commit, commit.attempt, commit.sentinel, commit.expected) == (7, 0, None, None)
    assert commit.winners is EVERYTHING_WON
    assert commit.winners.won(3, 99)
    assert Txid.of(commit) is commit


def test_a_txid_keeps_its_commit_when_pickled_and_when_seen_by_a_partition() -> None:
    expected = Sentinel("log", 6, 2)
    commit = Txid(7, 3, Winners(((1, 2),)), "log").for_partition(expected)
    copy = pickle.loads(pickle.dumps(commit))
    assert copy == 7
    for txid in (commit, copy):
        assert (txid.attempt, txid.winners, txid.incarnation, txid.expected) == (3, Winners(((1, 2),)), "log", expected)
        assert txid.sentinel == Sentinel("log", 7, 3)


def test_the_version_of_a_sentinel_rises_with_each_legal_move() -> None:
    moves = [Sentinel("log", 1, 5), Sentinel("log", 2, 5), Sentinel("log", 2, 6), Sentinel("log", 3, 9)]
    versions = [sentinel.version for sentinel in moves]
    assert versions == sorted(set(versions))
    assert str(moves[0]) == "batch 1 attempt 5 of incarnation log"


def test_updates_of_many_keys_are_what_each_updater_gives() -> None:
    stored, args = [None, 0, 5, None], [1, 2, 3, None]
    updates: CombinerUpdates[Any] = CombinerUpdates(lambda old, arg: old * 10 + arg, args)
    assert updates.update_all(stored) == [1, 2, 53, None] == [u.update(s) for u, s in zip(updates, stored, strict=True)]
    assert (len(updates), updates[1:3].update_all([1, 2])) == (4, [12, 23])
    with pytest.raises(ValueError, match="argument 2 is longer"):
        updates.update_all([1])
