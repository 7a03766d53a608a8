"""A Spark executor that is killed in the middle of a run: Spark runs its tasks again, and the counts stay exact."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

PROGRAM = """
import os, signal, threading

import psutil

from spouts import FixedBatchSpout
from states.delta import DeltaState
from trident import Config, TridentTopology
from trident.operations import Count, Split
from trident.runtime.running import start

topology = TridentTopology("executors")
counts = (
    topology.new_stream("lines", FixedBatchSpout("line", 4, *[["the cow jumped over"]] * 200))
    .each("line", Split(), "word")
    .group_by("word")
    .persistent_aggregate(DeltaState.opaque("state"), Count(), "count")
)
reached = threading.Event()


def observe(point, attempt):
    if attempt.txid == 10 and point == "recorded":
        reached.set()


config = Config.of(master="local-cluster[2,1,1024]", log_dir="log")
with start(topology.graph(), config, observer=observe) as running:
    assert reached.wait(100)
    children = psutil.Process().children(recursive=True)
    commands = {one: " ".join(one.as_dict(["cmdline"])["cmdline"] or []) for one in children}
    executors = [one for one, command in commands.items() if "CoarseGrainedExecutorBackend" in command]
    assert len(executors) == 2
    executors[0].send_signal(signal.SIGKILL)
    running.process_all_available()
    assert running.state(counts).multi_get(["the", "cow", "jumped", "over", "moon"]) == [200] * 4 + [None]
    assert running.txid == 50
print("exact")
"""


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_killed_executor_costs_no_tuple_and_doubles_none(tmp_path: Path) -> None:
    home = str(Path(pyspark.__file__).parent)
    environment = {**os.environ, "SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "exact\n", done.stderr
