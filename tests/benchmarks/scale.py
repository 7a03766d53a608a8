"""What limits a topology's size, measured: `python -m tests.benchmarks.scale [ROW …] [--size 1.0] [--rounds 3]`.

Each row starts drivers of its own, in turns, watches them from outside, and prints one JSON line: what was wanted, which its
function begins with, the figures, and whether they are as wanted. Compare ratios; they are taken in one run, and are medians
over the rounds. With `--size 0.01` everything is a hundredth as large, to see that a row works. `docs/performance.md` explains
the rows.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.benchmarks._drivers import LOCAL_CLUSTER, DriverFailed, on_redis, scale_run, wordcount
from tests.benchmarks._flatness import flat, flat_resident
from tests.benchmarks._measuring import run_rows

Figures = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """The options of a run."""

    size: float
    rounds: int
    state: str = "redis"

    def __call__(self, number: int) -> int:
        return max(1, round(number * self.size))


def driver(sizes: Sizes) -> Figures:
    """driver's Python CPU for 1 M distinct keys ≤ 0.15 s, ± 0.1 s of that for 10 k; < 100 kB collected."""
    few, many = (_keys(sizes, distinct) for distinct in (sizes(10_000), sizes(1_000_000)))
    return {
        "cpu_s_1m": many["cpu_s"], "cpu_s_10k": few["cpu_s"], "collected_kb_1m": many["collected_kb"],
        "seconds_1m": many["seconds"], "peak_mb": many["peak_mb"],
        "ok": many["cpu_s"] <= 0.15 and abs(many["cpu_s"] - few["cpu_s"]) <= 0.1 and many["collected_kb"] < 100,
    }  # fmt: skip


def _keys(sizes: Sizes, distinct: int) -> Figures:
    batches = 2 * sizes.rounds + 1
    with on_redis() as address:
        figures = scale_run(
            store="redis", address=address, master=LOCAL_CLUSTER, settings={"state_placement": "executors"},
            spout={"batches": batches, "rows": distinct, "distinct": distinct},
        )  # fmt: skip
    return {  # without the first batch, which starts Python workers and connections
        "cpu_s": round(statistics.median(figures["driver_cpu_s"][1:]), 3),
        "seconds": round(statistics.median(figures["seconds"][1:]), 2),
        "collected_kb": round(figures["collected_bytes"] / batches / 1024, 1),
        "peak_mb": figures["peak_mb"],
    }


def distinct(sizes: Sizes) -> Figures:
    """words/s of executors ≥ 1.5 × those of the driver, 1 M distinct words."""
    options: dict[str, Any] = {
        "state": f"{sizes.state}-opaque", "master": LOCAL_CLUSTER, "batch": sizes(100_000), "sentences": 6 * sizes(100_000),
        "vocab": sizes(1_000_000),
    }  # fmt: skip
    ways: dict[str, dict[str, Any]] = {
        "driver": {"placement": "driver", "partitions": 1}, "executors": {"placement": "executors", "partitions": 2},
        "resident": {"placement": "executors", "partitions": 2, "workers": "resident"},
    }  # fmt: skip
    runs: dict[str, list[Figures]] = {way: [] for way in ways}
    for number in range(sizes.rounds):
        for way in sorted(ways, reverse=bool(number % 2)):
            runs[way].append(wordcount(**options, **ways[way]))
    speeds = {way: round(statistics.median(run["warm_words_per_s"] for run in some)) for way, some in runs.items()}
    exact = all(run["exact"] for some in runs.values() for run in some)
    return {
        "state": sizes.state, "ratio": round(speeds["executors"] / speeds["driver"], 2), "words_per_s": speeds,
        "cpu_s": {way: some[-1]["cpu_s"] for way, some in runs.items()},
        "exact": exact, "ok": exact and speeds["executors"] >= 1.5 * speeds["driver"],
    }  # fmt: skip


def persist(sizes: Sizes) -> Figures:
    """partition_persist of 10 M rows: most memory of the driver ≤ 300 MB above idle."""
    rows = sizes(10_000_000)
    with on_redis() as address:
        figures = scale_run(
            store="redis", address=address, master=LOCAL_CLUSTER, settings={"state_placement": "executors"},
            spout={"batches": 1, "rows": rows, "distinct": rows}, persist=True, partitions=32,
        )  # fmt: skip
    peak, idle = figures["peak_mb"], figures["idle_mb"]
    above = sum(peak[role] - idle[role] for role in ("driver_python", "driver_jvm"))
    return {**_told(figures), "driver_above_idle_mb": above, "ok": above <= 300}


