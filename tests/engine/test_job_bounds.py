"""What outgrows Spark, Arrow or a partition is named with the way out, and Spark goes on; and batches that spill."""

import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark
import pytest

from tests.harness.topology_runs import RowsSpout, keep, run_all
from trident import BatchFailedError, TridentTopology
from trident.spark.job_errors import bound_reached, crash_of, way_out
from trident.spark.spark_resources import most_per_task
from trident.steps.failures import failure_of

ROOT = Path(__file__).parents[2]

SMALL_SPARK = """
import itertools
import sys
from tests.harness.topology_runs import RowsSpout, keep
from trident import BatchFailedError, TridentTopology
from trident.spark.session import spark_session, stop_session

spark = spark_session("small", sys.argv[1], {
    "spark.driver.memory": "512m", "spark.driver.maxResultSize": "3m", "spark.rpc.message.maxSize": "1",
})

numbers = itertools.count()

def failure(rows, declare):
    topology = TridentTopology(f"t{next(numbers)}")
    kept = keep(declare(topology.new_stream("s", RowsSpout("n: int, x: string", {1: rows}))))
    try:
        with topology.start(log_dir=f"{sys.argv[2]}/{topology.name}") as running:
            running.process_all_available()
    except BatchFailedError as error:
        print(str(error).replace(chr(10), " "))
    else:
        print("ok", len(kept.rows))

def larger(n):
    return "x" * (n << 20)

def once(n, seen=[]):
    seen.append(n)
    return len(seen) == 1

failure([(1, "x" * (2 << 20))], lambda s: s)
failure([(2, "")] * 3000, lambda s: s.filter("n", once).each("n", larger, "y: string"))
failure([(40, "")], lambda s: s.each("n", larger, "y: string"))
failure([(1, "")], lambda s: s.each("n", larger, "y: string"))
stop_session(spark)
"""


def run_on(master: str, logs: Path) -> list[str]:
    home = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", SMALL_SPARK, master, str(logs)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **home})
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.soak
@pytest.mark.spark
def test_a_part_that_is_too_large_a_message_for_a_cluster_is_named(tmp_path: Path) -> None:
    part, *_, well = run_on("local-cluster[1,1,1024]", tmp_path)
    assert "failed once in step 'spark': TooMuchData: a part of the batch carries its rows to a task in 2" in part
    assert "spark.rpc.message.maxSize is 1048576 bytes. Use smaller batches, more parts (parallelism), or" in part
    assert well == "ok 1"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
def test_each_bound_of_spark_is_named_at_once_and_the_next_batch_runs(tmp_path: Path) -> None:
    part, results, task, well = run_on("local[2]", tmp_path)
    assert part == "ok 1"  # there it is no message
    assert "failed once in step 'spark': TooMuchData: 2 tasks of the batch give the driver 4." in results
    assert 'spark.driver.maxResultSize is 3.0 MiB. Let states commit in the executors (state_placement="exec' in results
    assert "failed once in step 's/larger/Keep@kept': TooManyRows: one partition gives 4194" in task
    assert "Use smaller batches, more partitions" in task
    assert well == "ok 1"


@pytest.mark.spark
def test_results_may_take_a_quarter_of_a_small_heap(spark: Any) -> None:
    heap = spark._jvm.java.lang.Runtime.getRuntime().maxMemory()
    assert int(spark.sparkContext.getConf().get("spark.driver.maxResultSize")) == heap // 4 < 1 << 30


def test_the_more_tasks_share_a_heap_the_less_each_may_pass_on() -> None:
    measured = {1: 100, 2: 80, 4: 60, 8: 30}  # MB that each could pass on through 1 GB
    allowed = {tasks: most_per_task(1 << 30, tasks) >> 20 for tasks in measured}
    assert allowed == {1: 85, 2: 64, 4: 42, 8: 25}
    assert all(allowed[tasks] < measured[tasks] for tasks in measured)
    assert most_per_task(1 << 50, 1) == 2_000_000_000


