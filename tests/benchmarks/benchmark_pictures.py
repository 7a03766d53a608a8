"""Runs the benchmarks once and draws them: `python -m tests.benchmarks.benchmark_pictures [FIGURE …] [--quick]`.

Each figure is a CSV with machine, versions and command in its head, and an SVG that is drawn from nothing but this file: lines
over axes by decades or from zero, a legend, and a caption.
"""

import argparse
import csv
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Self

from tests.benchmarks import scaling_costs, storms_own
from tests.benchmarks._flatness import flat_run
from tests.harness.servers import ROOT

OUT = ROOT / "docs" / "benchmarks"


Point = tuple[str, float, float]

_WIDTH, _HEIGHT, _LEFT, _TOP, _BESIDE = 760, 380, 80, 50, 190
_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a", "#bf3989", "#0a3069")


@dataclass(frozen=True)
class Chart:
    """What stands around the lines: `across` and `up` name the axes, those of `decades` ("x", "y", "xy") are logarithmic."""

    title: str
    across: str
    up: str
    decades: str = ""


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    by_decade: bool

    @classmethod
    def of(cls, values: Sequence[float], by_decade: bool) -> Self:
        if not by_decade:
            return cls(0.0, _rounded_up(max(values) or 1.0), False)
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1), True)

    def share(self, value: float) -> float:
        at = math.log10(value) if self.by_decade else value
        return (at - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.by_decade:
            return [10.0**exponent for exponent in range(int(self.low), int(self.high) + 1)]
        return [self.high * fifth / 5 for fifth in range(6)]


def _rounded_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value)


def drawn(chart: Chart, points: Sequence[Point], caption: Sequence[str]) -> str:
    """Return the SVG of points, a line for each series in the order in which they come first; below are lines of text."""
    x = _Axis.of([point[1] for point in points], "x" in chart.decades)
    y = _Axis.of([point[2] for point in points], "y" in chart.decades)
    parts = [f'<text x="{_LEFT}" y="24" font-size="16" font-weight="bold">{escape(chart.title)}</text>']
    for tick in x.ticks():
        at = _across(x, tick)
        parts.append(f'<path d="M{at:.1f},{_TOP}V{_HEIGHT - 70}" stroke="#e6e6e6"/>')
        parts.append(f'<text x="{at:.1f}" y="{_HEIGHT - 52}" text-anchor="middle">{_short(tick)}</text>')
    for tick in y.ticks():
        at = _up(y, tick)
        parts.append(f'<path d="M{_LEFT},{at:.1f}H{_WIDTH - _BESIDE}" stroke="#e6e6e6"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 28}">{escape(chart.across)}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_TOP - 8}">{escape(chart.up)}</text>')
    for at, series in enumerate(dict.fromkeys(point[0] for point in points)):
        parts += _line(series, _COLOURS[at % len(_COLOURS)], at, [p for p in points if p[0] == series], (x, y))
    for at, line in enumerate(caption):
        parts.append(f'<text x="{_LEFT}" y="{_HEIGHT + 12 + at * 14}" font-size="10" fill="#777">{escape(line)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT + 40}" font-family="sans-serif" '
        f'font-size="12" fill="#333"><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _line(series: str, colour: str, at: int, points: Sequence[Point], axes: tuple[_Axis, _Axis]) -> list[str]:
    places = [(_across(axes[0], point[1]), _up(axes[1], point[2])) for point in sorted(points, key=lambda p: p[1])]
    path = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
    beside, top = _WIDTH - _BESIDE + 12, _TOP + 10 + at * 20
    dots = [f'<circle cx="{left:.1f}" cy="{top:.1f}" r="2.5" fill="{colour}"/>' for left, top in places[:40]]
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(dots if len(places) <= 40 else []),
        f'<path d="M{beside},{top - 4}h16" stroke="{colour}" stroke-width="3"/>',
        f'<text x="{beside + 22}" y="{top}">{escape(series)}</text>',
    ]


def _across(axis: _Axis, value: float) -> float:
    return _LEFT + axis.share(value) * (_WIDTH - _BESIDE - _LEFT)


def _up(axis: _Axis, value: float) -> float:
    return _HEIGHT - 70 - axis.share(value) * (_HEIGHT - 70 - _TOP)


def _short(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:.3g}"


@dataclass(frozen=True)
class Figure:
    """One picture.

    `measure`: yields its points; given True, of few and small runs.
    `command`: what it runs, for a reader who wants one of its numbers.
    """

    chart: Chart
    measure: Callable[[bool], Iterator[Point]]
    command: str


def _json_lines(*argv: str) -> list[dict[str, Any]]:
    ended = subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{' '.join(argv)} printed no figures:\n{ended.stderr}")
    return lines


