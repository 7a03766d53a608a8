"""Delta states that tasks of Spark stage and the driver publishes: the same values as those that the driver commits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spouts import FixedBatchSpout
from states.delta import DeltaState
from tests.harness.topology_runs import QUICK
from trident import Config, TridentCollector, TridentTopology, TridentTuple
from trident.errors import ConfigError
from trident.operations import BaseStateUpdater, Count, MapGet, Split, Sum
from trident.testing.backend.simulated_log import Add

LINES = [(f"the cow {number % 7} jumped over moon {number}",) for number in range(60)]


class KeepOrRemove(BaseStateUpdater[Any]):
    """Counts words; one that ends with a seven removes its key."""

    def update_state(self, state: Any, tuples: Sequence[TridentTuple], collector: TridentCollector) -> None:
        words = sorted({row[0] for row in tuples})
        state.multi_update([(word,) for word in words], [Add(1) for _ in words])
        state.multi_remove([(word,) for word in words if word.endswith("7")])


def declare(folder: Path, placement: str, **options: Any) -> tuple[TridentTopology, dict[str, Any]]:
    """Count words; behind that, count counts; beside it a sum, removals, and lookups that are counted."""

    def table(name: str) -> Any:
        return DeltaState.opaque(folder / name, **options)

    topology = TridentTopology("t")
    words = topology.new_stream("lines", FixedBatchSpout("line: string", 10, *LINES)).each("line", Split(), "word")
    counts = words.group_by("word").persistent_aggregate(table("counts"), Count(), "n", state_name="counts")
    again = counts.new_values_stream().group_by("n")
    states = {
        "counts": counts,
        "again": again.persistent_aggregate(table("again"), Count(), "times", state_name="again"),
        "kept": words.partition_persist(table("kept"), ["word"], KeepOrRemove(), state_name="kept"),
        "total": words.persistent_aggregate(
            DeltaState.transactional(folder / "total", **options), Count(), "total", state_name="total"
        ),
    }
    before = words.state_query(counts, "word", MapGet(), "n").group_by("word")
    states["seen"] = before.persistent_aggregate(table("seen"), "n", Sum(), "sum", state_name="seen")
    for each in states.values():
        each.placement(placement)
    return topology, states


def values_of(folder: Path, placement: str, pending: int, **options: Any) -> dict[str, Any]:
    topology, states = declare(folder, placement, **options)
    settings = {"engine": "spark", "max_spout_pending": pending, "log_dir": str(folder / "log"), "parallelism": 2}
    with topology.start(Config.of({**QUICK, **settings})) as running:
        running.process_all_available()
        assert {placed.where for placed in running.placements.values()} == {placement}
        assert running.status["failures"] == 0
        found = {name: sorted(running.state(state).get_tuples()) for name, state in states.items() if name != "total"}
        return {**found, "total": running.state(states["total"]).get()}


def published(folder: Path, name: str) -> int:
    """How many versions of a state's changes hold what a task staged."""
    history = DeltaTable(folder / name / "_trident" / "changes").history()
    return sum("trident.staged" in entry for entry in history)


@pytest.mark.long
@pytest.mark.parametrize(("pending", "options"), [(1, {"compact_after_commits": 2}), (3, {"max_keys_in_memory": 20})])
def test_executors_and_driver_come_to_the_same_values(
    spark: Any, tmp_path: Path, pending: int, options: dict[str, Any]
) -> None:
    by_driver = values_of(tmp_path / "d", "driver", pending, **options)
    by_executors = values_of(tmp_path / "e", "executors", pending, **options)
    assert by_executors == by_driver
    assert by_driver["total"] == 6 * len(LINES) + len(LINES)
    batches = len(LINES) // 10
    assert {name: published(tmp_path / "e", name) for name in by_driver} == dict.fromkeys(by_driver, batches)
    in_files = DeltaTable(tmp_path / "e" / "counts").transaction_version("trident/merged") is not None
    assert in_files == ("max_keys_in_memory" in options)
    assert not [file for name in by_driver for file in (tmp_path / "e" / name).glob("_trident/changes/_staged/*")]
    shown = DeltaTable(tmp_path / "e" / "counts").to_pyarrow_table().to_pylist()
    assert sorted((row["word"], row["n"]) for row in shown) == by_driver["counts"]


def test_a_query_that_sees_its_batch_leaves_the_state_to_the_driver(spark: Any, tmp_path: Path) -> None:
    topology = TridentTopology("t")
    words = topology.new_stream("lines", FixedBatchSpout("word: string", 2, ("a",), ("b",), ("a",)))
    counts = words.group_by("word").persistent_aggregate(DeltaState.opaque(tmp_path / "n"), Count(), "n")
    words.state_query(counts, "word", MapGet(), "now", sees="this_batch")
    with pytest.raises(ConfigError, match="cannot be committed in executors: a query of it sees its own batch"):
        topology.start(**QUICK, engine="spark", log_dir=str(tmp_path / "log"), state_placement="executors")
