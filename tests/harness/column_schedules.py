"""Random commits by columns beside the same commits by rows: what an opaque state answers and shows must be the same."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from states.memory import MemoryBackingMap, MemoryData
from tests.harness.crashing_stores import tuples_at
from trident.operations import Max, Min, Sum
from trident.state import CombinerUpdates, OpaqueMap, Sentinel, Snapshot, Txid, Winners

NUMBERS: dict[str, list[Any]] = {"bigint": [0, 1, -7, 1 << 40], "double": [0.0, -0.0, 1.5, math.inf, math.nan]}
_COMBINE = {"sum": Sum().combine, "min": Min().combine, "max": Max().combine}
Update = Callable[[Any, str, dict[Any, Any]], tuple[Any, bool]]
"""Does one update of a commit; returns its answer, and whether it went by columns."""


def commits_by_columns(
    dice: random.Random,
    opened: Callable[[], Any],
    prefix: str,
    update: Update,
    calls: Sequence[str],
    words: Sequence[Any],
    values: Sequence[Any],
    keys: Sequence[tuple[Any, ...]],
    place: str = "",
    look: Callable[[Any], None] = lambda state: None,
) -> int:
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
    """Return the keys of words, of one field or of two."""
    return [(word, 7)[:width] for word in words]


def update_numbers(state: Any, what: str, batch: dict[Any, Any], width: int) -> tuple[Any, bool]:
    """Do one update with numbers, as `Update`."""
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
