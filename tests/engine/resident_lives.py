"""Random lives on resident workers: options against each other, and workers that are killed at random moments.

`python -m tests.engine.resident_lives --first 0 --count 200` runs many and prints a line for each that is wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from states.delta import DeltaState
from states.memory import MemoryMapState
from states.redis import RedisState
from tests.crash.case import ScriptedSpout, rows_of
from tests.crash.fuse import Fuse
from tests.engine.forked_workers import forked_workers
from tests.harness.servers import start_redis
from tests.harness.topology_runs import start
from trident import TridentTopology
from trident.engine.resident_runner import ResidentRunner
from trident.operations import Count, Sum
from trident.run.running import RunningTopology
from trident.spark.session import spark_session, stop_session
from trident.state import StateSpec

_STATES = ("words", "shelves")


@dataclass(frozen=True)
class ResidentLife:
    """The options of a topology that starts once, or is stopped on the way and started again.

    `spout`: as of `ScriptedSpout`.
    `kind`: of the states.
    `placed`: where each state commits.
    `hints`: how many partitions each state has, and the exchange before them.
    `kills`: at which of the steps of batches that the driver sees, counted from the first, a worker is killed.
    `stops_after`: how many batches the first start records; 0: all.
    `then`: the workers of the second start.
    """

    seed: int
    store: str = "memory"
    spout: str = "transactional"
    kind: str = "opaque"
    placed: tuple[str, str] = ("driver", "driver")
    hints: tuple[int, int, int] = (1, 1, 1)
    cache: int = 0
    pending: int = 1
    parallelism: int = 2
    batch_size: int = 10
    kills: tuple[int, ...] = ()
    stops_after: int = 0
    then: str = "resident"

    @staticmethod
    def drawn(seed: int) -> ResidentLife:
        """Draw the options from a seed."""
        rng = random.Random(f"life {seed}")
        store = rng.choice(["memory", "redis", "redis", "delta"])
        spout = rng.choice(["transactional", "repeating", "changing"])
        kinds = ["opaque", "transactional"] if spout == "transactional" else ["opaque"]
        places = ["driver"] if store == "memory" else ["driver", "executors"]
        drawn = ResidentLife(
            seed=seed, store=store, spout=spout, kind=rng.choice(kinds),
            placed=(rng.choice(places), rng.choice(places)),
            hints=(rng.randint(1, 8), rng.randint(1, 8), rng.randint(1, 8)),
            cache=rng.choice([0, 1, 100]) if store == "redis" else 0,
            pending=rng.randint(1, 8), parallelism=rng.choice([1, 2, 2]), batch_size=rng.choice([3, 10, 25]),
            kills=tuple(rng.sample(range(1, 40), rng.choice([0, 1, 2, 3]))),
            stops_after=0 if store == "memory" else rng.choice([0, 0, 1, 3]),
            then=rng.choice(["resident", "resident", "jobs"]),
        )  # fmt: skip
        return replace(drawn, hints=(1, 1, drawn.hints[2])) if store == "delta" else drawn

    def wrong(self, folder: Path, redis: int) -> tuple[list[str], int]:
        """Run it; return what the states hold that they must not, and how many attempts failed."""
        failures, found = 0, list[dict[Any, Any]]()
        starts = [(self.stops_after, "resident"), (0, self.then)] if self.stops_after else [(0, "resident")]
        for life, (most, workers) in enumerate(starts):
            with self._started(folder, redis, life, workers, most) as (running, enough):
                if most:
                    enough.wait(120)
                else:
                    running.process_all_available()
                    found = [dict(_entries(running, name)) for name in _STATES]
                failures += running.status["failures"]
        rows = rows_of(self.seed, self._rows)
        words, shelves = Counter[Any](), Counter[Any]()
        for row in rows:
            words[(row.word,)] += row.weight
            shelves[row.shelf, row.odd] += 1
        return [
            f"{name}: {sorted(held.items() ^ wanted.items(), key=repr)[:8]}"
            for name, held, wanted in zip(_STATES, found, (dict(words), dict(shelves)), strict=True)
            if held != wanted
        ], failures

    @property
    def _rows(self) -> int:
        return 12 * self.batch_size

    def _topology(self, folder: Path, redis: int, life: int) -> TridentTopology:
        topology = TridentTopology(f"life{self.seed}x{os.getpid()}")
        spout = ScriptedSpout(self.spout, self.seed, life, Fuse(), self._rows, self.batch_size)
        rows = topology.new_stream("rows", spout)
        words, shelves, exchange = self.hints
        routed = rows.partition_by("shelf").parallelism_hint(exchange).filter("weight", _is_positive)
        first, second = (self._spec(topology.name, name, folder, redis) for name in _STATES)
        rows.group_by("word").persistent_aggregate(first, "weight", Sum(), "sum", state_name="words").parallelism_hint(
            words
        ).placement(self.placed[0])
        routed.group_by("shelf", "odd").persistent_aggregate(
            second, Count(), "rows", state_name="shelves"
        ).parallelism_hint(shelves).placement(self.placed[1])
        return topology

    def _spec(self, topology: str, name: str, folder: Path, redis: int) -> StateSpec:
        spec: StateSpec
        if self.store == "redis":
            url = f"redis://127.0.0.1:{redis}/0"
            spec = getattr(RedisState, self.kind)(url, prefix=f"{topology}-{name}", cache=self.cache)
        elif self.store == "delta":
            spec = getattr(DeltaState, self.kind)(str(folder / name), fsync=False)
        else:
            spec = getattr(MemoryMapState, self.kind)()
        return spec

    @contextmanager
    def _started(
        self, folder: Path, redis: int, life: int, workers: str, most: int
    ) -> Iterator[tuple[RunningTopology, threading.Event]]:
        enough, seen = threading.Event(), Counter[str]()
        opened: list[RunningTopology] = []
        rng = random.Random(f"kills {self.seed} {life}")

        def observe(point: str, attempt: Any) -> None:
            seen.update([point])
            if seen["recorded"] >= most:
                enough.set()
            if seen.total() in self.kills and opened and workers == "resident":
                _kill_one(opened[0], rng)

        settings = {
            "workers": workers, "parallelism": self.parallelism, "max_spout_pending": self.pending,
            "log_dir": str(folder / "log"), "max_batch_attempts": 50,
        }  # fmt: skip
        with start(self._topology(folder, redis, life), "spark", observe, **settings) as running:
            opened.append(running)
            yield running, enough


def _is_positive(weight: int) -> bool:
    return weight >= 0


def _kill_one(running: RunningTopology, rng: random.Random) -> None:
    if there := _processes(running):
        with suppress(ProcessLookupError):
            os.kill(rng.choice(there), signal.SIGKILL)


def _processes(running: RunningTopology) -> list[int]:
    runner = running.opened.runner
    assert isinstance(runner, ResidentRunner)
    return [place.pid for place in runner.pool.places if place.run]


def _entries(running: RunningTopology, name: str) -> Iterator[tuple[Any, Any]]:
    yield from ((row[:-1], row[-1]) for row in running.state(name).get_tuples())


def main(argv: list[str] | None = None) -> int:
    """Run lives; exit code 1 if one was not exact."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--forked", action="store_true", help="workers are processes without Spark: many times as fast")
    asked = parser.parse_args(argv)
    ran = Counter[str]()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        redis = start_redis(Path(folder))
        ends.callback(redis.stop)
        if asked.forked:
            ends.enter_context(forked_workers())
        else:
            ends.callback(stop_session, spark_session("lives", "local[2]"))
        for seed in range(asked.first, asked.first + asked.count):
            life, work = ResidentLife.drawn(seed), Path(folder, str(seed))
            work.mkdir()
            wrong, failures = (replace(life, then="resident") if asked.forked else life).wrong(work, redis.port)
            ran.update({"lives": 1, "failed attempts": failures, "wrong": bool(wrong), "killed": bool(failures)})
            if wrong:
                sys.stdout.write(f"{life}: {wrong}\n")
            if wrong or seed % 10 == 9:
                sys.stdout.write(f"up to seed {seed}: {dict(ran)}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{dict(ran)}\n")
    return int(ran["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
