"""The rows `flat` and `resident` of `scale.py`: 10,000 small batches, sampled, and a plot in text of what may not grow.

The batches run in a process of their own, sampled as they run.
"""

import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from states.delta import DeltaState
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.benchmarks._drawn import DrawnKeys
from tests.benchmarks._drivers import on_redis
from tests.benchmarks._measuring import apart
from trident import Config, TridentTopology
from trident.graph import Graph
from trident.log.file_log import FileLog
from trident.observe.monitoring import Monitoring
from trident.operations import Count
from trident.plan import make_plan
from trident.run.opened_topology import OpenedTopology
from trident.run.running import RunningTopology
from trident.spout.interfaces import TransactionAttempt
from trident.state import StateSpec

KEYS = 500
_SEGMENT_BYTES = 64 << 10
_SAMPLES = 200
_WITHIN = 1.05
_WIDTH, _HEIGHT = 80, 6


class Samples:
    """An observer that notes, every so many batches, what may not grow."""

    def __init__(self, every: int, folder: Path) -> None:
        self._every, self._folder, self._batches = every, folder, 0
        self._at, self._cpu, self._me = time.perf_counter(), time.process_time(), psutil.Process()
        self.taken: list[dict[str, float]] = []

    def __call__(self, point: str, attempt: TransactionAttempt) -> None:
        """Count a batch that is committed."""
        if point != "succeeded":
            return
        self._batches += 1
        if self._batches % self._every == 0:
            self.take()

    def take(self) -> None:
        now, cpu = time.perf_counter(), time.process_time()
        sample = {
            "batch": self._batches, "batch_ms": (now - self._at) / self._every * 1000,
            "cpu_ms": (cpu - self._cpu) / self._every * 1000, **_figures_of("python", self._me),
        }  # fmt: skip
        for child in self._me.children():
            if child.name() == "java":
                sample |= _figures_of("jvm", child)
                with suppress(psutil.NoSuchProcess):  # one that another test has left may end meanwhile
                    for number, worker in enumerate(_workers_below(child)):
                        sample |= _figures_of(f"worker{number}", worker)
        for part in self._folder.iterdir():
            sizes = _sizes(part)
            sample[f"{part.name}_kb"], sample[f"{part.name}_files"] = sum(sizes) / 1024, len(sizes)
        self.taken.append(sample)
        self._at, self._cpu = time.perf_counter(), time.process_time()


def _figures_of(role: str, process: psutil.Process) -> dict[str, float]:
    return {f"{role}_mb": process.memory_info().rss / (1 << 20), f"{role}_descriptors": process.num_fds()}


def _workers_below(java: psutil.Process) -> list[psutil.Process]:
    """Return Python's processes that have no children, in the order of their start: without the daemon that forks them."""
    running = java.children(recursive=True)
    below = [each for each in running if not each.children() and each.status() != psutil.STATUS_ZOMBIE]
    return sorted(below, key=lambda each: each.create_time())


def _sizes(folder: Path) -> list[int]:
    sizes = []
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(Path(where, name).stat().st_size)
            except FileNotFoundError:  # swept meanwhile
                continue
    return sizes


def run(
    engine: str, store: str, batches: int, every: int, rows: int = 100, workers: str = "jobs", address: str = ""
) -> list[dict[str, float]]:
    """Run the batches and return the samples; what is stored in Redis, at `address`, is committed by tasks."""
    with tempfile.TemporaryDirectory(prefix="trident-flat-") as folder:
        topology = TridentTopology("flat")
        spec = _spec(store, address, folder)
        spout = DrawnKeys(batches, rows, KEYS)
        counts = topology.new_stream("words", spout).group_by("word").persistent_aggregate(spec, Count(), "count")
        settings: dict[str, Any] = {
            "engine": engine, "workers": workers, "log_dir": f"{folder}/log", "master": "local[2]",
            "state_placement": "executors" if address else "auto",
        }  # fmt: skip
        samples = Samples(every, Path(folder))
        gc.collect()
        with _started(topology.graph(), Config.of(settings), samples) as started:
            started.process_all_available()
            keys = [(word,) for word in spout.words(spout.numbers(0, 0, KEYS)).to_pylist()]
            assert started.state(counts).multi_get(keys) == [spout.count_of_each()] * KEYS
            assert started.status["failures"] == 0
    return samples.taken


def _spec(store: str, address: str, folder: str) -> StateSpec:
    if address:
        return RedisState.opaque(address)
    return DeltaState.opaque(f"{folder}/table") if store == "delta" else MemoryMapState.opaque()


def _started(graph: Graph, config: Config, observer: Samples) -> RunningTopology:
    """Start with a log of small segments, so that it turns over often enough to show that old ones go."""

    def log(states: Any) -> FileLog:
        return FileLog.open(config.log_folder(graph.name), graph.name, segment_bytes=_SEGMENT_BYTES)

    opened = OpenedTopology(graph, make_plan(graph), config, log)
    return RunningTopology(graph, opened, Monitoring(graph.name), observer)


def flat_run(**options: Any) -> list[dict[str, float]]:
    """Run many small batches in a process of their own, and return the samples."""
    return apart(run, **options)


def flat(sizes: Callable[[int], int]) -> dict[str, Any]:
    """10,000 batches: memory, time of a batch, log size and files flat within 5 %."""
    ways = [("in_process", "memory"), ("spark", "memory"), ("in_process", "delta")]
    return _grown({f"{engine} {store}": {"engine": engine, "store": store} for engine, store in ways}, sizes)


def flat_resident(sizes: Callable[[int], int]) -> dict[str, Any]:
    """10,000 batches on resident workers: memory and descriptors of driver, JVM and workers, time, flat within 5 %."""
    common: dict[str, Any] = {"engine": "spark", "workers": "resident"}
    with on_redis() as address:
        ways = {
            "memory": {**common, "store": "memory"},
            "redis, executors": {**common, "store": "redis", "address": address, "rows": 10},
        }
        return _grown(ways, sizes)


def _grown(ways: Mapping[str, Mapping[str, Any]], sizes: Callable[[int], int]) -> dict[str, Any]:
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
