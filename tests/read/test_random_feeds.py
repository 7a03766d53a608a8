"""Feeds of changes over random declarations: the fold of a feed is the state, and the state is what a dict holds."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import trident
from states.memory import MemoryMapState
from states.postgres import PostgresState
from states.redis import RedisState
from tests.harness.servers import Server
from tests.harness.topology_runs import QUICK
from tests.run.test_removing_streams import FailsNowAndThen
from trident import Fields, TridentTopology
from trident.operations import Avg, Count, Max, Sum
from trident.spout import SpoutType
from trident.state.encoding.codec import encode_keys

pytestmark = [pytest.mark.slow, pytest.mark.server]

KEYS: dict[str, Callable[[random.Random], Any]] = {
    "string": lambda draw: draw.choice(["", "a", "b:c", "\\N", "ü", "a\0b", None]),
    "bigint": lambda draw: draw.choice([0, 1, -1, 1 << 62, None]),
    "double": lambda draw: draw.choice([0.0, -0.0, 1.0, math.inf, 1e-300, None]),
    "boolean": lambda draw: draw.choice([True, False, None]),
    "date": lambda draw: dt.date(2026, 11, draw.randint(1, 4)),
    "decimal(10,2)": lambda draw: Decimal(draw.randint(0, 3)) / 4,
    "binary": lambda draw: draw.choice([b"", b"\0", b"a:b"]),
}
AGGREGATES: list[Callable[[], Any]] = [
    lambda: {"n": Count()},
    lambda: {"n": Count(), "total": Sum("n")},
    lambda: {"n": Count(), "total": Sum("n"), "mean": Avg("n"), "most": Max("n")},
]


class Rows:
    """A spout that gives other rows at each try of a batch; it remembers those of the last one."""

    spout_type = SpoutType.OPAQUE

    def __init__(self, draw: random.Random, types: list[str], batches: int, most: int) -> None:
        self.draw, self.types, self.batches, self.most = draw, types, batches, most
        self.given: dict[int, list[tuple[Any, ...]]] = {}

    def open(self, conf: Mapping[str, Any]) -> None: ...

    def emit_batch(self, batch_id: int, collector: Any) -> bool:
        if batch_id > self.batches:
            return False
        rows = self.draw.randint(0, self.most)
        self.given[batch_id] = [
            (*(KEYS[type_](self.draw) for type_ in self.types), self.draw.randint(-9, 9)) for _ in range(rows)
        ]
        for row in self.given[batch_id]:
            collector.emit(list(row))
        return True

    def ack(self, batch_id: int) -> None: ...

    def close(self) -> None: ...

    def get_output_fields(self) -> Fields:
        return Fields(", ".join([*(f"k{at}: {type_}" for at, type_ in enumerate(self.types)), "n: bigint"]))


def spec(draw: random.Random, postgres: Server, redis: Server, name: str) -> tuple[Any, str, str]:
    """Return a state, what it is called, and where a log in the same place is; empty: in files."""
    options: dict[str, Any] = {"changes": draw.choice(["1d", 10_000]), "max_keys_per_call": draw.randint(1, 40)}
    options["cache"] = draw.choice([0, 0, 5, 1000])
    if draw.random() < 0.4:
        url = f"postgresql://trident@{postgres.address}/postgres"
        log = f"{url}?topology={name}" if draw.random() < 0.5 else ""
        return PostgresState.opaque(url, table=name, **options), f"postgres {options}", log
    options |= {"prefix": name, "layout": draw.choice(["strings", "fields"])}
    return RedisState.opaque(f"redis://{redis.address}/0", **options), f"redis {options}", ""


SEEDS = [
    *(("in_process", seed) for seed in range(6)),
    *(pytest.param("in_process", seed, marks=pytest.mark.soak) for seed in range(6, 300)),
    ("spark", 0),
    *(pytest.param("spark", seed, marks=pytest.mark.soak) for seed in range(1, 30)),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("engine", "seed"), SEEDS)
def test_the_fold_of_a_feed_is_the_state(
    engine: str, seed: int, tmp_path: Path, postgres_server: Server, redis_server: Server
) -> None:
    draw, name = random.Random(seed), f"feed_{engine}_{seed}_{tmp_path.parent.name[-8:].replace('-', '_')}"
    types = [draw.choice(list(KEYS)) for _ in range(draw.randint(1, 3))]
    rows = Rows(random.Random(seed), types, draw.randint(3, 12), draw.choice([3, 30]))
    state, called, log_dir = spec(draw, postgres_server, redis_server, name)
    hint, keys = draw.randint(1, 8), [f"k{at}" for at in range(len(types))]
    FailsNowAndThen.draw = random.Random(seed)

    def declared() -> TridentTopology:
        topology = TridentTopology(name)
        stream = topology.new_stream("rows", rows)
        counted = stream.group_by(*keys).persistent_aggregate(state, aggregates, "sums", state_name="sums")
        counted.parallelism_hint(hint)
        if engine == "in_process":
            stream.partition_persist(MemoryMapState.opaque(), "n", FailsNowAndThen(), state_name="fails")
        return topology

    aggregates = draw.choice(AGGREGATES)()
    settings: dict[str, Any] = {**QUICK, "engine": engine, "log_dir": log_dir or str(tmp_path / "log")}
    settings["max_spout_pending"] = draw.randint(1, 3)
    settings["state_placement"] = draw.choice(["driver", "auto", "executors"]) if engine == "spark" else "driver"
    settings |= {"max_batch_attempts": 100, "allow_inexact": True, **({"parallelism": 2} if engine == "spark" else {})}
    what = f"{called}, keys {types}, hint {hint}, {settings}"
    topology = declared()
    with topology.start(**settings) as running:
        running.process_all_available()
    fold: dict[bytes, Any] = {}
    with trident.changes(topology, "sums", 0, log_dir=settings["log_dir"]) as feed:
        while batches := feed.read(draw.randint(1, 5)):
            for batch in batches:
                for one, change in zip(encode_keys([one.key for one in batch.changes]), batch.changes, strict=True):
                    assert fold.get(one) == change.before, (what, batch.txid, change)
                    fold[one] = change.after
    with trident.open_state(topology, "sums", log_dir=settings["log_dir"]) as reader:
        found = list(reader.get_tuples())
    assert fold == dict(zip(encode_keys([row[:-1] for row in found]), [row[-1] for row in found], strict=True)), what
    counts: dict[bytes, int] = {}
    for given in rows.given.values():
        for one in encode_keys([row[:-1] for row in given]):
            counts[one] = counts.get(one, 0) + 1
    assert {one: value["n"] for one, value in fold.items()} == counts, what