def words(quick: bool) -> Iterator[Point]:
    """Words per second by size of batch, on each engine, through foreachBatch, and with Storm if its jars are there."""
    large = {1: 300, 100: 30_000, 1_000: 200_000, 10_000: 1_000_000, 100_000: 4_000_000}
    sizes = {1: 60, 100: 6_000} if quick else large
    for batch, sentences in sizes.items():
        given = ("tests.benchmarks.wordcount", "--durable-log", "--batch", str(batch), "--sentences", str(sentences))
        (of_spark,) = _json_lines(*given, "--side-by-side")
        yield "Spark, jobs", batch, of_spark["warm_words_per_s"]
        yield "foreachBatch", batch, batch * 10_000 / of_spark["foreach_batch_ms"]
        yield "Spark without state", batch, of_spark["bare_spark_words_per_s"]
        (resident,) = _json_lines(*given, "--workers", "resident")
        yield "Spark, resident", batch, resident["warm_words_per_s"]
        (in_process,) = _json_lines(*given, "--engine", "in_process")
        yield "in process", batch, in_process["warm_words_per_s"]
        if storms_own.JARS.exists():
            yield "Storm's Trident (8 in flight)", batch, storms_own.words_per_s(batch, max(20, sentences // batch))


def commits(quick: bool) -> Iterator[Point]:
    """How long a commit takes, by store and number of keys."""
    stores = ("redis",) if quick else ("redis", "memcached", "postgres", "cassandra", "delta")
    sizes = ("100", "1000") if quick else ("100", "1000", "10000", "100000")
    for store in stores:
        given = ("--store", store, "--rounds", "3", "--delta-rounds", "2", "--no-spark", "--growth", *sizes)
        for line in _json_lines("tests.benchmarks.commits", *given):
            for grown in line["growth"]:
                yield store, grown["keys"], grown["keys"] / 1000 * grown["ms_per_1k"]


def bolts(quick: bool) -> Iterator[Point]:
    for rate in (100, 1_000) if quick else (100, 1_000, 5_000, 10_000, 20_000):
        given = ("latency", "--engine", "local", "--rate", str(rate), "--seconds", "2" if quick else "8", "--warm", "2")
        (line,) = _json_lines("tests.benchmarks.bolts", *given)
        yield "half of all", rate, line["p50_ms"]
        yield "99 of 100", rate, line["p99_ms"]


def memory(quick: bool) -> Iterator[Point]:
    """Memory of the driver over many batches."""
    batches = 400 if quick else 10_000
    for engine in ("in_process",) if quick else ("in_process", "spark"):
        for sample in flat_run(engine=engine, store="memory", batches=batches, every=batches // 40)[1:]:
            yield f"{engine}, Python", sample["batch"], sample["python_mb"]
            if "jvm_mb" in sample:
                yield f"{engine}, JVM", sample["batch"], sample["jvm_mb"]


def time_of_batches(quick: bool) -> Iterator[Point]:
    """Processor time of a batch over many batches."""
    for store, batches in {"memory": 400}.items() if quick else {"memory": 10_000, "delta": 2_000}.items():
        for sample in flat_run(engine="in_process", store=store, batches=batches, every=batches // 40)[1:]:
            yield f"in process, {store}", sample["batch"], sample["cpu_ms"]


def costs(quick: bool) -> Iterator[Point]:
    """How long a batch takes, by partitions, tasks and topologies."""
    sizes = (1, 10) if quick else scaling_costs.SIZES
    of_partitions = scaling_costs.partitions(10 if quick else 30, sizes)
    yield from (("partitions of a state", number, ms) for number, ms in of_partitions)
    many = scaling_costs.topologies(10 if quick else 100, (1, 4) if quick else (1, 4, 16, 64))
    yield from (("topologies of a process", number, ms) for number, ms in many)
    if not quick:
        yield from (("tasks on Spark, 2 cores", number, ms) for number, ms in scaling_costs.tasks(20))


_RUN = "python -m tests.benchmarks"
FIGURES = {
    "words": Figure(Chart("Word count: words per second", "sentences of ten words in a batch", "words/s, warm", "xy"),
                    words, f"{_RUN}.wordcount --durable-log --side-by-side"),
    "commits": Figure(Chart("A commit of distinct keys", "keys in a commit", "ms", "xy"), commits, f"{_RUN}.commits"),
    "bolts": Figure(Chart("Bolts: complete latency of a sentence and its ten words", "sentences/s", "ms", "xy"),
                    bolts, f"{_RUN}.bolts latency --engine local"),
    "memory": Figure(Chart("Memory of the driver over its batches", "batches", "MB"), memory, f"{_RUN}.scale flat"),
    "time": Figure(Chart("Processor time of a batch of 100 words", "batches", "ms"),
                   time_of_batches, f"{_RUN}.scale flat"),
    "costs": Figure(Chart("A batch that does nearly nothing, by what there is of it", "how many", "ms", "xy"),
                    costs, f"{_RUN}.scaling_costs"),
}  # fmt: skip


def machine() -> str:
    """Return what was measured on."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pyspark", "pyarrow"))
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {memory_gb:.0f} GB, Python {platform.python_version()}, "
        f"{versions}, commit {commit.stdout.strip()}"
    )


def to_csv(path: Path, points: Sequence[Point], head: str, command: str) -> None:
    """Write the points of a figure."""
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {head}\n# {command}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("series", "x", "y"))
        writer.writerows((series, x, round(y, 3)) for series, x, y in points)


def from_csv(path: Path) -> str:
    """Return the SVG of a figure's CSV."""
    head, command, _, *lines = path.read_text(encoding="utf-8").splitlines()
    points = [(series, float(x), float(y)) for series, x, y in csv.reader(lines)]
    return drawn(FIGURES[path.stem].chart, points, [line.removeprefix("# ") for line in (command, head)])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.benchmark_pictures", description=__doc__)
    parser.add_argument("figure", nargs="*", choices=[[], *FIGURES], help="which ones; all if none is named")
    parser.add_argument("--quick", action="store_true", help="few and small runs, to see that everything works")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.figure or FIGURES:
        figure, path = FIGURES[name], options.out / f"{name}.csv"
        print(f"{name}: {figure.command}", flush=True)
        to_csv(path, list(figure.measure(options.quick)), machine(), figure.command)
        path.with_suffix(".svg").write_text(from_csv(path), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
