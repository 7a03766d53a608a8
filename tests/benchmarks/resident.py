"""Batches as Spark jobs beside batches as messages to resident workers: `python -m tests.benchmarks.resident`.

One run, on one Spark, in turn: the word count with one sentence a batch, one batch at a time (milliseconds from define to
recorded), and with 1,000 and 10,000 sentences a batch (words a second), committed in the driver and, on Redis, in executors.
One JSON line for each; the log is on disk.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.benchmarks._measuring import tell
from tests.harness.servers import start_redis
from trident import TridentTopology
from trident.operations import Count, Split
from trident.spark.session import spark_session, stop_session
from trident.state import StateSpec

WORDS = 10
WORKERS = ("jobs", "resident")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1, 1_000, 10_000])
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--redis", action="store_true", help="also on Redis, committed by the tasks")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        spark = spark_session("resident", f"local[{asked.cores}]")
        ends.callback(stop_session, spark)
        port = 0
        if asked.redis:
            work = Path(folder, "redis")
            work.mkdir()
            port = ends.enter_context(start_redis(work)).port
        for size in asked.sizes:
            for workers in WORKERS:
                for placement in ("driver", "executors") if port else ("driver",):
                    spec = _state(port if placement == "executors" else 0, f"{workers}{size}")
                    figures = run(size, asked.batches, workers, placement, spec, Path(folder))
                    tell(sentences=size, workers=workers, commits=placement, **figures)
    return 0


def _state(port: int, prefix: str) -> StateSpec:
    if not port:
        return MemoryMapState.opaque()
    return RedisState.opaque(f"redis://127.0.0.1:{port}/0", prefix=prefix)


def run(size: int, batches: int, workers: str, placement: str, spec: StateSpec, folder: Path) -> dict[str, Any]:
    """Count words, and return the figures of the second half of the batches."""
    rows = [[" ".join(f"w{(at * WORDS + word) * 7919 % 10_007}" for word in range(WORDS))] for at in range(size)]
    topology = TridentTopology(f"resident-{workers}-{size}-{placement}")
    counts = (
        topology.new_stream("lines", FixedBatchSpout("line: string", size, *(rows * batches)))
        .each("line", Split(), "word: string")
        .group_by("word")
        .persistent_aggregate(spec, Count(), "count")
        .parallelism_hint(2 if placement == "executors" else 1)
    )
    settings: dict[str, Any] = {
        "workers": workers, "progress_kept": batches, "state_placement": placement if placement == "executors" else "auto",
        "log_dir": str(folder / f"log-{workers}-{size}-{placement}"),
        "max_spout_pending": 1 if size == 1 else None,
    }  # fmt: skip
    began = perf_counter()
    with topology.start({name: value for name, value in settings.items() if value is not None}) as running:
        running.process_all_available()
        took = perf_counter() - began
        done = running.recent_progress[batches // 2 :]
        exact = running.state(counts).multi_get(["w0"]) == [sum(row[0].split().count("w0") for row in rows) * batches]
    seconds = done[-1]["recordedAt"] - done[0]["recordedAt"]
    return {
        "batch_ms": round(statistics.median(each["durationMs"]["total"] for each in done), 2),
        "process_ms": round(statistics.median(each["durationMs"]["process"] for each in done), 2),
        "commit_ms": round(statistics.median(each["durationMs"]["commit"] for each in done), 2),
        "words_per_s": round((len(done) - 1) * size * WORDS / seconds),
        "with_start_s": round(took, 1),
        "exact": exact,
    }


if __name__ == "__main__":
    sys.exit(main())
