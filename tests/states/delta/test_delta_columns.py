"""Commits by columns to a Delta table: whatever is committed, fails, is removed or opened again, rows give the same."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness.column_schedules import (
    NUMBERS,
    ColumnPromises,
    commits_by_columns,
    number_keys,
    sum_by_columns,
    update_numbers,
)
from tests.states.delta.delta_states import state_at
from trident.state import OpaqueValue, StateConf, StateType

pytestmark = pytest.mark.usefixtures("always_columns")
LETTERS = [*"abcde", None]


def opened(path: Path, value_type: str = "bigint", width: int = 1, **options: Any) -> Any:
    fields = (("word", "string"), ("n", "int"))[:width]
    options = {"fsync": False, "background_maintenance": False, "compact_after_commits": 5, **options}
    return state_at(path, StateConf("words", "counts", fields, value_type), StateType.OPAQUE, **options)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_columns_and_rows_tell_the_same_of_any_schedule(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    value_type, width = dice.choice(list(NUMBERS)), dice.choice([1, 2])
    columns = commits_by_columns(
        dice, partial(opened, tmp_path, value_type, width), "words/counts", partial(update_numbers, width=width),
        ["sum", "sum", "sum", "min", "max", "put", "remove"], LETTERS, NUMBERS[value_type], number_keys(LETTERS, width),
    )  # fmt: skip
    assert columns > 3


def test_what_is_put_by_columns_is_read_by_everybody(tmp_path: Path) -> None:
    state = opened(tmp_path)
    assert sum_by_columns(state, 1, a=1, b=2) == [1, 2]
    assert sum_by_columns(state, 2, b=3, c=4) == [5, 4]
    state.begin_commit(3)
    state.multi_put([("d",)], [9])  # rows after columns
    state.commit(3)
    assert sum_by_columns(state, 4, d=1, a=1) == [10, 2]
    expected = [OpaqueValue(4, 0, 1, 2), OpaqueValue(2, 0, 2, 5), OpaqueValue(2, 0, None, 4), OpaqueValue(4, 0, 9, 10)]
    keys = [(word,) for word in "abcd"]
    assert state.map_state.backing.multi_get(keys) == expected == opened(tmp_path).map_state.backing.multi_get(keys)


def test_a_map_shows_and_keeps_what_the_commit_put_by_columns(tmp_path: Path) -> None:
    state = opened(tmp_path)
    sum_by_columns(state, 1, a=1, b=1)
    backing = state.map_state.backing
    state.begin_commit(2)
    assert state.multi_combine([["a"]], np.array([1]), "sum") is not None
    assert backing.multi_get([("a",), ("b",)]) == [OpaqueValue(2, 0, 1, 2), OpaqueValue(1, 0, None, 1)]
    backing.multi_delete([("a",), ("b",), ("never",)])
    state.commit(2)
    assert opened(tmp_path).map_state.backing.multi_get([("a",), ("b",)]) == [OpaqueValue(2, 0, 1, 2), None]


class TestColumns(ColumnPromises):
    @pytest.fixture
    def again(self, tmp_path: Path) -> Any:
        return partial(opened, tmp_path)
