"""What a start decides (workers, where states are committed) and opens, which is complete or closed whatever fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.sqlite_map import sqlite_state
from tests.harness.topology_runs import Keep
from trident import Config, Fields, TridentTopology
from trident.coordination.log_interface import MemoryLog
from trident.errors import ConfigError
from trident.operations import BaseFunction, Count
from trident.planner import make_plan
from trident.runtime.reading.open_partitions import make_state
from trident.runtime.start import opened_topology as module
from trident.runtime.start.engine_choice import with_workers
from trident.runtime.start.opened_topology import Closers, OpenedTopology
from trident.runtime.start.placements import PlacedState, executors_of, placements_of, roaming_states
from trident.spout.interfaces import SpoutType
from trident.state import StateConf
from trident.state.interfaces import StateFactory

calls: list[str] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


class State:
    """Says when each of its partitions is opened and closed."""

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Any:
        if partition_index == 2:
            raise ConfigError("no third partition")
        calls.append(f"open state {partition_index}")
        opened = State()
        opened.close = lambda: calls.append(f"close state {partition_index}")  # type: ignore[attr-defined]
        return opened

    def begin_commit(self, txid: int) -> None: ...
    def commit(self, txid: int) -> None: ...


class Spout:
    """Says when it is opened and closed."""

    spout_type = SpoutType.OPAQUE

    def get_output_fields(self) -> Fields:
        return Fields("x: string")

    def get_coordinator(self, conf: Any) -> Any:
        calls.append("open spout")
        return self

    def get_emitter(self, conf: Any) -> Any:
        return Emitter()

    def initialize_transaction(self, txid: int, previous: Any) -> Any: ...
    def parts(self, attempt: Any, definition: Any, parallelism: int) -> Any: ...
    def success(self, txid: int, definition: Any) -> None: ...
    def close(self) -> None:
        calls.append("close spout")


class Emitter:
    def emit(self, part: Any) -> Any: ...


class Prepared(BaseFunction):
    """Says when it is prepared and cleaned up."""

    output_types = ("string",)

    def prepare(self, conf: Any, context: Any) -> None:
        calls.append("prepare")

    def execute(self, tuple: Any, collector: Any) -> None: ...
    def cleanup(self) -> None:
        calls.append("clean up")


class Log(MemoryLog):
    def close(self) -> None:
        calls.append("close log")
        super().close()


def open_one(partitions: int = 2) -> OpenedTopology:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", Spout()).each("x", Prepared(), "y")
    stream.partition_persist(State(), Keep(), "z: string", state_name="rows").parallelism_hint(partitions)
    graph = topology.graph()
    return OpenedTopology(graph, make_plan(graph), Config(engine="in_process"), lambda states: Log("t"))


OPEN = ["open state 0", "open state 1", "open spout", "prepare"]
CLOSE = ["close spout", "close state 0", "close state 1", "clean up", "close log"]


def test_all_is_closed_once_spouts_first_and_the_log_last() -> None:
    opened = open_one()
    assert calls == OPEN
    opened.closers.close("spouts")
    opened.close()
    opened.close()
    assert calls == OPEN + CLOSE


def test_what_a_state_opened_before_one_failed_is_closed() -> None:
    with pytest.raises(ConfigError, match="no third partition"):
        open_one(partitions=3)
    assert calls == ["open state 0", "open state 1", "close state 0", "close state 1"]


@pytest.mark.parametrize(
    ("step", "left"),
    [
        ("check_states", ["close state 0", "close state 1"]),
        ("reconcile", ["close state 0", "close state 1", "close log"]),
        ("programs_of", ["close spout", "close state 0", "close state 1", "close log"]),
        ("open_committer", CLOSE),
    ],
)
def test_whatever_fails_all_that_was_opened_is_closed(
    step: str, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(module, step, broken)
    with pytest.raises(RuntimeError, match="broken"):
        open_one()
    assert [call for call in calls if call.startswith(("close", "clean"))] == left


def test_what_cannot_be_closed_keeps_nothing_open(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise OSError("gone")

    closers = Closers("t")
    closers.add("states", broken, lambda: calls.append("state"))
    closers.add("log", lambda: calls.append("log"))
    closers.close()
    assert calls == ["state", "log"]
    assert "topology t: closing failed" in caplog.text


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


_STARTS = """
import json, sys
from pyspark.sql import SparkSession
from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.operations import Count

told = []
for settings in json.loads(sys.argv[1]):
    topology = TridentTopology("words")
    words = topology.new_stream("words", FixedBatchSpout("word: string", 2, ["a"], ["b"], ["a"]))
    counts = words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    with topology.start(engine="spark", **settings) as running:
        running.process_all_available()
        spark = SparkSession.builder.getOrCreate()
        told.append([
            "that stay" in str(running.explain()), spark.sparkContext.master, running.opened.runner.parallelism,
            spark.sparkContext.defaultParallelism, spark.range(1000).repartition(3).count(),
            running.state(counts).multi_get(["a", "b"]), sorted(running.config.given),
        ])
print(json.dumps(told))
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_spark_of_this_machine_has_resident_workers_and_slots_for_other_jobs(tmp_path: Path) -> None:
    local, one = {"master": "local[2]"}, {"spark_conf": {"spark.master": "local[1, 4]"}}
    settings = [local, {**local, "workers": "jobs"}, one]
    done = subprocess.run(
        [sys.executable, "-c", _STARTS, json.dumps(settings)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [
        [True, "local[4]", 2, 2, 1000, [2, 1], ["engine", "master"]],
        [False, "local[2]", 2, 2, 1000, [2, 1], ["engine", "master", "workers"]],
        [True, "local[3, 4]", 1, 1, 1000, [2, 1], ["engine", "spark_conf"]],
    ]


@pytest.mark.parametrize(
    ("settings", "workers"), [({}, "jobs"), ({"workers": "resident"}, "resident"), ({"engine": "in_process"}, "jobs")]
)
def test_on_a_session_that_is_there_workers_are_resident_if_asked_for(
    spark: SparkSession, settings: dict[str, Any], workers: str
) -> None:
    config = Config(**settings)
    assert with_workers(config, {}).workers == workers
    assert with_workers(config, {}).given == config.given
