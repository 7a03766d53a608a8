"""Random schedules: partitions come, grow, go and come back while readings and commits fail; each row counts once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.harness.topology_runs import Keep, RowsState, dict_state, start
from tests.spout.partition_source import Source
from tests.spout.test_partitioned import BOTH
from trident import TridentTopology
from trident.operations import Count, Sum
from trident.spout import SpoutType

LIVES, ROUNDS = 3, 6


class Restless(Source):
    """Names some of its partitions, others each time, while it is `shaken`."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(limit=rng.randrange(1, 6), arrow=rng.random() < 0.5, quick=rng.random() < 0.5)
        self.rng, self.shaken, self.next = rng, False, 0
        self.before = self.fail

    def get_partitions_for_batch(self) -> list[str]:
        names = sorted(self.rows)
        return [name for name in names if not self.shaken or self.rng.random() < 0.7]

    def fail(self, point: str, attempt: Any = None) -> None:
        if self.shaken and self.rng.random() < 0.15:
            raise OSError(f"no {point}")

    def grow(self) -> None:
        for _ in range(self.rng.randrange(4)):
            name = f"p{self.rng.randrange(6)}"
            count = self.rng.randrange(9)
            self.rows.setdefault(name, []).extend(range(self.next, self.next + count))
            self.next += count


def declared(source: Source, kind: SpoutType, state: str, kept: RowsState, entries: list[dict[Any, Any]]) -> Any:
    topology = TridentTopology("t")
    stream = topology.new_stream("s", source.spout(kind))
    stream.partition_persist(kept, Keep(), stream.fields, state_name="kept")
    rows, sums = (dict_state(one, state) for one in entries)
    stream.group_by("partition", "n").persistent_aggregate(rows, Count(), "count", state_name="rows")
    stream.group_by("partition").persistent_aggregate(sums, "n", Sum(), "sum", state_name="sums")
    return topology


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 100))])
@pytest.mark.parametrize(("kind", "state"), [(BOTH[0], "transactional"), (BOTH[0], "opaque"), (BOTH[1], "opaque")])
def test_each_row_counts_once(kind: SpoutType, state: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{kind} {state} {seed}")
    source, kept, entries = Restless(rng), RowsState(), [{}, {}]  # type: ignore[var-annotated]
    conf = {"max_batch_attempts": 1000, "retry_backoff_max_ms": 1, "max_spout_pending": rng.choice([1, 3])}

    def observe(point: str, attempt: Any) -> None:
        if point in ("committing", "committed"):
            source.fail(point)

    for life in range(LIVES):
        topology = declared(source, kind, state, kept, entries)
        with start(topology, "in_process", observe, log_dir=str(tmp_path), **conf) as running:
            for _ in range(ROUNDS):
                source.grow()
                source.shaken = True
                running.process_all_available()
                source.shaken = rng.random() < 0.5
            source.shaken = life < LIVES - 1
            running.process_all_available()
            if source.shaken:
                continue
            wanted = [(name, n) for name, numbers in source.rows.items() for n in numbers]
            assert running.state("rows").multi_get(wanted) == [1] * len(wanted)
            names = [name for name, numbers in source.rows.items() if numbers]
            assert running.state("sums").multi_get(names) == [sum(source.rows[name]) for name in names]
            for name, numbers in source.rows.items():
                assert [n for partition, n in kept.rows if partition == name] == numbers
    if kind is SpoutType.OPAQUE:
        assert source.of("again") == []
