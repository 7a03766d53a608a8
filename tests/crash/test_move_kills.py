"""`trident state move` and `migrate`, killed at any point and typed again: the same rows, each changed once."""

import random
import re
import signal
import subprocess
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from tests.harness.commands import environment
from tests.harness.forked import run_python
from tests.harness.servers import Server, start_postgres, start_redis
from trident import move_state, open_state
from trident.errors import BackendError, StateMovedError, StateReadError, StoreAwayError

pytestmark = [pytest.mark.slow, pytest.mark.server]

MODULE = """
    import random

    from spouts import FixedBatchSpout
    from states.cassandra import CassandraState
    from states.delta import DeltaState
    from states.postgres import PostgresState
    from states.redis import RedisState
    from trident import TridentTopology
    from trident.operations import Count

    draw = random.Random({seed})
    ROWS = [[f"w{{int(draw.expovariate(0.03))}}"] for _ in range(400)]

    def declared(state, partitions):
        topology = TridentTopology("{name}")
        words = topology.new_stream("words", FixedBatchSpout("word: string", 50, *ROWS))
        words.group_by("word").persistent_aggregate(state, Count(), "count").parallelism_hint(partitions)
        return topology

    old, new = declared({old}, {of}), declared({new}, {to})
"""
REDIS, POSTGRES = 'RedisState.opaque("redis://{redis}/0"{more})', 'PostgresState.opaque("{postgres}"{more})'
CASSANDRA = 'CassandraState.opaque(["127.0.0.1"], port={cassandra}, keyspace="moves", replication=1{more})'
DELTA = 'DeltaState.opaque("table"{more})'


class Pair(NamedTuple):
    """From where to where; `of` and `to` are the numbers of partitions."""

    old: str
    new: str
    of: int = 2
    to: int = 3


def place(text: str, more: str = "") -> str:
    return text.replace("{more}", more)


PAIRS = {
    "Redis, PostgreSQL": Pair(place(REDIS), place(POSTGRES)),
    "PostgreSQL, bytes to columns": Pair(
        place(POSTGRES, ', layout="binary"'), place(POSTGRES, ', table="{name}_columns"')
    ),
    "Redis, strings to fields": Pair(place(REDIS), place(REDIS, ', prefix="{name}-fields", layout="fields"'), 3, 2),
    "PostgreSQL, Delta": Pair(place(POSTGRES), place(DELTA), 2, 1),
    "Delta, Redis": Pair(place(DELTA), place(REDIS), 1, 2),
    "Cassandra, PostgreSQL": Pair(place(CASSANDRA), place(POSTGRES)),
    "Redis, Cassandra": Pair(place(REDIS), place(CASSANDRA)),
    "Cassandra, bytes to columns": Pair(
        place(CASSANDRA), place(CASSANDRA, ', layout="columns", table="{name}_columns"')
    ),
}


POINTS = 36
"""So many has the longest of these moves: the begin and the end of each sentinel's, each commit's and the record's writing."""


class World:
    """The folder of one topology, with its servers by name."""

    def __init__(self, folder: Path, pair: Pair, seed: int, address: Callable[[str], str]) -> None:
        self.folder, name = folder, f"moved{random.Random().getrandbits(40):x}"
        fields = {
            "redis": address("redis"),
            "postgres": f"postgresql://trident@{address('postgres')}/postgres",
            "cassandra": address("cassandra") if "Cassandra" in pair.old + pair.new else "",
            "name": name,
        }
        old, new = (text.format_map(fields) for text in (pair.old, pair.new))
        text = textwrap.dedent(MODULE).format(seed=seed, name=name, old=old, new=new, of=pair.of, to=pair.to)
        (folder / "words.py").write_text(text, encoding="utf-8")
        self._rows = [row[0] for row in self._module().ROWS]

    def _module(self) -> Any:
        names: dict[str, Any] = {}
        exec((self.folder / "words.py").read_text("utf-8"), names)
        return type("Words", (), names)

    def process(self, what: str, point: int = 0, signum: int = signal.SIGKILL) -> subprocess.CompletedProcess[str]:
        words = ("-m", "tests.crash.mover", what, str(point), str(int(signum)))
        return run_python(*words, cwd=self.folder, variables=environment(), timeout_s=90)

    def rows(self, which: str) -> tuple[int, list[Any]]:
        """Return the last committed batch, and the rows as a reader sees them."""
        with open_state(getattr(self._module(), which), "count", log_dir=str(self.folder / "log")) as state:
            return state.txid, sorted(state.get_tuples())

    def counts(self, batches: int) -> list[Any]:
        return sorted(Counter(self._rows[: 50 * batches]).items())

    def move(self, **more: Any) -> Any:
        module = self._module()
        return move_state(module.old, "count", module.new, log_dir=str(self.folder / "log"), **more)

    def start(self, which: str) -> Any:
        return getattr(self._module(), which).start(engine="in_process", log_dir=str(self.folder / "log"))


Make = Callable[..., World]


