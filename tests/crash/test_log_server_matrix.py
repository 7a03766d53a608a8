"""The crash matrix with the log on a real server: in ZooKeeper, in PostgreSQL, in an object store."""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.crash.case import BATCHES, EXACT, Case, Pairing
from tests.crash.driver_runs import DriverServer, Outcome, run_here, run_in_processes, run_killed_at_random
from tests.crash.fuse import POINTS
from tests.crash.matrix import delta_cases, memory_cases
from tests.crash.test_crash_matrix import check

pytestmark = pytest.mark.slow

OF_THE_LOG = ("P1", "P10", "P11", "P12", "P13", "P14", "P15")
"""The points at which a log on a server differs from one in files."""

SERVERS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "ZooKeeper": ("zookeeper_server", lambda server: f"zookeeper://{server.hosts}/crash"),
    "PostgreSQL": ("postgres_server", lambda server: f"postgresql://trident@{server.address}/postgres?topology="),
    "S3": ("s3_server", lambda server: "s3://logs/crash"),
}
"""The fixture of each server, and how the addresses of logs there begin."""


@pytest.fixture(params=SERVERS)
def log_at(request: pytest.FixtureRequest) -> str:
    fixture, address = SERVERS[request.param]
    return address(request.getfixturevalue(fixture))


@pytest.fixture
def server(log_at: str) -> Iterator[DriverServer]:
    with closing(DriverServer()) as server:
        yield server


def on_server(cases: Iterable[Case], log_at: str) -> list[Case]:
    return [replace(case, log_at=log_at) for case in cases if not case.memory_log]


def test_the_points_of_the_log_are_where_it_is_written() -> None:
    cases = on_server(delta_cases(EXACT[1]), "zookeeper://host/crash")
    assert {case.point for case in cases} == set(POINTS) - {"P3"} >= set(OF_THE_LOG)


@pytest.mark.long
@pytest.mark.parametrize("point", OF_THE_LOG)
def test_no_killed_or_replaced_driver_is_counted_twice_or_lost(
    point: str, log_at: str, tmp_path: Path, server: DriverServer, outcomes: list[Outcome]
) -> None:
    number = OF_THE_LOG.index(point)
    cases = on_server(delta_cases(EXACT[number % len(EXACT)], pendings=[1 + 2 * (number % 2)]), log_at)
    (case,) = (case for case in cases if case.point == point)
    check(run_in_processes(case, tmp_path, server), outcomes)


@pytest.mark.long
@pytest.mark.parametrize("how", ["die", "park"])
def test_no_death_or_pause_in_one_process_is_counted_twice_or_lost(
    how: str, log_at: str, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    cases = on_server(memory_cases(EXACT[1 + (how == "park")]), log_at)
    chosen = [case for case in cases if case.how == how and case.pending == 1 and case.point in OF_THE_LOG]
    assert len(chosen) >= len(OF_THE_LOG) - 1
    for number, case in enumerate(chosen):
        check(run_here(case, tmp_path / str(number)), outcomes)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(12))
def test_a_driver_killed_by_the_clock_loses_nothing(
    seed: int, log_at: str, tmp_path: Path, server: DriverServer, outcomes: list[Outcome]
) -> None:
    pairing = EXACT[seed % len(EXACT)]
    case = Case("any", pairing, "delta", "kill", 1 + 2 * (seed % 2), seed, log_at=log_at)
    outcome = run_killed_at_random(case, tmp_path, server, random.Random(f"{pairing} {seed}"))
    outcomes.append(outcome)
    assert outcome.crashed_after
    assert outcome.found == outcome.wanted, outcome.differences()
    assert sum(outcome.wanted["counts"].values()) == BATCHES * 10
    assert not outcome.torn, outcome.torn


IN_COMMIT = ("P4", "P5", "P7", "P8", "P9", "P10", "P11", "P12", "P15")


@pytest.fixture
def database(postgres_server: Any) -> str:
    return SERVERS["PostgreSQL"][1](postgres_server)


def in_database(store: str, pairing: Pairing, pendings: Iterable[int], log_at: str) -> list[Case]:
    return [replace(case, store=store) for case in on_server(delta_cases(pairing, 0, pendings), log_at)]


@pytest.mark.long
@pytest.mark.parametrize("point", IN_COMMIT)
@pytest.mark.parametrize("store", ["postgres", "postgres apart"])
def test_no_killed_or_replaced_driver_writes_a_state_without_its_record_or_twice(
    store: str, point: str, database: str, tmp_path: Path, drivers: DriverServer, outcomes: list[Outcome]
) -> None:
    number = IN_COMMIT.index(point)
    cases = in_database(store, EXACT[number % len(EXACT)], [1 + 2 * (number % 2)], database)
    (case,) = (case for case in cases if case.point == point)
    check(run_in_processes(case, tmp_path, drivers), outcomes)
