"""Windows beside a persistent aggregate, in one process and without Spark: `python -m tests.benchmarks.windows`.

Each way counts the words of the same text, split by `Split`:

- `persistent` is the grouped `persistent_aggregate`.
- `batch_time` is a tumbling window of one second by the time of the batch, `event_time` one of a field, a second a batch.
- `sliding` is a window of ten seconds by event time that slides by one.
- `tuples` and `tuples_of_key` are windows of 10,000 words of the stream, and of 100 of each word.
- `reducer` is `batch_time` with a reducer, so words are kept and not counts.

What fires is summed up in a state. Prints one JSON line: words per second of the second half of the batches, the median of
interleaved rounds, and the ratios to `persistent`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from spouts import TextFileSpout
from states.memory import MemoryMapState
from tests.benchmarks._measuring import in_turns, medians, tell
from tests.benchmarks.corpus import Corpus
from trident import Stream, TridentTopology, TridentTuple
from trident.operations import Count, ReducerAggregator, SlidingDurationWindow, Split, Sum, TumblingDurationWindow, lit

S = timedelta(seconds=1)


class Words(ReducerAggregator[int]):
    """Counts words one by one."""

    def init(self) -> int:
        return 0

    def reduce(self, curr: int, tuple: TridentTuple) -> int:
        return curr + 1


def _timed(words: Stream) -> Stream:
    """The words with a time in one second."""
    return words.select("word", at=lit(1_000).cast("bigint"))


def _by_time(words: Stream, config: Any) -> Stream:
    return _timed(words).group_by("word").window(config.by_event_time("at"), Count(), "n")


def _persistent(words: Stream) -> Stream:
    state = words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "n")
    return state.new_values_stream()


WAYS: dict[str, Callable[[Stream], Stream]] = {
    "persistent": _persistent,
    "batch_time": lambda words: words.group_by("word").tumbling_window(S, Count(), "n"),
    "event_time": lambda words: _by_time(words, TumblingDurationWindow.of(S)),
    "sliding": lambda words: _by_time(words, SlidingDurationWindow.of(10 * S, S)),
    "tuples": lambda words: words.tumbling_window(10_000, Count(), "n"),
    "tuples_of_key": lambda words: words.group_by("word").tumbling_window(100, Count(), "n"),
    "reducer": lambda words: words.group_by("word").tumbling_window(S, Words(), "n"),
}


def measure(way: str, corpus: Corpus) -> float:
    """Count the corpus one way; return words per second of the second half of its batches."""
    topology = TridentTopology(f"bench-{way.replace('_', '-')}")
    spout = TextFileSpout(corpus.folder, max_batch_bytes=corpus.bytes_per_batch, follow=False)
    words = topology.new_stream("lines", spout).each("line", Split(), "word").project("word")
    counts = WAYS[way](words)
    if way != "persistent":
        counts.persistent_aggregate(MemoryMapState(), "n", Sum(), "total")
    with topology.start(engine="in_process", max_spout_pending=1, progress_kept=1 << 20) as running:
        running.process_all_available()
        batches = running.recent_progress
    half = len(batches) // 2
    seconds = batches[-1]["recordedAt"] - batches[half - 1]["recordedAt"]
    return float(sum(batch["numInputRows"] for batch in batches[half:]) * 10 / seconds)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure windows beside a persistent aggregate.")
    parser.add_argument("--sentences", type=int, default=400_000, help="of ten words each")
    parser.add_argument("--batch", type=int, default=10_000, help="sentences per batch")
    parser.add_argument("--vocab", type=int, default=10_000, help="distinct words")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="*", choices=tuple(WAYS), default=list(WAYS))
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="trident-bench-") as folder:
        corpus = Corpus.make(Path(folder), options.sentences, options.batch, options.vocab, 7)
        found = medians(in_turns({way: partial(measure, way, corpus) for way in options.ways}, options.rounds, 0))
    base = found.get("persistent")
    ratios = {way: round(median / base, 3) for way, median in found.items()} if base else {}
    rounded = {way: round(median) for way, median in found.items()}
    tell(**vars(options), words_per_s=rounded, ratio_to_persistent=ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
