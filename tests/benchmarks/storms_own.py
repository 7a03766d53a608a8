"""The word count of Storm's own Trident beside ours: `python -m tests.benchmarks.storms_own [ROW …] [--turns 3]`.

Needs `make build/services/storm`. Both sides are tuned first: short runs find the batches in flight, from 1 to 16, of each
engine, and for Storm with each of them how long an idle thread waits. Then the best of each runs in turns, long enough that
the second half, which counts, takes `--seconds`. Prints a JSON line for each row: what each side was given, its warm words per
second, and the ratio of the medians. Storm's is compiled from `StormWords.java` and runs in a JVM of its own, two tasks; a
batch begins as soon as one may (by default each 500 ms). Ours reads files and has its log on disk;
Storm's makes its sentences before the run and notes its transactions in a ZooKeeper of its own process. On Redis both remember
the values of 20,000 keys.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks._measuring import run_rows
from tests.harness.servers import start_redis

JARS = Path(__file__).parents[2] / "build" / "services" / "storm"
"""Where `make build/services/storm` puts Storm's jars."""

_TASKS = 2  # of each component, and of the state
_MOST_S = 180.0  # of one run of Storm's
_ENGINES = {"in process": ("--engine", "in_process"), "Spark, resident": ("--workers", "resident")}
_CACHED = 20_000  # keys that both remember of a state on Redis
_DISTINCT = 20  # files that are drawn; more are copies
_MEMORY = Path("/dev/shm")  # the text lies in memory where it can: Storm's sentences do


class Settings(NamedTuple):
    """What a side is given.

    `wait_us`: how long Storm's idle threads wait, -1 as by default.
    `together`: how many tuples Storm passes on at once.
    """

    in_flight: int = 3
    wait_us: int = -1
    together: int = 1


WARM = Settings(8, 10)
"""Settings of Storm's that are near its best for any size of batch."""

_IN_FLIGHT = (1, 2, 4, 8, 16)
_OURS = tuple(map(Settings, _IN_FLIGHT))
_STORMS = tuple(Settings(number, wait_us) for wait_us in (-1, 10, 100) for number in _IN_FLIGHT)
"""What is tried; to pass many tuples on together was slower by far, or stood still."""


class _Row(NamedTuple):
    """`batch`: sentences of ten words in one; `vocabulary`: how many words they are drawn from."""

    batch: int
    vocabulary: int = 10_000
    store: str = "memory"


_ROWS = {
    "1": _Row(1),
    "100": _Row(100),
    "1000": _Row(1_000),
    "10000": _Row(10_000),
    "100000": _Row(100_000),
    "distinct": _Row(100_000, 1_000_000),
    "redis": _Row(10_000, store="redis"),
}
_Run = Callable[[int, Settings], float]  # batches -> words per second of the second half


