"""A job over 20,000 orders that is changed six times, and killed before and after each change: equal to plain Python."""

from __future__ import annotations

import itertools
import random
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.harness.commands import environment
from tests.harness.forked import run_python
from tests.harness.servers import Server
from trident import TridentTopology, open_state
from trident.log.log_reader import LogReader

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.long]

MODULE = """
    import random

    from spouts import FixedBatchSpout
    from states.postgres import PostgresState
    from states.redis import RedisState
    from trident import TridentTopology
    from trident.operations import Avg, Count, Max, Sum

    draw = random.Random(7)
    ROWS = [[f"shop{{draw.randrange(60)}}", draw.randrange(1, 1_000)] for _ in range(20_000)]
    POSTGRES, REDIS = PostgresState.opaque("{postgres}", table="{name}"), RedisState.opaque("{redis}", prefix="{name}")

    def job(state, aggregates, rows, key="shop", type_="int", **rename):
        topology = TridentTopology("{name}", rename=rename)
        orders = topology.new_stream("orders", FixedBatchSpout(f"{{key}}: string, amount: {{type_}}", 500, *ROWS[:rows]))
        orders.group_by(key).persistent_aggregate(state, aggregates, "count")
        return topology

    THREE = {{"revenue": Sum("amount"), "orders": Count(), "average": Avg("amount")}}
    BIGGEST = {{"revenue": Sum("amount"), "average": Avg("amount"), "biggest": Max("amount")}}
    LARGEST = {{"revenue": Sum("amount"), "average": Avg("amount"), "largest": Max("amount")}}
    old, new = {old}, {new}
"""
JOBS = (
    "job(POSTGRES, THREE, 3_000)",
    'job(POSTGRES, {**THREE, "largest": Max("amount")}, 6_000)',
    "job(POSTGRES, LARGEST, 9_000)",
    'job(POSTGRES, BIGGEST, 12_000, largest="biggest")',
    'job(POSTGRES, BIGGEST, 15_000, type_="bigint")',
    'job(POSTGRES, BIGGEST, 18_000, "store", "bigint", shop="store")',
    'job(REDIS, BIGGEST, 20_000, "store", "bigint")',
)


class Trial:
    """The folder of the job, and what it must come to."""

    def __init__(self, folder: Path, postgres: Server, redis: Server) -> None:
        self.folder, name = folder, f"changed{random.Random().getrandbits(40):x}"
        self.places = {"postgres": f"postgresql://trident@{postgres.address}/postgres", "name": name}
        self.places["redis"] = f"redis://{redis.address}/0"
        self.names: dict[str, Any] = {}

    def declare(self, old: str, new: str) -> None:
        text = textwrap.dedent(MODULE).format(old=old, new=new, **self.places)
        (self.folder / "words.py").write_text(text, encoding="utf-8")
        exec(text, self.names)

    def process(self, what: str, point: int = 0) -> str:
        done = run_python(
            "-m", "tests.crash.mover", what, str(point), cwd=self.folder, variables=environment(), timeout_s=90
        )
        assert done.returncode in (0, -signal.SIGKILL if point else 0), done.stderr
        return done.stderr

    def check(self, topology: TridentTopology) -> int:
        """Compare all totals with those of the committed rows; return how many these are."""
        with open_state(topology, "count", log_dir=str(self.folder / "log")) as state:
            rows = dict(state.get_tuples())
            done = min(500 * state.txid, len(self.names["ROWS"]))
        of: dict[str, list[int]] = {}
        for shop, amount in self.names["ROWS"][:done]:
            of.setdefault(shop, []).append(amount)
        since = LogReader(self.folder / "log").refresh().declared["states"]["count"].get("since", {"": 1_000})
        largest: dict[str, int] = {}
        for shop, amount in self.names["ROWS"][500 * (min(since.values()) - 1) : done]:
            largest[shop] = max(amount, largest.get(shop, 0))
        assert rows.keys() == of.keys()
        for shop, value in rows.items():
            assert value["revenue"] == sum(of[shop])
            assert value["average"] == sum(of[shop]) / len(of[shop])
            assert value.get("orders", len(of[shop])) == len(of[shop])
            for name in ("largest", "biggest"):
                assert value.get(name, largest.get(shop)) == largest.get(shop)
        return done


@pytest.mark.parametrize("seed", range(3))
def test_a_job_that_is_changed_six_times_and_killed_in_between(
    seed: int, tmp_path: Path, postgres_server: Server, redis_server: Server
) -> None:
    trial, draw = Trial(tmp_path, postgres_server, redis_server), random.Random(seed)
    trial.declare(JOBS[0], JOBS[0])
    trial.process("run", draw.randint(1, 12))
    trial.process("run")
    assert trial.check(trial.names["old"]) == 3_000
    for step, (before, after) in enumerate(itertools.pairwise(JOBS), start=1):
        rows = f"{3 * step + 2}_000"  # those of the batches in flight, should it come back
        trial.declare(before.replace(f"{3 * step}_000", rows), after)
        if "REDIS" in after:
            trial.process("move", draw.randint(1, 20))
            trial.process("move")
        else:
            trial.process("run new", draw.randint(1, 2))
            trial.process("run")  # the former code comes back, if the new one has committed nothing
        for _ in range(2):
            trial.process("run new", draw.randint(1, 10))
            trial.check(trial.names["new"])
        trial.process("run new")
        assert trial.check(trial.names["new"]) == min(3_000 * (step + 1), 20_000)
