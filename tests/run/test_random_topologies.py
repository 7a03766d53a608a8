"""Whatever a topology is made of, it gives what plain Python gives, on both engines.

On Spark many random topologies are parts of one, so that a batch of all of them is one job.
"""

from pathlib import Path
from typing import Any

import pytest
import redis

from states.redis import RedisState
from tests.harness.servers import Server
from tests.run.random_topologies import STEPS, Random, check, check_in_executors, with_states
from trident import TridentTopology


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_a_random_topology_gives_what_plain_python_gives(first: int) -> None:
    for seed in range(first, first + 20):
        check([seed], "in_process")


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", range(0, 64, 16))
def test_random_topologies_give_the_same_beside_each_other(first: int, engine: str) -> None:
    assert sum(case.compare() for case in check(range(first, first + 16), engine)) > 150


def in_executors(seeds: list[int], redis_server: Server, log_dir: Path, pending: int) -> int:
    """Run random topologies whose states tasks of Spark commit; in the driver they give what plain Python gives as well."""
    url = f"redis://127.0.0.1:{redis_server.port}/0"
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
    return check_in_executors(seeds, lambda: RedisState.opaque(url), str(log_dir), pending)


@pytest.mark.long
@pytest.mark.parametrize(("first", "pending"), [(0, 1), (100, 2)])
def test_random_topologies_give_the_same_in_executors(
    first: int, pending: int, spark: Any, redis_server: Server, tmp_path: Path
) -> None:
    assert in_executors(with_states(first, 3), redis_server, tmp_path, pending) >= 3


def test_the_random_topologies_of_every_run_have_steps_of_every_kind() -> None:
    cases = [Random(TridentTopology("random"), seed) for seed in range(64)]
    assert {step for case in cases for step in case.steps} == set(STEPS)


def test_a_wrong_result_names_the_seed() -> None:
    (case,) = check([5], "in_process")
    case.streams[-1].batches[1].append(("more", 1))
    with pytest.raises(AssertionError, match=r"random topology of seed 5 \(steps \['.*, stream \d+, '.*', batch 2"):
        case.compare()


@pytest.mark.soak
@pytest.mark.parametrize("first", range(200, 3_200, 50))
def test_more_random_topologies_give_the_same_on_spark(first: int, spark: Any) -> None:
    assert sum(case.compare() for case in check(range(first, first + 50), "spark")) > 450


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1_000, 5_000, 100))
def test_more_topologies_are_the_same_in_executors(
    first: int, spark: Any, redis_server: Server, tmp_path: Path
) -> None:
    assert in_executors(with_states(first, 5), redis_server, tmp_path, 1 + first // 100 % 3) >= 5
