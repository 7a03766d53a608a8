"""Several numbers a key, committed by columns to a Delta table in memory and beyond it: rows in a dict give the same."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.delta.beyond_memory.bucketed_base import BucketLimits
from tests.harness.column_schedules import commits_by_columns
from tests.states.delta.beyond_memory.test_delta_beyond_memory import is_large
from tests.states.delta.delta_states import state_at
from tests.states.memory.test_struct_columns import SOME, TYPE, update
from trident import TridentTopology
from trident.operations import Avg, Count, Sum
from trident.state import StateConf, StateType

pytestmark = pytest.mark.usefixtures("always_columns")
WORDS = [*"abcdefgh", None]
BEYOND: dict[str, Any] = {"max_keys_in_memory": 2, "publish_every_s": 1000}


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("states.delta.beyond_memory.bucketed_base.BucketLimits", lambda: BucketLimits(2))


def opened(path: Path, options: dict[str, Any]) -> Any:
    options = {"fsync": False, "background_maintenance": False, "compact_after_commits": 3, **options}
    return state_at(path, StateConf("t", "s", (("word", "string"),), TYPE), StateType.OPAQUE, **options)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, BEYOND], ids=["memory", "beyond"])
def test_columns_and_rows_tell_the_same_of_any_schedule(tmp_path: Path, options: dict[str, Any]) -> None:
    columns = commits_by_columns(
        random.Random(f"{options}"), partial(opened, tmp_path, options), "t/s", update,
        ["combine", "combine", "combine", "combine", "put", "remove"], WORDS, SOME, [(word,) for word in WORDS],
    )  # fmt: skip
    assert columns > 8
    assert is_large(tmp_path) == bool(options)


def test_a_topology_commits_several_aggregates_by_columns(tmp_path: Path) -> None:
    topology = TridentTopology("columns")
    rows = FixedBatchSpout("shop: string, euros: bigint", 40, *[(f"shop {at % 30}", at) for at in range(120)])
    together = {"revenue": Sum("euros"), "orders": Count(), "mean": Avg("euros")}
    sales = (
        topology.new_stream("orders", rows)
        .group_by("shop")
        .persistent_aggregate(DeltaState.opaque(tmp_path / "t", fsync=False), together, "sales")
    )
    with topology.start(engine="in_process", log_dir=tmp_path / "log") as running:
        running.process_all_available()
        found = dict(running.state(sales).get_tuples())
    assert len(found) == 30
    for at in range(30):
        euros = [at, at + 30, at + 60, at + 90]
        told = found[f"shop {at}"]
        assert (told["revenue"], told["orders"], told["mean"]) == (sum(euros), 4, sum(euros) / 4)
