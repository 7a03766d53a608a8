"""The word count of Storm's own Trident beside ours: `python -m tests.benchmarks.storms_own [ROW …] [--turns 3]`.

Needs `make build/services/storm`. Prints a JSON line for each row: warm words per second of both, in turns, and the ratio of
their medians. Storm's is compiled from `StormWords.java` and runs in a JVM of its own, two tasks, three batches in flight. Ours
has its log on disk; Storm's notes its transactions in a ZooKeeper of its own process. On Redis both remember the values of
20,000 keys.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness.servers import start_redis

__all__ = ["JARS", "tracked", "words_per_s"]

JARS = Path(__file__).parents[2] / "build" / "services" / "storm"
"""Where `make build/services/storm` puts Storm's jars."""

_TASKS = 2  # of each component, and of the state
_ENGINES = {
    "in process": ("--engine", "in_process"),
    "Spark, jobs": (),
    "Spark, resident": ("--workers", "resident"),
}


class _Row(NamedTuple):
    """`batch`: sentences of ten words in one; `vocabulary`: how many words they are drawn from."""

    batch: int
    batches: int
    vocabulary: int = 10_000
    store: str = "memory"


_ROWS = {
    "1": _Row(1, 2_000),
    "100": _Row(100, 600),
    "1000": _Row(1_000, 200),
    "10000": _Row(10_000, 60),
    "100000": _Row(100_000, 20),
    "distinct": _Row(100_000, 12, 1_000_000),
    "redis": _Row(10_000, 60, store="redis"),
}


def main(argv: list[str] | None = None) -> int:
    """Print a line for each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", choices=[*_ROWS, []], default=list(_ROWS))
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args(argv)
    for name in options.rows:
        print(json.dumps({"row": name, **_compared(_ROWS[name], options.turns)}), flush=True)
    return 0


def _compared(row: _Row, turns: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {}
    for _ in range(turns):
        rates.setdefault("Storm's Trident", []).append(_storms(row))
        for engine, arguments in _ENGINES.items():
            rates.setdefault(engine, []).append(_ours(row, arguments))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    ratios = {engine: round(medians[engine] / medians["Storm's Trident"], 1) for engine in _ENGINES}
    return {**row._asdict(), "words_per_s": rates, "times_storms": ratios}


def _ours(row: _Row, arguments: tuple[str, ...]) -> float:
    command = [
        sys.executable, "-m", "tests.benchmarks.wordcount", "--durable-log", "--state", f"{row.store}-opaque",
        "--batch", str(row.batch), "--sentences", str(row.batch * row.batches), "--vocab", str(row.vocabulary), *arguments,
    ]  # fmt: skip
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(json.loads(ended.stdout.splitlines()[-1])["warm_words_per_s"])


def _storms(row: _Row) -> float:
    if row.store == "memory":
        return words_per_s(row.batch, row.batches, row.vocabulary)
    with tempfile.TemporaryDirectory(prefix="trident-storm-redis-") as folder:
        server = start_redis(Path(folder), "--save", "")
        try:
            return words_per_s(row.batch, row.batches, row.vocabulary, server.port)
        finally:
            server.stop()


def words_per_s(batch: int, batches: int, vocabulary: int = 10_000, redis: int = 0) -> float:
    """Count with Storm's Trident; return the words per second of the second half.

    `batch`, `batches`: sentences in a batch, and how many batches.
    `redis`: the port of the Redis that has the state; 0: it is in memory.
    """
    return _run("StormWords", batch, batches, _TASKS, vocabulary, redis)["warm_words_per_s"]


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
        ended = subprocess.run(program, cwd=folder, capture_output=True, text=True)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{' '.join(program)} printed no figures:\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")
    return {figure: float(value) for figure, value in json.loads(lines[-1]).items()}


if __name__ == "__main__":
    raise SystemExit(main())
