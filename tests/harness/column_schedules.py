"""Random commits by columns beside the same commits by rows: what an opaque state answers and shows must be the same."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from states.memory import MemoryBackingMap, MemoryData
from tests.harness.crashing_stores import tuples_at
from trident.errors import StaleTransactionError
from trident.operations import Max, Min, Sum
from trident.state import CombinerUpdates, OpaqueMap, OpaqueValue, Sentinel, Snapshot, Txid, Winners

NUMBERS: dict[str, list[Any]] = {"bigint": [0, 1, -7, 1 << 40], "double": [0.0, -0.0, 1.5, math.inf, math.nan]}
_COMBINE = {"sum": Sum().combine, "min": Min().combine, "max": Max().combine}
Update = Callable[[Any, str, dict[Any, Any]], tuple[Any, bool]]
"""Does one update of a commit; returns its answer, and whether it went by columns."""


def commits_by_columns(
    dice: random.Random, opened: Callable[[], Any], prefix: str, update: Update, calls: Sequence[str],
    words: Sequence[Any], values: Sequence[Any], keys: Sequence[tuple[Any, ...]], place: str = "",
    look: Callable[[Any], None] = lambda state: None,
) -> int:  # fmt: skip
    """Commit, fail and open a state again, 25 times, and compare it with one of rows in memory.

    `opened`: opens the state, again and again. `calls`, `words`, `values`: what updates are drawn from. `keys`: those that are
    read. `look`: called with the state after each commit that won. Returns how many updates went by columns.
    """
    columnar, by_rows = opened(), OpaqueMap(MemoryBackingMap(MemoryData()), prefix)
    winners, committed, number, expected, columns = Winners(), 0, 1 << 20, None, 0
    for _ in range(25):
        txid, wins = Txid(committed + 1, number, winners, "log", expected), dice.random() < 0.7
        by_rows.begin_commit(txid)
        columnar.begin_commit(txid)
        for _ in range(dice.choice([1, 1, 1, 2])):
            what = dice.choice(calls)
            batch = {word: dice.choice(values) for word in dice.sample(words, dice.randrange(1, 5))}
            (answer, by_columns), (other, _) = (update(state, what, batch) for state in (columnar, by_rows))
            assert repr(answer) == repr(other)
            columns += by_columns
            assert repr(columnar.multi_get(keys)) == repr(by_rows.multi_get(keys))
        for state in (columnar, by_rows) if wins or dice.random() < 0.5 else (by_rows,):
            state.commit(txid)
        if wins:
            committed, winners = committed + 1, winners.with_winner(committed + 1, number)
            expected = Sentinel("log", committed, number, place)
            columnar.recorded(Snapshot(committed, winners))
        else:
            number += 1
        if not wins or dice.random() < 0.3:
            columnar.close()
            columnar = opened()
        if wins:
            snapshot = Snapshot(committed, winners)
            assert _readable(columnar, snapshot, keys) == _readable(by_rows, snapshot, keys)
            look(columnar)
    return columns


def _readable(state: Any, snapshot: Snapshot, keys: Sequence[tuple[Any, ...]]) -> str:
    rows = sorted(tuples_at(state, snapshot), key=str)
    return repr([state.multi_get_at(keys, snapshot), rows, state.read_sentinel()])


def number_keys(words: Sequence[Any], width: int) -> list[tuple[Any, ...]]:
    return [(word, 7)[:width] for word in words]


def update_numbers(state: Any, what: str, batch: dict[Any, Any], width: int) -> tuple[Any, bool]:
    keys = number_keys(list(batch), width)
    if what == "remove":
        return state.multi_remove(keys), False
    if what == "put":
        return state.multi_put(keys, list(batch.values())), False
    parts = [pa.array(list(batch), pa.string()), [7] * len(batch)][:width]
    dtype = np.float64 if isinstance(next(iter(batch.values())), float) else np.int64
    new = state.multi_combine(parts, np.array(list(batch.values()), dtype), what)
    if new is not None:
        return new.tolist(), True
    return state.multi_update(keys, CombinerUpdates(_COMBINE[what], list(batch.values()))), False


def sum_by_columns(state: Any, txid: int, **counts: int) -> list[int] | None:
    """Commit a batch of sums; return the new ones, None if they went by rows."""
    state.begin_commit(txid)
    new = state.multi_combine([list(counts)], np.array(list(counts.values())), "sum")
    state.commit(txid)
    return None if new is None else new.tolist()


class ColumnPromises:
    """What any store keeps that takes columns. A subclass has the fixture `again`, which opens the same state of a type."""

    def test_an_update_after_columns_in_the_same_commit_counts(self, again: Callable[[str], Any]) -> None:
        state = again("bigint")
        state.begin_commit(1)
        assert state.multi_combine([["a", "b"]], np.array([1, 2]), "sum") is not None
        assert state.multi_combine([["a"]], np.array([1]), "sum") is None
        assert state.multi_update([("a",)], CombinerUpdates(Sum().combine, [5])) == [6]
        state.commit(1)
        stored = again("bigint").map_state.backing.multi_get([("a",), ("b",)])
        assert stored == [OpaqueValue(1, 0, None, 6), OpaqueValue(1, 0, None, 2)]

    def test_a_later_batch_is_named_and_nothing_is_written(self, again: Callable[[str], Any]) -> None:
        state = again("bigint")
        sum_by_columns(state, 5, a=1)
        state.begin_commit(3)
        with pytest.raises(StaleTransactionError, match=r"batch 3 is behind batch 5 stored for \('a',\)"):
            state.multi_combine([["b", "a"]], np.array([1, 1]), "sum")
        state.close()
        assert again("bigint").multi_get([("a",), ("b",)]) == [1, None]

    @pytest.mark.parametrize("value_type", ["int", "decimal(9,2)", "string"])
    def test_other_values_are_committed_by_rows(self, again: Callable[[str], Any], value_type: str) -> None:
        state = again(value_type)
        assert sum_by_columns(state, 1, a=1) is None
