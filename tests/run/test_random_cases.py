"""Random topologies over random options give what a plain fold over their rows gives, and all readers of a state agree.

A case that fails is shrunk and printed as it would be written: `check(Case(...), stores)` runs it again. The numbers of cases
and their seed are said at the end of the run; `RANDOM_TOPOLOGIES_SEED` sets it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.harness.servers import Server
from tests.run import random_oracle
from tests.run.random_cases import KEYS, TAPS, Case, Life, cases
from tests.run.random_oracle import may_conflict
from tests.run.random_runs import Stores, check, check_group
from trident.errors import TridentError
from trident.plan import planner
from trident.read import state_partitions
from trident.state.encoding import equal_keys
from trident.state.encoding.equal_keys import canonical
from trident.steps import key_columns

SOAK_BLOCK = 500
_FIXED = 20
_SEED = int(os.environ.get("RANDOM_TOPOLOGIES_SEED", 0)) or random.SystemRandom().randrange(1, 1 << 32)
"""Of the soak; the default suite has a fixed one, so that it is not red by chance."""


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path / "states")


@pytest.fixture
def servers(stores: Stores, redis_server: Server, postgres_server: Server, memcached_server: Server) -> Stores:
    """Those and the servers that start at once."""
    stores.redis, stores.postgres, stores.memcached = redis_server.port, postgres_server.port, memcached_server.port
    return stores


@pytest.fixture
def counted(record_property: Callable[[str, object], None]) -> Callable[[int, int], None]:
    """Count what a test runs; tests/conftest.py says the count at the end."""
    return lambda count, of_seed: record_property("random topologies", [count, of_seed])


def run(
    strategy: st.SearchStrategy[Case], count: int, of_seed: int, stores: Stores, phases: Sequence[Phase] = tuple(Phase)
) -> int:
    """Run random cases; the first that fails is shrunk. Returns how many were run."""
    ran = 0

    @seed(of_seed)
    @settings(max_examples=count, database=None, phases=phases, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def one(case: Case) -> None:
        nonlocal ran
        ran += 1
        check(case, stores)

    one()
    return ran


def drawn(strategy: st.SearchStrategy[Case], count: int, of_seed: int) -> list[Case]:
    """Return about so many random cases."""
    found: list[Case] = []

    @seed(of_seed)
    @settings(max_examples=5 * count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategy)
    def one(case: Case) -> None:
        found.append(case)

    one()
    return found[-1 : -5 * count : -5]  # the first ones are the plainest, and neighbours are much alike


def beside(chosen: list[Case]) -> list[Case]:
    """Return six of them that do not end the topology, which is that of all."""
    return [case for case in chosen if not may_conflict(case)][:6]


COUNTS = {"memory": 70, "apart": 60, "delta": 12, "delta beyond memory": 6}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)  # on a busy machine
@pytest.mark.parametrize(("kept_in", "count"), COUNTS.items())
def test_a_random_topology_gives_what_a_fold_gives(kept_in: str, count: int, stores: Stores, counted: Any) -> None:
    counted(run(cases((kept_in,)), count, _FIXED, stores), _FIXED)


@pytest.mark.long
@pytest.mark.parametrize(("kept_in", "count"), [("redis", 10), ("memcached", 10), ("postgres", 6)])
def test_a_random_topology_over_a_server_gives_what_a_fold_gives(
    kept_in: str, count: int, servers: Stores, counted: Any
) -> None:
    counted(run(cases((kept_in,)), count, _FIXED, servers), _FIXED)


SPARK_LIVES = (
    Life(batches=2, engine="spark", placement="executors", pending=2, parallelism=2),
    Life(batches=1, engine="auto", placement="driver"),
    Life(batches=1, engine="spark", placement="executors"),
)


@pytest.mark.long
def test_random_topologies_beside_each_other_on_spark_give_what_a_fold_gives(
    servers: Stores, spark: Any, counted: Any
) -> None:
    servers.spark = spark
    chosen = beside(drawn(cases(("memory", "delta", "redis", "postgres"), SPARK_LIVES[:2]), 20, _FIXED))
    check_group(chosen, servers)
    counted(len(chosen), _FIXED)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_cases_of_every_run_have_all_options() -> None:
    chosen = drawn(cases(("memory", "redis")), 200, _FIXED)
    assert {type_ for case in chosen for type_ in case.key} >= set(KEYS)
    assert {tap for case in chosen for tap in case.taps} == set(TAPS)
    assert {life.hint for case in chosen for life in case.lives} == set(range(1, 9))
    assert {len(case.lives) for case in chosen} == {1, 2, 3}


def test_a_wrong_answer_names_the_case_as_it_is_written(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(batches=((("a", 1),), (("a", 2),)), lives=(Life(batches=2, hint=3),))
    monkeypatch.setitem(random_oracle._FOLDS, "sum", lambda before, values: 7)
    with pytest.raises(AssertionError, match="said 1, not 7") as raised:
        check(case, stores)
    assert raised.value.__notes__ == ["Case(batches=((('a', 1),), (('a', 2),)), lives=(Life(batches=2, hint=3),))"]
    assert eval(raised.value.__notes__[0]) == case


_FORMS = [(equal_keys, "canonical"), (key_columns, "canonical")]


def _without_nan(part: Any) -> Any:
    return part if part != part else canonical(part)


OLD_MISTAKES: dict[str, tuple[str, dict[tuple[ModuleType, str], Any]]] = {
    "partition_persist spreads tuples by all their fields": ("memory", {(planner, "kept_by"): lambda *_: 0}),
    "keys have no one form": ("apart", dict.fromkeys(_FORMS, lambda part: part)),
    "no NaN equals another": ("apart", dict.fromkeys(_FORMS, _without_nan)),
    "a total is read in the first partition": ("apart", {(state_partitions, "partition_of_total"): lambda count: 0}),
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mistake", OLD_MISTAKES)
def test_an_old_mistake_is_found_among_the_cases_of_every_run(
    mistake: str, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_in, wrong = OLD_MISTAKES[mistake]
    for (module, name), value in wrong.items():
        monkeypatch.setattr(module, name, value)
    with pytest.raises((AssertionError, TridentError)) as raised:
        run(cases((kept_in,)), COUNTS[kept_in], _FIXED, stores, phases=[Phase.generate])
    assert any(note.startswith("Case(") for note in raised.value.__notes__)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(160))
def test_many_random_topologies_in_memory_give_what_a_fold_gives(block: int, stores: Stores, counted: Any) -> None:
    counted(run(cases(("memory", "apart")), SOAK_BLOCK, _SEED + block, stores), _SEED)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(40))
def test_many_random_topologies_in_stores_give_what_a_fold_gives(
    block: int, servers: Stores, cassandra_server: Server, counted: Any
) -> None:
    servers.cassandra = cassandra_server.port
    durable = ("delta", "delta beyond memory", "redis", "postgres", "cassandra", "memcached")
    counted(run(cases(durable), SOAK_BLOCK, _SEED + block, servers), _SEED)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(50))
def test_many_random_topologies_on_spark_give_what_a_fold_gives(
    block: int, servers: Stores, cassandra_server: Server, spark: Any, counted: Any
) -> None:
    servers.spark, servers.cassandra = spark, cassandra_server.port
    durable = ("memory", "delta", "delta beyond memory", "redis", "postgres", "cassandra")
    lives = random.Random(_SEED + block).sample(SPARK_LIVES, 2)
    chosen = beside(drawn(cases(durable, tuple(lives)), 20, _SEED + block))
    check_group(chosen, servers)
    counted(len(chosen), _SEED)
