"""What a batch costs its driver by partition, task and topology: `python -m tests.benchmarks.scaling_costs [ROW …]`.

Each row measures small numbers, fits a line through them, predicts the largest number, and measures that too. The rows of a
batch do nearly nothing, so what is measured is the driver's part: `docs/internals/scaling.md` makes a model of it.
"""

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spouts import FixedBatchSpout
from states.memory import MemoryMapState
from tests.benchmarks._drawn import DrawnKeys
from tests.benchmarks._measuring import Figures, batches_of, run_rows, second_half
from trident import TridentTopology
from trident.operations import Count

SIZES = (1, 10, 100, 1_000)

Measured = list[tuple[int, float]]
"""How many of something there were, and the milliseconds that a batch took."""


def partitions(batches: int, sizes: Sequence[int] = SIZES) -> Measured:
    """Batches in process, by the number of the state's partitions: each has a row in every batch."""
    return [(size, _batch_ms(batches, max(size, 10) * 4, size, {"engine": "in_process"})) for size in sizes]


def tasks(batches: int, sizes: Sequence[int] = SIZES) -> Measured:
    """Batches on Spark, by the number of tasks, which have a few rows each; two cores run them in turn."""
    return [(size, _batch_ms(batches, size * 4, 1, {"parallelism": size, "master": "local[2]"})) for size in sizes]


def topologies(batches: int, sizes: Sequence[int] = (1, 4, 16, 64)) -> Measured:
    """Batches of as many topologies of one process, in process: a batch of one of them, while all go on."""
    return [(size, _batch_ms_of_many(batches, size)) for size in sizes]


def _batch_ms(batches: int, rows: int, of_state: int, settings: dict[str, Any]) -> float:
    topology = TridentTopology("scaling")
    stream = topology.new_stream("rows", DrawnKeys(batches, rows, rows))
    stream.group_by("word").persistent_aggregate(MemoryMapState.opaque(), Count(), "count").parallelism_hint(of_state)
    with tempfile.TemporaryDirectory(prefix="trident-scaling-") as log:
        done, seconds = second_half(batches_of(topology, **settings, log_dir=log, max_spout_pending=1))
    return seconds / len(done) * 1000


def _batch_ms_of_many(batches: int, count: int) -> float:
    took: list[float] = []

    def run(number: int) -> None:
        topology = TridentTopology(f"scaling-{number}")
        stream = topology.new_stream("rows", FixedBatchSpout("word: string", 1, *[["a"]] * batches))
        stream.group_by("word").persistent_aggregate(MemoryMapState.opaque(), Count(), "count")
        with topology.start(engine="in_process", log_dir=str(Path(folder, str(number)))) as running:
            began = time.perf_counter()
            running.process_all_available()
            took.append((time.perf_counter() - began) / batches * 1000)

    with tempfile.TemporaryDirectory(prefix="trident-scaling-") as folder:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(took) == count, "a topology failed"
    return statistics.median(took)


def fitted(measured: Measured) -> tuple[float, float]:
    """Return the cost of none and of each one more, by least squares of the relative errors."""
    numbers, costs = (np.array(column, float) for column in zip(*measured, strict=True))
    each, fixed = np.polyfit(numbers, costs, 1, w=1 / costs)
    return float(fixed), float(each)


def _row(measure: Callable[[int], Measured]) -> Callable[..., Figures]:
    def row(batches: int = 30) -> Figures:
        measured = measure(batches)
        (fixed, each), (most, last) = fitted(measured[:-1]), measured[-1]
        return {
            "ms": {str(number): round(ms, 2) for number, ms in measured}, "fixed_ms": round(fixed, 3),
            "each_ms": round(each, 4), "predicted": round(fixed + each * most, 1), "measured": round(last, 1),
        }  # fmt: skip

    row.__doc__ = measure.__doc__
    return row


if __name__ == "__main__":
    sys.exit(run_rows(__doc__, {each.__name__: _row(each) for each in (partitions, tasks, topologies)}))
