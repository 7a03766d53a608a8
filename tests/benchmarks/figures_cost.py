"""What counting costs: `python -m tests.benchmarks.figures_cost --against DIR` compares this checkout with another one.

Two processes, one of each checkout, run the same batches in turn, some hundred at a time, so that both meet the same machine.
Prints a line of JSON for each size of batch: the processor time of this one divided by that of the other, of the tenth of turns
that went fastest, and as the median of all turns; the processor time of a batch; and how many Python functions it calls, here
and there. The rows are sentences of ten of 10,000 words. `--spark` adds batches of 20,000 rows on Spark, by the clock on the
wall.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[2]
SIZES = {
    "smallest batch, in process": (1, 100),
    "100 rows, in process": (100, 50),
    "1,000 rows, in process": (1000, 20),
    "10,000 rows, in process": (10_000, 2),
}
_PROCESS = """
import random, sys, threading, time
from pathlib import Path
import pyarrow as pa
import trident
from spouts import FeederBatchSpout
from states.memory import MemoryMapState
from trident import TridentTopology
from trident.operations import Count, Split
checkout, engine, rows, batches, measured = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
assert Path(trident.__file__).is_relative_to(checkout), trident.__file__
clock = time.process_time if engine == "in_process" else time.monotonic
feeder, topology = FeederBatchSpout("sentence: string"), TridentTopology("cost")
words = topology.new_stream("lines", feeder).each("sentence", Split(), "word: string")
words.group_by("word").persistent_aggregate(MemoryMapState.opaque(), Count(), "count")
drawn, calls = random.Random(7), 0
lines = [[" ".join(f"w{drawn.randrange(10_000):06d}" for _ in range(10)) for _ in range(rows)] for _ in range(10)]
tables = [pa.table([each], names=["sentence"]) for each in lines]
def count(frame, event, argument):
    global calls
    calls += event == "call"
if measured == "calls":
    threading.setprofile(count)
with topology.start(engine=engine) as running:
    for _ in sys.stdin:
        began = calls if measured == "calls" else clock()
        for number in range(batches):
            feeder.feed_nowait(tables[number % len(tables)])
        running.process_all_available()
        print((calls if measured == "calls" else clock()) - began, flush=True)
"""
SPARK = {"20,000 rows, Spark": (20_000, 4)}


def main(argv: list[str] | None = None) -> int:
    """Print a line of JSON for each size of batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, required=True, help="another checkout")
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--spark", action="store_true")
    options = parser.parse_args(argv)
    for name, (rows, batches) in {**SIZES, **(SPARK if options.spark else {})}.items():
        engine = "spark" if name in SPARK else "in_process"
        turns = options.turns if engine == "in_process" else max(10, options.turns // 10)
        print(json.dumps({"batch": name, **compare(options.against, engine, rows, batches, turns)}))
    return 0


def compare(against: Path, engine: str, rows: int, batches: int, turns: int) -> dict[str, Any]:
    """Let two checkouts run batches in turn; return the ratio of this one's time to the other's."""
    pair = [_start(checkout, engine, rows, batches) for checkout in (HERE, against)]
    ratios: list[float] = []
    took: tuple[list[float], list[float]] = [], []
    try:
        for turn in range(turns + 2):
            seconds = {}
            for one in pair if turn % 2 else pair[::-1]:
                seconds[one.pid] = _turn(one)
            if turn >= 2:  # warm
                ours, theirs = (seconds[one.pid] for one in pair)
                ratios.append(ours / theirs)
                took[0].append(ours)
                took[1].append(theirs)
    finally:
        for one in pair:
            one.communicate()
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "ratio_of_fastest_tenth": round(_fastest_tenth(took[0]) / _fastest_tenth(took[1]), 4),
        "ratio": round(statistics.median(ratios), 4),
        "quartiles": [round(quartiles[0], 4), round(quartiles[2], 4)],
        "us_per_batch": [round(_fastest_tenth(each) / batches * 1e6, 1) for each in took],
        "calls_per_batch": [_calls(checkout, engine, rows, batches) for checkout in (HERE, against)],
        "turns": turns,
    }


def _fastest_tenth(seconds: list[float]) -> float:
    """Return the mean of the turns that other programs disturbed least."""
    fastest = sorted(seconds)[: max(1, len(seconds) // 10)]
    return sum(fastest) / len(fastest)


def _calls(checkout: Path, engine: str, rows: int, batches: int) -> float:
    """Return how many Python functions a warm batch calls."""
    one = _start(checkout, engine, rows, batches, "calls")
    try:
        return round([_turn(one) for _ in range(3)][-1] / batches, 1)
    finally:
        one.communicate()


def _start(checkout: Path, engine: str, rows: int, batches: int, measured: str = "time") -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-c", _PROCESS, str(checkout), engine, str(rows), str(batches), measured]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=checkout
    )


def _turn(one: subprocess.Popen[str]) -> float:
    assert one.stdin is not None
    assert one.stdout is not None
    one.stdin.write("go\n")
    one.stdin.flush()
    return float(one.stdout.readline())


if __name__ == "__main__":
    raise SystemExit(main())
