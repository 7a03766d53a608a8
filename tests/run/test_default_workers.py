"""`workers="auto"`: resident where a start starts Spark itself, with slots to spare; jobs on a session that is there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from trident import Config
from trident.run.engine_choice import with_workers

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
def test_workers_of_a_given_session_are_resident_if_asked(
    spark: SparkSession, settings: dict[str, Any], workers: str
) -> None:
    config = Config(**settings)
    assert with_workers(config, {}).workers == workers
    assert with_workers(config, {}).given == config.given