@pytest.fixture
def world(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    redis_server: Server,
    postgres_server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> Make:
    def made(pair: str, seed: int = 1, **servers: Server) -> World:
        folder = tmp_path / str(seed)
        folder.mkdir()
        monkeypatch.chdir(folder)

        def address(store: str) -> str:
            server = servers.get(store) or request.getfixturevalue(f"{store}_server")
            return str(server.port if store == "cassandra" else server.address)

        return World(folder, PAIRS[pair], seed, address)

    return made


def is_moved_exactly(world: World, failed_at: int, points: Iterable[int]) -> int:
    """A driver dies in the middle of a commit, then the move dies at each point; all goes on, as a reader and a driver see.

    Returns the first point that the move did not reach.
    """
    assert world.process("run", failed_at).returncode == -signal.SIGKILL
    before = world.rows("old")
    assert 0 < before[0] < 8
    assert before[1] == world.counts(before[0])
    point = 0
    for point in points:
        done = world.process("move", point)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = world.process("move")  # or once more
    assert done.returncode == 0, done.stderr
    assert world.rows("new") == before
    with pytest.raises(StateReadError, match="the state was moved to words.py:new"):
        world.rows("old")
    with pytest.raises(StateMovedError, match="was moved to words.py:new by `trident state move`"):
        world.start("old")
    with world.start("new") as running:
        running.process_all_available()
    assert world.rows("new") == (8, world.counts(8))
    return point


@pytest.mark.long
@pytest.mark.parametrize(
    "pair",
    [
        "Redis, PostgreSQL",
        pytest.param("PostgreSQL, bytes to columns", marks=pytest.mark.long),
        pytest.param("Cassandra, bytes to columns", marks=pytest.mark.long),
    ],
)
def test_a_move_that_is_killed_again_and_again_is_exact(world: Make, pair: str) -> None:
    is_moved_exactly(world(pair), 15, [9, 17])


@pytest.mark.soak
@pytest.mark.parametrize("point", range(1, POINTS + 1))
@pytest.mark.parametrize("pair", PAIRS)
def test_a_move_that_is_killed_at_a_point_is_exact(world: Make, pair: str, point: int) -> None:
    is_moved_exactly(world(pair, point), 7 + point % 9, [point])


@pytest.mark.soak
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("seed", range(4))
def test_a_move_that_is_killed_at_point_after_point_is_exact(world: Make, pair: str, seed: int) -> None:
    draw = random.Random(seed)
    is_moved_exactly(world(pair, seed), draw.randint(7, 16), (draw.randint(1, 24) for _ in range(8)))


@pytest.mark.long
def test_ctrl_c_ends_a_move_with_what_to_do(world: Make) -> None:
    words = world("Redis, PostgreSQL")
    assert words.process("run").returncode == 0
    done = words.process("move", 14, signal.SIGINT)
    assert done.returncode == 130
    assert done.stderr.splitlines() == ["count: interrupted; the same command goes on where it was"]
    done = words.process("move")
    assert re.fullmatch(
        r"count: moved to words.py:new after batch 8: \d+ rows \(\d+ were there already\), all compared\n", done.stdout
    )
    assert (
        words.process("move").stdout == "count: is in words.py:new already, after batch 8; its former place is marked\n"
    )


def test_a_move_that_is_done_is_so_though_a_driver_has_died_in_a_commit_since(world: Make) -> None:
    words = world("Redis, PostgreSQL")
    assert words.process("run", 15).returncode == -signal.SIGKILL
    assert words.process("move").returncode == 0
    assert words.process("run new", 5).returncode == -signal.SIGKILL
    done = words.process("move")
    assert (done.stderr, done.stdout.partition(",")[0]) == ("", "count: is in words.py:new already")
    assert words.process("run new").returncode == 0
    assert words.rows("new") == (8, words.counts(8))


def test_a_store_that_is_full_is_told_and_the_move_goes_on_when_it_has_room(world: Make, tmp_path: Path) -> None:
    with start_redis(tmp_path, "--maxmemory", 1, "--maxmemory-policy", "noeviction") as full:
        words = world("Delta, Redis", redis=full)
        words.process("run")
        before = words.rows("old")
        with pytest.raises(BackendError, match="OOM"):
            words.move()
        assert words.rows("old") == before
        with redis.Redis(port=full.port) as client:
            client.config_set("maxmemory", 0)
        assert words.move().rows == len(before[1])
        assert words.rows("new") == before


@pytest.mark.long
def test_a_store_that_goes_away_is_told_and_the_move_goes_on_when_it_is_back(world: Make, tmp_path: Path) -> None:
    with start_postgres(tmp_path) as mortal:
        words = world("Redis, PostgreSQL", postgres=mortal)
        words.process("run")
        before = words.rows("old")
        with pytest.raises(StoreAwayError, match="PostgreSQL"):
            words.move(progress=lambda what, *_: mortal.kill() if what == "compare" and mortal.runs else None)
        assert words.rows("old") == before
        mortal.start()
        assert words.move().written == 0
        assert words.rows("new") == before


MIGRATED_MODULE = """
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


class MigratedWorld:
    """The folder of one topology."""

    def __init__(self, folder: Path, state: str, seed: int) -> None:
        self.folder = folder
        name = f"migrated{random.Random().getrandbits(40):x}"
        text = textwrap.dedent(MIGRATED_MODULE).format(seed=seed, name=name, state=state)
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


def is_migrated_exactly(world: MigratedWorld, draw: random.Random, lives: int) -> None:
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
    is_migrated_exactly(MigratedWorld(tmp_path, STATES["Redis"].format_map(addresses), 1), random.Random(1), 1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 22))
@pytest.mark.parametrize("store", STATES)
def test_values_are_migrated_in_any_order_of_kills(
    tmp_path: Path, addresses: dict[str, str], store: str, seed: int
) -> None:
    is_migrated_exactly(MigratedWorld(tmp_path, STATES[store].format_map(addresses), seed), random.Random(seed), 4)
