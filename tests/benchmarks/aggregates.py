"""Several aggregates in one state beside one: the same orders, in process, in turns.

`python -m tests.benchmarks.aggregates [KEYS] [BATCHES]`. One aggregate is a sum; three are a sum, a count and a mean. The
states are in memory, in Delta, in a real Redis and in a real PostgreSQL.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spouts import FixedBatchSpout
from states.delta import DeltaState
from states.memory import MemoryMapState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.servers import start_postgres, start_redis
from trident import Config, TridentTopology
from trident.operations import Avg, Count, Sum

WAYS: dict[str, tuple[Any, ...]] = {
    "one": ("euros", Sum(), "sales"),
    "three": ({"revenue": Sum("euros"), "orders": Count(), "mean": Avg("euros")}, "sales"),
}


def measure(name: str, way: str, spec: Any, keys: int, batches: int, folder: str) -> float:
    """Return the seconds that a batch takes, of those after the first two."""
    rows = [(f"shop {at % keys}", at % 7) for at in range(keys * batches)]
    topology = TridentTopology(name)
    spout = FixedBatchSpout("shop: string, euros: bigint", keys, *rows)
    topology.new_stream("orders", spout).group_by("shop").persistent_aggregate(spec, *WAYS[way])
    with topology.start(
        Config(engine="in_process", poll_interval_ms=1, progress_kept=batches, log_dir=f"{folder}/{name}")
    ) as running:
        running.process_all_available()
        took: list[float] = [
            one["durationMs"]["process"] + one["durationMs"]["commit"] for one in running.recent_progress
        ]
    return statistics.median(took[2:])


def main(keys: int = 10_000, batches: int = 12, rounds: int = 3) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="trident-bench-") as folder,
        start_redis(Path(tempfile.mkdtemp(dir=folder))) as redis,
        start_postgres(Path(folder)) as postgres,
    ):
        dsn = f"postgresql://trident@127.0.0.1:{postgres.port}/postgres"
        stores: dict[str, Callable[[str], Any]] = {
            "memory": lambda way: MemoryMapState(),
            "Delta": lambda way: DeltaState.opaque(f"{folder}/{way}"),
            "Redis": lambda way: RedisState.opaque(f"redis://127.0.0.1:{redis.port}"),
            "PostgreSQL": lambda way: PostgresState.opaque(dsn, table=f"bench_{way}"),
        }
        for store, made in stores.items():
            took: dict[str, list[float]] = {way: [] for way in WAYS}
            for turn in range(rounds):
                for way in WAYS:
                    took[way].append(
                        measure(f"{way}-{store}-{turn}", way, made(f"{way}_{turn}"), keys, batches, folder)
                    )
            one, three = (statistics.median(took[way]) for way in WAYS)
            print(f"{store}, {keys} keys: one {one:.1f} ms, three {three:.1f} ms, {three / one:.2f} times")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