@pytest.mark.parametrize(
    ("most", "text"),
    [
        (
            900, r"failed once in step 's/partition_by': TooManyRows: partition \d of 2 gathers \d+ bytes of the batch, and at "
            r"most 5000 are allowed. 9\d% of its rows have the key \['the'\], and more partitions would not divide them. Use",
        ),
        (0, "at most 5000 are allowed. Use smaller batches or more partitions"),
    ],
    ids=["one key", "many keys"],
)  # fmt: skip
def test_a_key_that_has_most_rows_of_a_partition_is_named(most: int, text: str, engine: str) -> None:
    topology = TridentTopology("t")
    rows = [("the" if number < most else f"w{number}", number) for number in range(1_000)]
    stream = topology.new_stream("s", RowsSpout("word: string, n: int", {1: rows}))
    keep(stream.partition_by("word").parallelism_hint(2).filter("n", bool))
    with pytest.raises(BatchFailedError, match=text):
        run_all(topology, engine, max_bytes_per_partition=5_000)


def test_a_column_that_arrow_cannot_hold_is_named_and_not_tried_again() -> None:
    size = 800 << 20
    memory = pa.py_buffer(mmap.mmap(-1, size))  # never touched, so it takes none
    piece = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, size], np.int32)), memory)
    table = pa.table({"x": pa.chunked_array([piece] * 3)})
    with pytest.raises(pa.ArrowInvalid) as caught:
        table.take(pa.array([2, 1, 0]))
    failure = failure_of("s/partition_by", caught.value)
    assert not failure.retry
    assert failure.cause.startswith(
        "TooManyRows: a column of one partition of the batch would hold more than the 2,147,483"
    )
    assert failure_of("s", pa.ArrowInvalid("a bad value")).cause == "ArrowInvalid: a bad value"


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("ExecutorLostFailure (executor 1 exited): Command exited with code 137", "killed because memory ran out"),
        (
            "SparkException: Python worker exited unexpectedly (crashed)",
            "set max_bytes_per_partition, whose error names the key",
        ),
        ("java.lang.OutOfMemoryError: Java heap space", "raise spark.driver.memory or spark.executor.memory"),
        ("TaskResultLost (result lost from block manager)", "raise spark.driver.memory or spark.executor.memory"),
        ("Job 3 cancelled because SparkContext was shut down", ""),
    ],
)
def test_what_memory_most_likely_ended_says_so(said: str, hint: str) -> None:
    assert hint in way_out(said)
    assert bool(hint) == bool(way_out(said))
    assert bound_reached(said) is None


@pytest.mark.parametrize(
    ("said", "crash"),
    [
        ("worker exited unexpectedly (crashed): Fatal Python error: Segmentation fault\n\nCurrent", "Segmentation fault"),
        ("ExecutorLostFailure (executor 1 exited): Container from a bad node. Exit status: 134", "SIGABRT"),
        ("ExecutorLostFailure: Command exited with code; exit code 139", "SIGSEGV"),
    ],
)  # fmt: skip
def test_a_crash_of_native_code_is_not_said_to_be_lack_of_memory(said: str, crash: str) -> None:
    assert crash_of(said) == crash
    assert way_out(said).startswith(f". Native code of a library, or of yours, crashed ({crash})")
    assert crash_of("ExecutorLostFailure: exit code 137") == ""
    assert "memory ran out: use" in way_out("ExecutorLostFailure: exit code 137")
    assert "or native code crashed" in way_out(
        "Python worker exited unexpectedly (crashed). Consider faulthandler.enabled"
    )


SPILLING = """
import sys
from states.memory import MemoryMapState
from tests.benchmarks._drawn import DrawnKeys
from trident import TridentTopology
from trident.operations import Count
from trident.engine import spark_runner as spills
from trident.spark.session import spark_session, stop_session

spills.ASKED_FROM = 1
spark = spark_session("spills", "local[2]", {
    "spark.shuffle.sort.bypassMergeThreshold": "0", "spark.shuffle.spill.numElementsForceSpillThreshold": sys.argv[1],
})

class Throttled(DrawnKeys):
    def throttle(self, share):
        print("told", share)

topology = TridentTopology("t")
stream = topology.new_stream("words", Throttled(batches=2, rows=4_000, distinct=4_000))
stream.partition_by("word").parallelism_hint(4).group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n")
with topology.start(max_spout_pending=1, target_batch_s=3600) as running:
    running.process_all_available()
    print([batch["bytesSpilled"] > 0 for batch in running.recent_progress], running.status["share"])
stop_session(spark)
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows_in_memory", "told"), [(1, ["told 0.5", "told 0.25", "[True, True] 0.25"]), (1 << 30, ["[False, False] 1.0"])]
)
def test_a_batch_that_spills_is_told_and_the_next_is_half_as_large(rows_in_memory: int, told: list[str]) -> None:
    command = [sys.executable, "-c", SPILLING, str(rows_in_memory)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines() == told, ran.stderr
