"""Run by test_surviving_driver.py on a cluster of two executors, which are killed: one from outside, some by their tasks."""

import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path

import psutil

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from tests.harness.quick_java import QUICK_JVM
from trident import Config, TridentTopology
from trident.operations import Count, Split
from trident.run.running import start
from trident.spark.session import spark_session, stop_session
from trident.spout.interfaces import TransactionAttempt

BATCHES, ROWS, WIDTH = 3, 100, 4
SPARK = {
    "spark.shuffle.io.retryWait": "1s",
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.python.daemon.module": "tests.crash.commit_tasks.warm_daemon",
}
HERE = Path.cwd()  # an executor has a folder of its own


def executors() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    commands = {one: " ".join(one.as_dict(["cmdline"])["cmdline"] or []) for one in children}  # None of a zombie
    return [one for one, command in commands.items() if "CoarseGrainedExecutorBackend" in command]


def without_an_exchange() -> None:
    """Kill an executor in the middle of a run."""
    topology = TridentTopology("executors")
    counts = (
        topology.new_stream("lines", FixedBatchSpout("line", 4, *[["the cow jumped over"]] * 80))
        .each("line", Split(), "word")
        .group_by("word")
        .persistent_aggregate(DeltaState.opaque("state"), Count(), "count")
    )
    reached = threading.Event()

    def observe(point: str, attempt: TransactionAttempt) -> None:
        if attempt.txid == 5:
            reached.set()

    with start(topology.graph(), Config.of(log_dir="log"), observer=observe) as running:
        assert reached.wait(100)
        killed, _ = executors()
        killed.send_signal(signal.SIGKILL)
        running.process_all_available()
        assert running.state(counts).multi_get(["the", "cow", "jumped", "over", "moon"]) == [80] * 4 + [None]
        assert running.txid == 20


def salt(id_: int) -> int:
    """Send each row somewhere else each time; once, in the middle of the first batch, end the worker of the task."""
    if id_ == ROWS // 2 and not (HERE / "worker").exists():
        (HERE / "worker").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return random.randrange(1 << 30)


def kill_this_executor(id_: int) -> bool:
    """Once, in the second batch, end the executor of the task that is the last to begin, when others have ended."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    if id_ // ROWS == 1 and context.partitionId() == WIDTH - 1 and not (HERE / "executor").exists():
        (HERE / "executor").touch()
        executor = next(one for one in psutil.Process().parents() if one.name() == "java")
        executor.send_signal(signal.SIGKILL)
        signal.pause()
    return True


def behind_a_random_salt() -> None:
    """Kill a worker in the middle of a stage, and an executor whose output some tasks have read and others still have to."""
    topology = TridentTopology("salted")
    counts = (
        topology.new_stream("ids", FixedBatchSpout("id: int", ROWS, *[[id_] for id_ in range(BATCHES * ROWS)]))
        .each("id", salt, "salt: int")
        .partition_by("salt")
        .parallelism_hint(WIDTH)
        .filter("id", kill_this_executor)
        .group_by("id")
        .persistent_aggregate(MemoryMapState(), Count(), "count")
    )
    with topology.start() as running:
        running.process_all_available()
        times = Counter(running.state(counts).multi_get([(id_,) for id_ in range(BATCHES * ROWS)]))
        assert times == {1: BATCHES * ROWS}, times
        # If no task had read what the executor held when it died, Spark repeats the whole stage and no attempt fails.
        status = running.status
        assert status["failures"] == 0 or "Spark ran that task again" in status["lastFailure"], status


if __name__ == "__main__":
    spark = spark_session("executors", "local-cluster[2,1,1024]", SPARK)
    without_an_exchange()
    behind_a_random_salt()
    stop_session(spark)
