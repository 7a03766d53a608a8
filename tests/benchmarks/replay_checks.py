"""What `verify_replays` costs: `python -m tests.benchmarks.replay_checks`. Prints a line of JSON for each kind of batch.

Three topologies in this process run the same batches in turn: one without the setting, one with 0.01, and one that processes
nearly every batch twice. Each line has the processor time of a batch (of the tenth of turns that went fastest), and the ratio
of the time with 0.01 to that without: as measured, and as it follows from a hundredth of what the last one takes longer.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from spouts import FeederBatchSpout
from states.memory import MemoryMapState
from tests.benchmarks._measuring import in_turns, medians, tell
from trident import Stream, TridentTopology
from trident.operations import Count, Split, Sum

SHARES = (0.0, 0.01, 0.999)
_TURN = 100
"""So many batches are a turn: with 0.01 about one of them is processed twice."""


def words(line: str) -> Iterator[str]:
    """Split a line, row by row."""
    yield from line.split(" ")


def _counted(stream: Stream) -> None:
    stream.group_by("word").persistent_aggregate(MemoryMapState.opaque(), Count(), "count")


def _kernels(lines: Stream) -> None:
    _counted(lines.each("line", Split(), "word: string"))


def _functions(lines: Stream) -> None:
    _counted(lines.each("line", words, "word: string"))


def _doubles(lines: Stream) -> None:
    split = lines.each("line", Split(), "word: string").each("word", lambda word: len(word) / 7, "x: double")
    split.group_by("word").persistent_aggregate(MemoryMapState.opaque(), "x", Sum(), "sum")


KINDS: dict[str, tuple[Callable[[Stream], None], int]] = {
    "kernels, 10 lines": (_kernels, 10),
    "kernels, 2,000 lines": (_kernels, 2000),
    "a Python function, 500 lines": (_functions, 500),
    "sums of doubles, 500 lines": (_doubles, 500),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=30)
    options = parser.parse_args(argv)
    for kind, (declare, rows) in KINDS.items():
        tell(batch=kind, **measured(declare, rows, options.turns))
    return 0


def measured(declare: Callable[[Stream], None], rows: int, turns: int) -> dict[str, Any]:
    """Return the figures of one kind of batch."""
    pick = random.Random(1)
    data = [[" ".join(f"word{pick.randrange(5000)}" for _ in range(10))] for _ in range(rows)]
    with ExitStack() as stack:

        def way(share: float) -> Callable[[], float]:
            feeder, topology = FeederBatchSpout("line: string"), TridentTopology(f"share-{share}")
            declare(topology.new_stream("lines", feeder))
            running = stack.enter_context(topology.start(engine="in_process", verify_replays=share))

            def turn() -> float:
                began = time.process_time()
                for _ in range(_TURN):
                    feeder.feed_nowait(data)
                running.process_all_available()
                return (time.process_time() - began) / _TURN

            return turn

        took = in_turns({str(share): way(share) for share in SHARES}, turns)
    none, some, all_ = (statistics.mean(sorted(each)[: max(1, turns // 10)]) for each in took.values())
    middle = medians(took)
    return {
        "ms_per_batch": round(none * 1000, 3),
        "ratio": round(middle["0.01"] / middle["0.0"], 4),
        "ratio_expected": round(1 + (all_ / none - 1) / 100, 4),
        "ms_of_a_check": round((all_ - none) * 1000, 3),
        "ms_per_batch_with": round(some * 1000, 3),
    }


if __name__ == "__main__":
    raise SystemExit(main())
