"""What steps ask for: recorded in the plan, summed by stages, and given to Spark where it can honour it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import Stream, TopologyError, TridentTopology
from trident.graph import Resources
from trident.operations import Count
from trident.planner import make_plan
from trident.planner.loads import StageLoad, commit_loads, stage_loads
from trident.spark.spark_resources import cores_of_executors, memory_settings, undone_memory


def stream_of(topology: TridentTopology) -> Stream:
    return topology.new_stream("in", FixedBatchSpout("word: string", 1, ("a",)))


def test_the_plan_has_what_steps_and_states_ask_for() -> None:
    topology = TridentTopology("t")
    stream = stream_of(topology).set_cpu_load(20).project("word").set_memory_load(512)
    counts = stream.set_cpu_load(150).set_memory_load(256, 64).group_by("word").persistent_aggregate(
        MemoryMapState(), Count(), "count"
    )  # fmt: skip
    assert counts.set_cpu_load(50) is counts
    assert counts.set_memory_load(128) is counts
    topology.new_static_state(MemoryMapState(), "lookup").set_memory_load(32).set_cpu_load(1)
    assert make_plan(topology.graph()).resources == {
        "in": Resources(cpu_percent=20),
        "in/project": Resources(150, 256, 64),
        "in/project/Count@count": Resources(50, 128),
        "lookup": Resources(1, 32),
    }


def test_the_loads_of_fused_steps_are_summed_and_a_stage_takes_its_largest() -> None:
    topology = TridentTopology("t")
    stream = stream_of(topology).set_cpu_load(20).project("word").set_cpu_load(90).set_memory_load(100, 28)
    other = topology.new_stream("other", FixedBatchSpout("word: string", 1, ("a",))).set_memory_load(500)
    topology.merge(stream, other).group_by("word").aggregate(Count(), "n").set_cpu_load(250).peek(print).set_cpu_load(
        51
    )
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count").set_cpu_load(900)
    counts.new_values_stream().peek(print).set_cpu_load(1)
    plan = make_plan(topology.graph())
    assert stage_loads(plan) == (
        StageLoad(1, "in", 110, 500),
        StageLoad(2, "in/project/merge/Count:exchange", 301, 0),
    )
    assert [load.cpus for load in stage_loads(plan)] == [2, 4]
    assert commit_loads(plan) == ["in/project/Count@count", "in/project/Count@count/print"]
    (state,) = plan.states
    assert commit_loads(plan, [state]) == []
    assert [load.entry for load in stage_loads(plan, [state])][2:] == ["in/project/Count@count"]
    told = [line.strip() for line in topology.explain().splitlines() if "a task takes" in line]
    assert told == [
        "a task takes 2 cores and 500 MiB (asked: 110 %); a local master honours neither",
        "a task takes 4 cores (asked: 301 %); a local master honours neither",
    ]


def test_a_topology_that_asks_for_nothing_has_no_loads() -> None:
    topology = TridentTopology("t")
    stream_of(topology).peek(print)
    assert stage_loads(make_plan(topology.graph())) == ()
    assert "a task takes" not in topology.explain()


@pytest.mark.parametrize(("percent", "cpus"), [(0, 1), (20, 1), (100, 1), (100.5, 2), (200, 2), (201, 3)])
def test_a_task_takes_whole_cores(percent: float, cpus: int) -> None:
    assert StageLoad(1, "in", percent, 0).cpus == cpus


def test_what_runs_in_the_driver_is_recorded_only(caplog: pytest.LogCaptureFixture) -> None:
    topology = TridentTopology("t")
    stream_of(topology).set_cpu_load(20).persistent_aggregate(MemoryMapState(), Count(), "count").set_memory_load(5)
    with caplog.at_level(logging.INFO, "trident"), topology.start(engine="in_process") as running:
        running.process_all_available()
        assert running.state("count").get() == 1
    said = [record.message for record in caplog.records if "recorded only" in record.message]
    assert said == [
        "topology t: cpu and memory loads of in, in/Count@count are recorded only: they run in the process of the driver"
    ]


@pytest.mark.spark
def test_a_local_master_places_nothing_and_says_so(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    topology = TridentTopology("t")
    stream_of(topology).set_cpu_load(999).set_memory_load(1).persistent_aggregate(MemoryMapState(), Count(), "count")
    with caplog.at_level(logging.INFO, "trident"), topology.start() as running:
        running.process_all_available()
        assert running.state("count").get() == 1
    said = [record.message for record in caplog.records if "honoured" in record.message]
    assert said == [
        "topology t: master local[2] sets no memory aside for Python; memory loads are not honoured",
        "topology t: master local[2] places no steps; cpu loads are not honoured",
    ]


# ---- what Spark can honour ---------------------------------------------------------------------------------------------

TWO, MEMORY = StageLoad(1, "a", 150, 300), StageLoad(2, "b", 0, 100)


@pytest.mark.parametrize(
    ("master", "conf", "registered", "cores"),
    [
        ("yarn", {}, 8, 1),
        ("yarn", {"spark.executor.cores": "4"}, 8, 4),
        ("k8s://https://host:6443", {}, None, 1),
        ("local-cluster[2,3,1024]", {}, None, 3),
        ("local-cluster[2,3,1024]", {"spark.executor.cores": "1"}, None, 1),
        ("spark://host:7077", {}, 16, 16),
        ("spark://host:7077", {}, None, None),
    ],
)
def test_the_cores_of_executors(master: str, conf: dict[str, str], registered: int | None, cores: int | None) -> None:
    assert cores_of_executors(master, conf.get, lambda: registered) == cores


def test_memory_is_added_to_the_overhead_of_executors_for_all_tasks_at_once() -> None:
    assert memory_settings([TWO, MEMORY], {}) == {"spark.executor.memoryOverhead": "684m"}
    # of the first stage two tasks run at once in four cores, of the second one four
    assert memory_settings([TWO, MEMORY], {"spark.executor.cores": "4"}) == {"spark.executor.memoryOverhead": "984m"}
    assert memory_settings([MEMORY], {"spark.executor.cores": "8"}) == {"spark.executor.memoryOverhead": "1184m"}
    assert memory_settings([StageLoad(1, "a", 150, 0)], {}) == {}
    assert memory_settings([], {}) == {}


@pytest.mark.parametrize("overhead", ["300", "300m", "1g", "1GB", "310000k", "300mb"])
def test_memory_that_is_there_is_not_told(overhead: str) -> None:
    assert undone_memory([TWO], "yarn", {"spark.executor.memoryOverhead": overhead}.get) is None


@pytest.mark.parametrize(("overhead", "found"), [(None, "not set"), ("299m", "299m"), ("1000k", "1000k")])
def test_memory_that_is_not_there_is_told(overhead: str | None, found: str) -> None:
    conf = {} if overhead is None else {"spark.executor.memoryOverhead": overhead}
    assert undone_memory([TWO], "k8s://host", conf.get) == (
        "the steps ask for 300 MiB in an executor, beside Spark's heap, but spark.executor.memoryOverhead is "
        f"{found}; set it to 684m where Spark is started, or containers may be killed"
    )


PROGRAM = """
import logging