def huge(sizes: Sizes, skew: float = 0.0) -> Figures:
    """50 M words, 5 M distinct, one batch: ≤ 1,500 MB for any process."""
    with on_redis() as address:
        figures = scale_run(
            store="redis", address=address, master=LOCAL_CLUSTER, partitions=16,
            settings={"state_placement": "executors", "parallelism": 16, "message_timeout_s": 3600},
            spout={"batches": 1, "rows": sizes(50_000_000), "distinct": sizes(5_000_000), "skew": skew},
        )  # fmt: skip
    ours = {role: mb for role, mb in figures["peak_mb"].items() if role.startswith(("driver", "executor"))}
    return {**_told(figures), "largest_mb": max(ours.values()), "ok": max(ours.values()) <= 1500}


def skewed(sizes: Sizes) -> Figures:
    """as `huge` with half of the words equal: ≤ 1,500 MB for any process."""
    return huge(sizes, skew=0.5)


def delta(sizes: Sizes) -> Figures:
    """Delta, 10 M keys, 100 k random ones a batch: ≤ 5 s a batch, driver ≤ 1,000 MB."""
    loads, keys, batch = 20, sizes(10_000_000), sizes(100_000)
    with tempfile.TemporaryDirectory(prefix="trident-scale-") as folder:
        log, store = {"log_dir": f"{folder}/log"}, f"{folder}/table"
        common = {"store": "delta", "address": store, "engine": "in_process", "settings": log, "partitions": 1}
        loaded = scale_run(spout={"batches": loads, "rows": keys // loads, "distinct": keys}, **common)
        # Another spout of the same stream: it continues behind the batches of the load, which is what it counts from.
        more = {"batches": loads + 2 * sizes.rounds + 2, "rows": batch, "distinct": keys}
        figures = scale_run(spout=more, checked=False, **common)
    peak, seconds = figures["peak_mb"]["driver_python"], statistics.median(figures["seconds"][1:])
    return {
        "seconds": round(seconds, 2), "driver_mb": peak, "load_s": round(sum(loaded["seconds"])),
        "load_driver_mb": loaded["peak_mb"]["driver_python"], "start_s": round(figures["seconds"][0], 1),
        "ok": seconds <= 5 and peak <= 1000,
    }  # fmt: skip


def smallest(sizes: Sizes) -> Figures:
    """smallest batch, executors: ≤ 2.5 × the driver's time."""
    options = {"state": "redis-opaque", "batch": 1, "sentences": sizes(300), "pending": 1}
    figures = _compared(
        sizes, 1 / 2.5, *(partial(wordcount, placement=place, **options) for place in ("executors", "driver"))
    )
    return {**figures, "times_the_driver": round(1 / figures["ratio"], 2)}


Way = Callable[[], Figures]


def _compared(sizes: Sizes, at_least: float, this: Way, other: Way) -> Figures:
    """Run both in turns, each first as often as second; the ratio of the words a second, and each round's."""
    pairs = []
    for number in range(sizes.rounds):
        if number % 2:
            pairs.append((this(), other()))
        else:
            late = other()
            pairs.append((this(), late))
    ratios = [ours["warm_words_per_s"] / theirs["warm_words_per_s"] for ours, theirs in pairs]
    ratio = statistics.median(ratios)
    speeds = [round(statistics.median(one["warm_words_per_s"] for one in side)) for side in zip(*pairs, strict=True)]
    exact = all(one["exact"] for pair in pairs for one in pair)
    return {
        "ratio": round(ratio, 2), "ratios": [round(one, 2) for one in ratios], "words_per_s": speeds[0],
        "others_words_per_s": speeds[1], "exact": exact, "ok": exact and ratio >= at_least,
    }  # fmt: skip


def _told(figures: Figures) -> Figures:
    return {
        "seconds": round(max(figures["seconds"]), 1), "collected_kb": round(figures["collected_bytes"] / 1024),
        "idle_mb": figures["idle_mb"], "peak_mb": figures["peak_mb"],
    }  # fmt: skip


ROWS: dict[str, Callable[[Sizes], Figures]] = {
    "driver": driver, "distinct": distinct, "persist": persist, "huge": huge, "skewed": skewed, "delta": delta,
    "smallest": smallest, "flat": flat, "resident": flat_resident,
}  # fmt: skip


def _row(measure: Callable[[Sizes], Figures]) -> Callable[..., Figures]:
    def row(size: float = 1.0, rounds: int = 3, state: str = "redis") -> Figures:
        began = time.monotonic()
        try:
            figures = measure(Sizes(size, rounds, state))
        except DriverFailed as error:
            figures = {"ok": False, "error": str(error)}
        return {"wanted": measure.__doc__, "size": size, **figures, "took_s": round(time.monotonic() - began)}

    row.__doc__ = measure.__doc__
    return row


def main(argv: list[str] | None = None) -> int:
    """Measure rows; `--size` is of everything, `--state` of the row distinct."""
    return run_rows(__doc__, {name: _row(each) for name, each in ROWS.items()}, argv)


if __name__ == "__main__":
    sys.exit(main())
