"""The rows `flat` and `resident` of `scale.py`: 10,000 small batches, sampled, and a plot in text of what may not grow."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tests.benchmarks._drivers import flat_run, on_redis

_SAMPLES = 200
_WITHIN = 1.05
_WIDTH, _HEIGHT = 80, 6


class Scaled(Protocol):
    """Scales a number."""

    def __call__(self, number: int) -> int:
        """Return the number to use."""


def flat(sizes: Scaled) -> dict[str, Any]:
    """Run the batches in process, on Spark, and with a Delta table; how much each figure grew, and plots to stderr."""
    ways = [("in_process", "memory"), ("spark", "memory"), ("in_process", "delta")]
    return _grown({f"{engine} {store}": {"engine": engine, "store": store} for engine, store in ways}, sizes)


def flat_resident(sizes: Scaled) -> dict[str, Any]:
    """Run the batches on resident workers: of 100 words in memory, and of one sentence on Redis, committed by the tasks."""
    common: dict[str, Any] = {"engine": "spark", "workers": "resident"}
    with on_redis() as address:
        ways = {
            "memory": {**common, "store": "memory"},
            "redis, executors": {**common, "store": "redis", "address": address, "rows": 10},
        }
        return _grown(ways, sizes)


def _grown(ways: Mapping[str, Mapping[str, Any]], sizes: Scaled) -> dict[str, Any]:
    found = {}
    batches = sizes(10_000)
    batches -= batches % 50
    for name, options in ways.items():
        samples = flat_run(batches=batches, every=max(1, batches // _SAMPLES), **options)
        samples = samples[1:]  # the first has the start of Spark and the first use of everything
        tenth = len(samples) // 10 or 1
        changes = {}
        for figure in samples[0]:
            if figure != "batch":
                values = [sample[figure] for sample in samples]
                first, last = statistics.median(values[:tenth]), statistics.median(values[-tenth:])
                changes[figure] = {"grew": change_of(values), "first": round(first, 2), "last": round(last, 2)}
                print(f"{name}, {figure}: {drawn(values)}", file=sys.stderr)
        found[name] = changes
    worst = max(change["grew"] for changes in found.values() for change in changes.values())
    return {"ok": worst <= _WITHIN, **found}


def change_of(values: Sequence[float]) -> float:
    """Return the median of the last third as a multiple of that of the second; the first is the start."""
    third = max(1, len(values) // 3)
    middle, last = statistics.median(values[third : 2 * third] or values), statistics.median(values[-third:])
    return round(last / middle, 3) if middle else float(bool(last))


def drawn(values: Sequence[float]) -> str:
    """Draw values as a line of text, from 0 up, each column the mean of its values."""
    columns = min(_WIDTH, len(values))
    means = [
        statistics.mean(values[at * len(values) // columns : (at + 1) * len(values) // columns])
        for at in range(columns)
    ]
    top = max(means) or 1.0
    rows = []
    for height in range(_HEIGHT, 0, -1):
        filled = "".join("█" if mean / top * _HEIGHT >= height - 0.5 else " " for mean in means)
        rows.append(f"{top * height / _HEIGHT:12.1f} │{filled}")
    return "\n" + "\n".join([*rows, f"{0:12} └{'─' * columns}"])
