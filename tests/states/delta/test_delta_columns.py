"""Commits by columns to a Delta table, in memory and beyond it: rows give the same, whatever fails or is opened again."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spouts import FixedBatchSpout
from states.delta import DeltaState
from tests.harness.column_schedules import (
    NUMBERS,
    ColumnPromises,
    commits_by_columns,
    number_keys,
    sum_by_columns,
    update_numbers,
)
from tests.states.delta.beyond_memory.test_delta_beyond_memory import is_large
from tests.states.delta.delta_states import state_at
from tests.states.memory.test_memory_columns import SOME, TYPE, update
from trident import TridentTopology
from trident.operations import Avg, Count, Sum
from trident.state import OpaqueValue, StateConf, StateType

pytestmark = pytest.mark.usefixtures("always_columns")
LETTERS = [*"abcdefgh", None]
BEYOND: dict[str, Any] = {"max_keys_in_memory": 2, "publish_every_s": 1000}


def opened(path: Path, value_type: str = "bigint", width: int = 1, **options: Any) -> Any:
    fields = (("word", "string"), ("n", "int"))[:width]
    options = {"fsync": False, "background_maintenance": False, "compact_after_commits": 3, **options}
    return state_at(path, StateConf("words", "counts", fields, value_type), StateType.OPAQUE, **options)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_numbers_by_columns_and_by_rows_tell_the_same_of_any_schedule(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    value_type, width = dice.choice(list(NUMBERS)), dice.choice([1, 2])
    columns = commits_by_columns(
        dice, partial(opened, tmp_path, value_type, width), "words/counts", partial(update_numbers, width=width),
        ["sum", "sum", "sum", "min", "max", "put", "remove"], LETTERS, NUMBERS[value_type], number_keys(LETTERS, width),
    )  # fmt: skip
    assert columns > 3


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, BEYOND], ids=["memory", "beyond"])
def test_structs_by_columns_and_by_rows_tell_the_same_of_any_schedule(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("states.delta.beyond_memory.bucketed_base.MOST_ROWS", 2)
    columns = commits_by_columns(
        random.Random(f"{options}"), partial(opened, tmp_path, TYPE, **options), "words/counts", update,
        ["combine", "combine", "combine", "combine", "put", "remove"], LETTERS, SOME, number_keys(LETTERS, 1),
    )  # fmt: skip
    assert columns > 8
    assert is_large(tmp_path) == bool(options)


def test_a_topology_commits_several_aggregates_by_columns(tmp_path: Path) -> None:
    topology = TridentTopology("columns")
    rows = FixedBatchSpout("shop: string, euros: bigint", 40, *[(f"shop {at % 30}", at) for at in range(120)])
    stream = topology.new_stream("orders", rows).group_by("shop")
    together = {"revenue": Sum("euros"), "orders": Count(), "mean": Avg("euros")}
    sales = stream.persistent_aggregate(DeltaState.opaque(tmp_path / "t", fsync=False), together, "sales")
    with topology.start(engine="in_process", log_dir=tmp_path / "log") as running:
        running.process_all_available()
        found = dict(running.state(sales).get_tuples())
    told = {shop: (each["revenue"], each["orders"], each["mean"]) for shop, each in found.items()}
    assert told == {f"shop {at}": (4 * at + 180, 4, at + 45) for at in range(30)}


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
