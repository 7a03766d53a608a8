"""Three ways to process a batch on Spark, in one run: `python -m tests.benchmarks.lowering --batch 10000`.

- `rdd` is what the runner does: one RDD job whose Python tasks read the source, split and count with Arrow kernels.
- `map_in_arrow` runs the same tasks inside `mapInArrow`.
- `native` is a plan of Spark's own expressions over the same file.

Each counts the words of every batch and brings the counts to the driver, `--pending` batches at a time. Prints one JSON
line: the median of milliseconds per batch over interleaved rounds, and the ratios to `rdd`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
from pyspark.sql import SparkSession

from spouts import TextFileSpout
from states.memory import MemoryMapState
from tests.benchmarks._measuring import in_turns, medians, seconds_of, tell
from tests.benchmarks.corpus import Corpus
from tests.benchmarks.wordcount import counted
from trident import TridentTopology
from trident.engine.spark_runner import SparkRunner
from trident.engine.worker import Order, Part, Program, WorkerProgram, run_part
from trident.operations import Count, Split
from trident.plan import make_plan
from trident.spark.session import spark_session
from trident.spout.interfaces import TransactionAttempt


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    with tempfile.TemporaryDirectory(prefix="trident-bench-") as folder:
        corpus = Corpus.make(Path(folder), options.batch * options.batches, options.batch, options.vocab)
        spark = spark_session("trident-bench", options.master)
        try:
            found = _measure(_ways(spark, corpus), options)
        finally:
            spark.stop()
    ratios = {f"{way}_to_rdd": round(ms / found["rdd"], 3) for way, ms in found.items() if way != "rdd"}
    tell(**vars(options), ms_per_batch=found, **ratios)
    return 0


def _measure(ways: dict[str, Callable[[int], Any]], options: argparse.Namespace) -> dict[str, float]:
    def batch_ms(count: Callable[[int], Any]) -> float:
        with ThreadPoolExecutor(options.pending) as pool:
            took = seconds_of(lambda: list(pool.map(count, range(options.batches))))
        return float(took / options.batches * 1000)

    return medians(in_turns({way: partial(batch_ms, count) for way, count in ways.items()}, options.rounds, 2), 2)


def _ways(spark: SparkSession, corpus: Corpus) -> dict[str, Callable[[int], Any]]:
    program, batches = _program(corpus)
    runner = SparkRunner(spark, program, 2, owned=False)
    pickled = cloudpickle.dumps(program)

    def map_in_arrow(batch: int) -> Any:
        parts = batches[batch]

        def run(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            worker = WorkerProgram(cloudpickle.loads(pickled))
            for row in rows:
                for number in row.column(0).to_pylist():
                    for tables in run_part(
                        worker, Order(TransactionAttempt(batch, 0)), number, *parts[number]
                    ).sinks.values():
                        for table in tables:
                            yield from table.to_batches()

        frame = spark.range(0, len(parts), 1, len(parts)).mapInArrow(run, "word string, count bigint")
        return frame.toArrow()

    return {
        "rdd": lambda batch: runner.process(batches[batch], Order(TransactionAttempt(batch, 0))),
        "map_in_arrow": map_in_arrow,
        "native": lambda batch: counted(spark.read.text(str(corpus.files[batch]))).toArrow(),
    }


def _program(corpus: Corpus) -> tuple[Program, list[list[Part]]]:
    """The word count's program, and the parts of each batch as the driver loop would cut them."""
    topology = TridentTopology("lowering")
    spout = TextFileSpout(corpus.folder, max_batch_bytes=corpus.bytes_per_batch, follow=False)
    stream = topology.new_stream("lines", spout).each("line", Split(), "word").group_by("word")
    stream.persistent_aggregate(MemoryMapState(), Count(), "count")
    plan = make_plan(topology.graph())
    program = Program("lowering", {"lines": plan.fragments["lines"]}, {"lines": spout.get_emitter({})}, {}, {})
    coordinator, definition, batches = spout.get_coordinator({}), None, []
    for txid in range(1, len(corpus.files) + 1):
        definition = coordinator.initialize_transaction(txid, definition)
        parts = coordinator.parts(TransactionAttempt(txid, 0), definition, 2)
        batches.append([("lines", part) for part in parts])
    coordinator.close()
    return program, batches


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare ways to process a batch on Spark.")
    parser.add_argument("--batch", type=int, default=10_000, help="sentences per batch")
    parser.add_argument("--batches", type=int, default=12, help="batches per round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--vocab", type=int, default=10_000)
    parser.add_argument("--pending", type=int, default=3, help="batches in work at once")
    parser.add_argument("--master", default="local[2]")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
