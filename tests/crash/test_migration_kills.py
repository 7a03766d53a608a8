"""A state whose values get another type: migrated one by one and by a pass, exactly, wherever drivers and passes are killed."""

from __future__ import annotations

import random
import signal
import subprocess
import textwrap
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.harness.commands import environment
from tests.harness.forked import run_python
from tests.harness.servers import Server
from trident import open_state

pytestmark = [pytest.mark.slow, pytest.mark.server]

MODULE = """
    import random
    from decimal import Decimal

    from spouts import FixedBatchSpout
    from states.postgres import PostgresState
    from states.redis import RedisState
    from trident import TridentTopology
    from trident.operations import Sum

    draw = random.Random({seed})
    ROWS = [[f"w{{int(draw.expovariate(0.03))}}", draw.randrange(100)] for _ in range(400)]
    STATE = {state}

    def euros(cents, type):
        assert (type, isinstance(cents, int)) == ("bigint", True)
        return Decimal(cents) / 100

    def declared(step, of, migrate):
        topology = TridentTopology("{name}")
        words = step(topology.new_stream("words", FixedBatchSpout("word: string, n: bigint", 50, *ROWS)))
        words.group_by("word").persistent_aggregate(STATE, of, Sum(), "count", migrate=migrate).parallelism_hint(2)
        return topology

    old = declared(lambda words: words, "n", None)
    new = declared(lambda words: words.each("n", lambda n: Decimal(n) / 100, "euros: decimal(20,2)"), "euros", euros)
"""
STATES = {
    "Redis": 'RedisState.opaque("redis://{redis}/0")',
    "PostgreSQL": 'PostgresState.opaque("postgresql://trident@{postgres}/postgres", layout="binary")',
}


class World:
    """The folder of one topology."""

    def __init__(self, folder: Path, state: str, seed: int) -> None:
        self.folder = folder
        name = f"migrated{random.Random().getrandbits(40):x}"
        text = textwrap.dedent(MODULE).format(seed=seed, name=name, state=state)
        (folder / "words.py").write_text(text, encoding="utf-8")
        self.names: dict[str, Any] = {}
        exec(text, self.names)

    def process(self, what: str, point: int = 0) -> subprocess.CompletedProcess[str]:
        words = ("-m", "tests.crash.mover", what, str(point))
        done = run_python(*words, cwd=self.folder, variables=environment(), timeout_s=90)
        assert done.returncode in (0, -signal.SIGKILL if point else 0), done.stderr
        return done

    def is_exact(self) -> int:
        """Compare what a reader sees with the sums of all committed batches; return the last of them."""
        with open_state(self.names["new"], "count", log_dir=str(self.folder / "log")) as state:
            sums: Counter[str] = Counter()
            for word, n in self.names["ROWS"][: 50 * state.txid]:
                sums[word] += n
            rows = sorted(state.get_tuples())
            assert rows == sorted((word, Decimal(n) / 100) for word, n in sums.items())
            assert all(type(value) is Decimal for _, value in rows)
            return state.txid


@pytest.fixture
def addresses(redis_server: Server, postgres_server: Server) -> dict[str, str]:
    return {"redis": redis_server.address, "postgres": postgres_server.address}


def is_migrated_exactly(world: World, draw: random.Random, lives: int) -> None:
    """A driver of the old type dies in a commit; then drivers of the new one and passes, in any order, die too."""
    world.process("run", draw.randint(5, 12))
    world.process("run new", draw.randint(1, 8))
    world.is_exact()
    for _ in range(lives):
        what = draw.choice(["run new", "migrate", "migrate"])
        world.process(what, draw.randint(1, 10 if what == "run new" else 24))
        world.is_exact()
    done = world.process("migrate")
    assert "none of a former type is left" in done.stdout
    world.is_exact()
    world.process("run new")
    assert world.is_exact() == 8
    assert world.process("migrate").stdout == "count: 0 values migrated; none of a former type is left\n"


@pytest.mark.long
def test_values_are_migrated_exactly_wherever_it_is_killed(tmp_path: Path, addresses: dict[str, str]) -> None:
    is_migrated_exactly(World(tmp_path, STATES["Redis"].format_map(addresses), 1), random.Random(1), 1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 22))
@pytest.mark.parametrize("store", STATES)
def test_values_are_migrated_exactly_in_any_order_of_kills(
    tmp_path: Path, addresses: dict[str, str], store: str, seed: int
) -> None:
    is_migrated_exactly(World(tmp_path, STATES[store].format_map(addresses), seed), random.Random(seed), 4)
