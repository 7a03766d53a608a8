"""The memory that steps ask for: recorded in the plan, summed by stages, and set aside where Spark can do it."""

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
from trident.operations import Count
from trident.plan import make_plan
from trident.plan.plan import commit_loads, stage_memory
from trident.spark.spark_resources import cores_of_executors, memory_settings, undone_memory


def stream_of(topology: TridentTopology) -> Stream:
    return topology.new_stream("in", FixedBatchSpout("word: string", 1, ("a",)))


def test_the_plan_has_what_steps_and_states_ask_for() -> None:
    topology = TridentTopology("t")
    stream = stream_of(topology).project("word").set_memory_load(512)
    counts = stream.set_memory_load(256, 64).group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    assert counts.set_memory_load(128) is counts
    topology.new_static_state(MemoryMapState(), "lookup").set_memory_load(32)
    assert make_plan(topology.graph()).memory_mb == {"in/project": 320, "in/project/Count@count": 128, "lookup": 32}


def test_the_loads_of_fused_steps_are_summed_and_a_stage_takes_its_largest() -> None:
    topology = TridentTopology("t")
    stream = stream_of(topology).set_memory_load(20).project("word").set_memory_load(100, 28)
    other = topology.new_stream("other", FixedBatchSpout("word: string", 1, ("a",))).set_memory_load(500)
    topology.merge(stream, other).group_by("word").aggregate(Count(), "n").peek(print).set_memory_load(51)
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count").set_memory_load(900)
    counts.new_values_stream().peek(print).set_memory_load(1)
    plan = make_plan(topology.graph())
    assert stage_memory(plan) == [500, 51]
    assert commit_loads(plan) == ["in/project/Count@count", "in/project/Count@count/print"]
    (state,) = plan.states
    assert commit_loads(plan, [state]) == []
    assert stage_memory(plan, [state])[2:] == [901]
    told = [line.strip() for line in topology.explain().splitlines() if "a task takes" in line]
    assert told == [f"a task takes {mb} MiB; a local master sets none aside" for mb in (500, 51)]


def test_what_runs_in_the_driver_is_recorded_only(caplog: pytest.LogCaptureFixture) -> None:
    topology = TridentTopology("t")
    stream_of(topology).set_memory_load(20).persistent_aggregate(MemoryMapState(), Count(), "count").set_memory_load(5)
    with caplog.at_level(logging.INFO, "trident"), topology.start(engine="in_process") as running:
        running.process_all_available()
        assert running.state("count").get() == 1
    said = [record.message for record in caplog.records if "recorded only" in record.message]
    assert said == [
        "topology t: memory loads of in, in/Count@count are recorded only: they run in the process of the driver"
    ]


@pytest.mark.spark
def test_a_local_master_places_nothing_and_says_so(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    topology = TridentTopology("t")
    stream_of(topology).set_memory_load(1).persistent_aggregate(MemoryMapState(), Count(), "count")
    with caplog.at_level(logging.INFO, "trident"), topology.start() as running:
        running.process_all_available()
        assert running.state("count").get() == 1
    said = [record.message for record in caplog.records if "honoured" in record.message]
    assert said == ["topology t: master local[2] sets no memory aside for Python; memory loads are not honoured"]


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
    assert memory_settings(300, {}) == {"spark.executor.memoryOverhead": "684m"}
    assert memory_settings(100, {"spark.executor.cores": "8"}) == {"spark.executor.memoryOverhead": "1184m"}
    assert memory_settings(0, {}) == {}


@pytest.mark.parametrize("overhead", ["300", "300m", "1g", "1GB", "310000k", "300mb"])
def test_memory_that_is_there_is_not_told(overhead: str) -> None:
    assert undone_memory(300, "yarn", {"spark.executor.memoryOverhead": overhead}.get) is None


@pytest.mark.parametrize(("overhead", "found"), [(None, "not set"), ("299m", "299m"), ("1000k", "1000k")])
def test_memory_that_is_not_there_is_told(overhead: str | None, found: str) -> None:
    conf = {} if overhead is None else {"spark.executor.memoryOverhead": overhead}
    assert undone_memory(300, "k8s://host", conf.get) == (
        "the steps ask for 300 MiB in an executor, beside Spark's heap, but spark.executor.memoryOverhead is "
        f"{found}; set it to 684m where Spark is started, or containers may be killed"
    )


PROGRAM = """
import logging

from pyspark import SparkContext

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.operations import Count
from tests.harness.quick_java import QUICK_JVM
from trident.spark.spark_resources import _registered_cores

logging.basicConfig(format="%(message)s")
t = TridentTopology("placed")
words = t.new_stream("in", FixedBatchSpout("word: string", 2, ("a",), ("b",))).set_memory_load(64)
count = words.persistent_aggregate(MemoryMapState(), Count(), "count")
quick = {"spark.executor.extraJavaOptions": QUICK_JVM}
with t.start(master="local-cluster[1,2,1024]", spark_conf=quick) as running:
    running.process_all_available()
    print(running.state(count).get())
    print(_registered_cores(SparkContext._active_spark_context))  # as on a standalone cluster, where no setting tells
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_cluster_tells_its_cores_and_that_it_sets_no_memory_aside(tmp_path: Path) -> None:
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
    assert done.stdout.splitlines() == ["2", "2"], done.stderr
    assert "sets no memory aside for Python; memory loads are not honoured" in done.stderr


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda s: s.set_memory_load(-1), r"set_memory_load\(-1\): expected a number of at least 0"),
        (lambda s: s.set_memory_load("much"), r"set_memory_load\('much'\): expected a number of at least 0"),
        (lambda s: s.set_memory_load(float("nan")), r"set_memory_load\(nan\): expected a number"),
        (lambda s: s.set_memory_load(True), r"set_memory_load\(True\): expected a number"),
        (lambda s: s.set_memory_load(1, float("inf")), r"set_memory_load\(inf\): expected a number"),
    ],
)
def test_a_load_is_a_number(call: Callable[[Stream], Any], error: str) -> None:
    with pytest.raises(TopologyError, match=error):
        call(stream_of(TridentTopology("t")))
