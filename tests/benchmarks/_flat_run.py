"""Many small batches in a process of their own, sampled as they run: `python -m tests.benchmarks._flat_run {...}`."""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from states.delta import DeltaState
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.benchmarks._drawn import DrawnKeys
from trident import Config, TridentTopology
from trident.coordination.transaction_log import FileLog
from trident.graph import Graph
from trident.observe.monitoring import Monitoring
from trident.operations import Count
from trident.planner import make_plan
from trident.runtime.running import RunningTopology
from trident.runtime.start.opened_topology import OpenedTopology
from trident.spout.interfaces import TransactionAttempt
from trident.state import StateSpec

KEYS = 500
_SEGMENT_BYTES = 64 << 10


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
        """Take a sample."""
        now, cpu = time.perf_counter(), time.process_time()
        sample = {
            "batch": self._batches,
            "batch_ms": (now - self._at) / self._every * 1000,
            "cpu_ms": (cpu - self._cpu) / self._every * 1000,
            **_figures_of("python", self._me),
        }
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
    below = [
        each for each in java.children(recursive=True) if not each.children() and each.status() != psutil.STATUS_ZOMBIE
    ]
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


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(**json.loads(sys.argv[1]))))