def _compare(row: _Row, turns: int, seconds: float) -> dict[str, Any]:
    sides: dict[str, _Run] = {"Storm's Trident": partial(_storms, row)}
    sides.update((engine, partial(_ours, row, arguments)) for engine, arguments in _ENGINES.items())
    best = {
        name: _tune(_told(name, run), row, seconds / 3, _OURS if name in _ENGINES else _STORMS)
        for name, run in sides.items()
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, run in sides.items():
            settings, rate = best[name]
            rates[name].append(_told(name, run)(_batches(row, rate, seconds, settings), settings))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    ratios = {engine: round(medians[engine] / medians["Storm's Trident"], 1) for engine in _ENGINES}
    given = {name: settings._asdict() for name, (settings, _) in best.items()}
    return {**row._asdict(), "given": given, "words_per_s": rates, "times_storms": ratios}


def _told(name: str, run: _Run) -> _Run:
    """Return a run that tells its outcome as soon as it is there: a row takes minutes."""

    def told(batches: int, given: Settings) -> float:
        rate = run(batches, given)
        print(f"{name}, {given}: {batches} batches, {rate / 1e6:.3f} M words/s", file=sys.stderr, flush=True)
        return rate

    return told


def _tune(run: _Run, row: _Row, seconds: float, tried: Iterable[Settings]) -> tuple[Settings, float]:
    """Return the fastest settings and their rate."""
    rate = run(max(20, min(1_000, 100_000 // row.batch)), Settings())  # cold: only says how many a short run has
    rates: dict[Settings, float] = {}
    for given in tried:
        rates[given] = run(_batches(row, rate, seconds, given), given)
        rate = rates[given] or rate
    best = max(rates, key=lambda given: rates[given])
    return best, rates[best]


def _batches(row: _Row, rate: float, seconds: float, given: Settings) -> int:
    """How many batches take twice so long at a rate of words per second: the first half warms up.

    Never so few that those in flight at the end are a large part of what counts.
    """
    return max(10, 8 * given.in_flight, round(2 * seconds * rate / (row.batch * 10)))


def _ours(row: _Row, arguments: tuple[str, ...], batches: int, given: Settings) -> float:
    command = [
        sys.executable, "-m", "tests.benchmarks.wordcount", "--durable-log", "--state", f"{row.store}-opaque",
        "--batch", str(row.batch), "--sentences", str(row.batch * batches), "--vocab", str(row.vocabulary),
        "--distinct-files", str(_DISTINCT), "--pending", str(given.in_flight),
        *(("--texts", str(_MEMORY)) if _MEMORY.is_dir() else ()),
        *(("--cache", str(_CACHED)) if row.store == "redis" else ()), *arguments,
    ]  # fmt: skip
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(json.loads(ended.stdout.splitlines()[-1])["warm_words_per_s"])


def _storms(row: _Row, batches: int, given: Settings) -> float:
    if row.store == "memory":
        try:
            return words_per_s(row.batch, batches, row.vocabulary, given=given)
        except subprocess.TimeoutExpired:
            return 0.0  # with many large batches in flight, Storm that passes tuples on together may stand still
    with tempfile.TemporaryDirectory(prefix="trident-storm-redis-") as folder, start_redis(Path(folder)) as server:
        return words_per_s(row.batch, batches, row.vocabulary, server.port, given)


def words_per_s(batch: int, batches: int, vocabulary: int = 10_000, redis: int = 0, given: Settings = WARM) -> float:
    """Count with Storm's Trident; return the words per second of the second half.

    `batch`, `batches`: sentences in a batch, and how many batches.
    `redis`: the port of the Redis that has the state; 0: it is in memory.
    """
    return _run("StormWords", batch, batches, _TASKS, vocabulary, redis, *given)["warm_words_per_s"]


def tracked(pending: int, warm_s: float, seconds: float) -> dict[str, float]:
    """Count with Storm's bolts, each word anchored and acked; return `sentences_per_s` and `sentences_per_cpu_s`.

    `pending`: sentences of each spout that are not acked yet.
    """
    return _run("StormBolts", _TASKS, pending, warm_s, seconds)


def _run(name: str, *numbers: float) -> dict[str, float]:
    path, source = f"{JARS}/*", Path(__file__).with_name(f"{name}.java")
    with tempfile.TemporaryDirectory(prefix="trident-storm-") as folder:
        subprocess.run(["javac", "-cp", path, "-d", folder, str(source)], check=True)
        program = ["java", "-Xmx2g", "-cp", f"{folder}:{path}", name, *map(str, numbers)]
        ended = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=_MOST_S)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{' '.join(program)} printed no figures:\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")
    return {figure: float(value) for figure, value in json.loads(lines[-1]).items()}


def _row(row: _Row) -> Callable[..., dict[str, Any]]:
    def compared(turns: int = 3, seconds: float = 10.0) -> dict[str, Any]:
        return _compare(row, turns, seconds)

    compared.__doc__ = f"{row.batch:,} sentences a batch, {row.vocabulary:,} words, totals in {row.store}"
    return compared


if __name__ == "__main__":
    sys.exit(run_rows(__doc__, {name: _row(row) for name, row in _ROWS.items()}))
