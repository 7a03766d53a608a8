"""Ways to split and count, in one process and without Spark: `python -m tests.benchmarks.vectorised`.

- `generator` is a Python generator in `each`, called for every line.
- `arrow_function` is a function over Arrow arrays, called once for a batch.
- `expression` is `select` with `split` and `explode`.
- `builtin` is `Split`, which has a kernel of its own.

Each reads, splits and counts the same batch. Prints one JSON line: the median of milliseconds per batch over interleaved
rounds, and the ratios to `generator`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.benchmarks._measuring import in_turns, medians, tell
from trident import Stream, TridentTopology
from trident.engine.runners import InProcessRunner
from trident.engine.worker import Order, Program
from trident.operations import Count, Split, arrow_function, col
from trident.plan import make_plan
from trident.spout.interfaces import TransactionAttempt


def words(line: str) -> Iterator[str]:
    """Split a line, row by row."""
    yield from line.split(" ")


@arrow_function("word: string", flat=True)
def arrow_words(line: pa.Array) -> pa.Array:
    return pc.split_pattern(line, " ")


WAYS: dict[str, Callable[[Stream], Stream]] = {
    "generator": lambda lines: lines.each("line", words, "word: string"),
    "arrow_function": lambda lines: lines.each("line", arrow_words, "word"),
    "expression": lambda lines: lines.select(word=col("line").split(" ").explode()),
    "builtin": lambda lines: lines.each("line", Split(), "word"),
}


class Lines:
    """An emitter of the same lines for every part."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.table = pa.table({"line": pa.array(lines, pa.string())})

    def emit(self, part: Any) -> Iterator[pa.Table]:
        yield self.table


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare ways to split and count.")
    parser.add_argument("--batch", type=int, default=20_000, help="lines per batch, of ten words each")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(argv)
    pick = random.Random(1)
    lines = [" ".join(f"word{pick.randrange(10_000)}" for _ in range(10)) for _ in range(options.batch)]
    runners = {name: _runner(way, lines) for name, way in WAYS.items()}
    txids = count(1)

    def batch_ms(runner: InProcessRunner) -> float:
        started = time.perf_counter()
        output = runner.process([("lines", None)], Order(TransactionAttempt(next(txids), 0)))
        took = (time.perf_counter() - started) * 1000
        counts = [sum(table.column("count").to_pylist()) for tables in output.sinks.values() for table in tables]
        assert sum(counts) == options.batch * 10, counts
        return took

    found = medians(in_turns({name: partial(batch_ms, each) for name, each in runners.items()}, options.rounds), 2)
    ratios = {f"{name}_to_generator": round(ms / found["generator"], 3) for name, ms in found.items()}
    tell(**vars(options), ms_per_batch=found, **ratios)
    return 0


def _runner(way: Callable[[Stream], Stream], lines: Sequence[str]) -> InProcessRunner:
    topology = TridentTopology("vectorised")
    stream = topology.new_stream("lines", FixedBatchSpout("line: string", 1, ("",)))
    way(stream).group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    plan = make_plan(topology.graph())
    return InProcessRunner(Program("vectorised", {"lines": plan.fragments["lines"]}, {"lines": Lines(lines)}, {}, {}))


if __name__ == "__main__":
    sys.exit(main())
