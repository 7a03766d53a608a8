"""What an attempt pays for its Python worker after one that was cancelled: `python -m tests.benchmarks.cancelled_attempts`.

Prints one JSON line: what a job costs by PySpark's own daemon and by ours, each in a session of its own, and the ratios.
`first`: the seconds of the first job of the session. `next`: the median seconds of a job after another one was cancelled,
whose worker Spark kills. `cpu`: the processor seconds of its new worker up to the first row. `reused`: those of a further task
of the same worker.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from tests.benchmarks._measuring import tell
from tests.harness.commands import until
from trident.spark.session import spark_session, stop_session

_DAEMONS = {"pyspark": "pyspark.daemon", "ours": "trident.spark.worker_daemon"}


def _row(items: Iterable[int]) -> Iterator[float]:
    from trident.runtime.engine import tasks

    assert len(list(items)) < len(dir(tasks))
    yield time.process_time()


def _blocks(begun: Path, items: Iterable[int]) -> Iterator[int]:
    begun.touch()
    threading.Event().wait()
    yield from items


def _timed(context: SparkContext) -> tuple[float, float]:
    """Run a job; return its seconds, and those of the processor that its worker has used since it was forked."""
    began = time.perf_counter()
    (cpu,) = context.parallelize([0], 1).mapPartitions(_row).collect()
    return time.perf_counter() - began, cpu


def _cancel_one(context: SparkContext, begun: Path) -> None:
    def run() -> None:
        context.addJobTag(begun.name)
        try:
            context.parallelize([0], 1).mapPartitions(partial(_blocks, begun)).collect()
        except (Py4JJavaError, PySparkException):
            return

    job = threading.Thread(target=run)
    job.start()
    until(begun.exists, "the job begins")
    context.cancelJobsWithTag(begun.name)
    job.join()


def _measured(context: SparkContext, rounds: int) -> dict[str, float]:
    first, after = _timed(context)[0], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            _cancel_one(context, Path(folder, f"job{number}"))
            (seconds, new), (_, used) = _timed(context), _timed(context)
            after.append((seconds, new, used - new))
    medians = map(statistics.median, zip(*after, strict=True))
    return {"first": first, **dict(zip(("next", "cpu", "reused"), medians, strict=True))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds, result = parser.parse_args().rounds, {}
    for name, module in _DAEMONS.items():
        spark = spark_session("cancelled-attempts", "local[4]", {"spark.python.daemon.module": module})
        result[name] = _measured(spark.sparkContext, rounds)
        stop_session(spark)
    result["ratio"] = {key: result["pyspark"][key] / result["ours"][key] for key in result["ours"]}
    told = {name: {key: round(value, 4) for key, value in each.items()} for name, each in result.items()}
    tell(**told)


if __name__ == "__main__":
    main()
