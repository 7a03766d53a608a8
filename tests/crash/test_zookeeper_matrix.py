"""The crash matrix with the log in a real ZooKeeper."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.case import BATCHES, EXACT, Case, Pairing
from tests.crash.driver_runs import DriverServer, Outcome, run_here, run_in_processes, run_killed_at_random
from tests.crash.fuse import POINTS
from tests.crash.matrix import delta_cases, memory_cases
from tests.crash.test_crash_matrix import check
from tests.harness.zookeeper_servers import ZooKeeperEnsemble

pytestmark = pytest.mark.slow

OF_THE_LOG = ("P1", "P10", "P11", "P12", "P13", "P14", "P15")
"""The points at which a log in ZooKeeper differs from one in files."""


def in_zookeeper(cases: Iterable[Case], zookeeper: ZooKeeperEnsemble) -> list[Case]:
    return [replace(case, zookeeper=zookeeper.hosts) for case in cases if not case.memory_log]


def test_the_points_of_the_log_are_where_it_is_written(zookeeper_server: ZooKeeperEnsemble) -> None:
    cases = in_zookeeper(delta_cases(EXACT[1]), zookeeper_server)
    assert {case.point for case in cases} == set(POINTS) - {"P3"} >= set(OF_THE_LOG)


@pytest.mark.sample(2)
@pytest.mark.parametrize("point", OF_THE_LOG)
def test_no_killed_or_replaced_driver_is_counted_twice_or_lost(
    point: str, zookeeper_server: ZooKeeperEnsemble, tmp_path: Path, server: DriverServer, outcomes: list[Outcome]
) -> None:
    number = OF_THE_LOG.index(point)
    cases = in_zookeeper(delta_cases(EXACT[number % len(EXACT)], pendings=[1 + 2 * (number % 2)]), zookeeper_server)
    (case,) = (case for case in cases if case.point == point)
    check(run_in_processes(case, tmp_path, server), outcomes)


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["die", "park"])
def test_no_death_or_pause_in_one_process_is_counted_twice_or_lost(
    how: str, zookeeper_server: ZooKeeperEnsemble, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    cases = in_zookeeper(memory_cases(EXACT[1 + (how == "park")]), zookeeper_server)
    chosen = [case for case in cases if case.how == how and case.pending == 1 and case.point in OF_THE_LOG]
    assert len(chosen) >= len(OF_THE_LOG) - 1
    for number, case in enumerate(chosen):
        check(run_here(case, tmp_path / str(number)), outcomes)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("pairing", EXACT, ids=str)
def test_the_whole_matrix(
    pairing: Pairing,
    zookeeper_server: ZooKeeperEnsemble,
    tmp_path: Path,
    server: DriverServer,
    outcomes: list[Outcome],
) -> None:
    for number, case in enumerate(in_zookeeper([*memory_cases(pairing), *delta_cases(pairing)], zookeeper_server)):
        directory = tmp_path / str(number)
        directory.mkdir()
        run = run_here(case, directory) if case.store == "memory" else run_in_processes(case, directory, server)
        check(run, outcomes)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(12))
def test_a_driver_killed_by_the_clock_loses_nothing(
    seed: int, zookeeper_server: ZooKeeperEnsemble, tmp_path: Path, server: DriverServer, outcomes: list[Outcome]
) -> None:
    pairing = EXACT[seed % len(EXACT)]
    case = Case("any", pairing, "delta", "kill", 1 + 2 * (seed % 2), seed, zookeeper=zookeeper_server.hosts)
    outcome = run_killed_at_random(case, tmp_path, server, random.Random(f"{pairing} {seed}"))
    outcomes.append(outcome)
    assert outcome.crashed_after
    assert outcome.found == outcome.wanted, outcome.differences()
    assert sum(outcome.wanted["counts"].values()) == BATCHES * 10
    assert not outcome.torn, outcome.torn
