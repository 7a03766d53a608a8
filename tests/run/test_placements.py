"""Where states are committed if it is left open: it depends on the master and on what the store can do."""

from pathlib import Path
from typing import Any

import pytest

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import Keep
from trident import Config, TridentTopology
from trident.errors import ConfigError
from trident.operations import Count
from trident.plan import make_plan
from trident.read.open_partitions import make_state
from trident.run.placements import PlacedState, executors_of, placements_of, roaming_states
from trident.state import StateConf
from trident.state.interfaces import StateFactory

CLUSTER, ONE_MACHINE = Config(master="spark://somewhere:7077"), Config(master="local[2]")


class Fenced:
    """A state that says no more than that its store fences."""

    fences = True

    def make_state(self, conf: StateConf, partition_index: int, num_partitions: int) -> Any:
        return self

    def begin_commit(self, txid: int) -> None: ...

    def commit(self, txid: int) -> None: ...


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # whatever other tests have started


def placed(state: StateFactory | Any, config: Config, asked: str = "auto") -> PlacedState:
    topology = TridentTopology("t")
    words = topology.new_stream("s", FixedBatchSpout("word: string", 1, ["a"]))
    words.group_by("word").persistent_aggregate(state, Count(), "n").placement(asked)
    plan = make_plan(topology.graph())
    return placements_of(plan, config, {"n": [make_state(plan, config, "n", 0, 1)]})["n"]


def test_keys_roam_where_tasks_write_partitions_by_an_updaters_keys() -> None:
    for hint, asked, roams in ((1, "auto", False), (3, "auto", True), (3, "driver", False)):
        topology = TridentTopology("t")
        words = topology.new_stream("s", FixedBatchSpout("word: string", 1, ["a"]))
        words.partition_persist(Fenced(), "word", Keep(), state_name="n").parallelism_hint(hint).placement(asked)
        plan = make_plan(topology.graph())
        opened = [make_state(plan, CLUSTER, "n", partition, hint) for partition in range(hint)]
        found = placements_of(plan, CLUSTER, {"n": opened})
        assert found["n"].where == ("executors" if asked == "auto" else "driver")
        assert roaming_states(plan, {"n": opened}, executors_of(found)) == (["n"] if roams else [])


def test_on_a_cluster_executors_commit_what_fences_and_on_one_machine_the_driver() -> None:
    assert placed(Fenced(), CLUSTER) == ("executors", "auto, on a cluster")
    assert placed(Fenced(), ONE_MACHINE) == ("driver", "auto, on one machine")
    assert placed(Fenced(), ONE_MACHINE, "executors").where == "executors"
    assert placed(Fenced(), CLUSTER, "driver") == ("driver", "as asked")
    assert placed(MemoryMapState(), CLUSTER).where == "driver"


def test_a_table_in_a_folder_is_committed_by_the_driver_unless_told_otherwise(tmp_path: Path) -> None:
    found = placed(DeltaState.opaque(tmp_path / "t"), CLUSTER)
    assert found == ("driver", "auto: its place is on this machine, and executors of another one may not see it")
    assert placed(DeltaState.opaque(tmp_path / "t"), CLUSTER, "executors").where == "executors"


def test_a_store_without_a_fence_is_the_drivers_and_refused_in_executors(tmp_path: Path) -> None:
    state = sqlite_state(str(tmp_path / "db"))
    assert "cannot refuse a task that was replaced" in placed(state, CLUSTER).why
    with pytest.raises(ConfigError, match="state 'n' cannot be committed in executors: its store"):
        placed(state, CLUSTER, "executors")
    with pytest.raises(ConfigError, match='engine "in_process" has no executors'):
        placed(Fenced(), Config(engine="in_process"), "executors")