from pyspark import SparkContext, TaskContext

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.errors import ConfigError
from trident.operations import Max
from tests.harness.quick_java import QUICK_JVM
from trident.spark.spark_resources import _registered

logging.basicConfig(format="%(message)s")


def cores(word):
    return TaskContext.get().cpus()


def topology(load):
    t = TridentTopology("placed")
    first = t.new_stream("in", FixedBatchSpout("word: string", 2, ("a",), ("b",))).each("word", cores, "first: int")
    second = first.partition_by("word").parallelism_hint(2).each("word", cores, "second: int").set_cpu_load(load)
    second = second.filter("word", bool).set_cpu_load(60)
    third = second.shuffle().parallelism_hint(2).each("word", cores, "third: int").set_memory_load(64)
    return t, [third.persistent_aggregate(MemoryMapState(), name, Max(), name) for name in ("first", "second", "third")]


t, states = topology(90)
quick = {"spark.executor.extraJavaOptions": QUICK_JVM}
with t.start(master="local-cluster[1,2,1024]", spark_conf=quick) as running:
    running.process_all_available()
    print([running.state(state).get() for state in states])
    print(_registered(SparkContext._active_spark_context))  # as on a standalone cluster, where no setting tells
    try:
        topology(180)[0].start()
    except ConfigError as error:
        print(error)
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_cluster_gives_each_stage_its_cores_and_what_cannot_be_given_is_refused(tmp_path: Path) -> None:
    home = str(Path(pyspark.__file__).parent)
    environment = {
        **os.environ,
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        "[1, 2, 1]",
        "2",
        "topology 'placed': the steps of 'in/cores/partition_by' in stage 2 ask for 240 % of a core, so a task takes 3 cores, "
        "but an executor has 2 (master local-cluster[1,2,1024]): Spark would wait for ever. Give executors more (spark_conf "
        "with spark.executor.cores), or ask for less with set_cpu_load",
    ], done.stderr
    assert "sets no memory aside for Python; memory loads are not honoured" in done.stderr


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda s: s.set_cpu_load(-1), r"set_cpu_load\(-1\): expected a number of at least 0"),
        (lambda s: s.set_cpu_load("much"), r"set_cpu_load\('much'\): expected a number of at least 0"),
        (lambda s: s.set_cpu_load(float("nan")), r"set_cpu_load\(nan\): expected a number"),
        (lambda s: s.set_memory_load(True), r"set_memory_load\(True\): expected a number"),
        (lambda s: s.set_memory_load(1, float("inf")), r"set_memory_load\(inf\): expected a number"),
    ],
)
def test_a_load_is_a_number(call: Callable[[Stream], Any], error: str) -> None:
    with pytest.raises(TopologyError, match=error):
        call(stream_of(TridentTopology("t")))


def test_storms_spelling_is_told() -> None:
    stream: Any = stream_of(TridentTopology("t"))
    with pytest.raises(
        AttributeError, match="'Stream' has no attribute 'setCPULoad'; it is called 'set_cpu_load' here"
    ):
        stream.setCPULoad(1)
    with pytest.raises(AttributeError, match="it is called 'set_memory_load' here"):
        stream.setMemoryLoad(1)
