"""Whatever instant a driver dies at, the end is as if each committed batch had come once: every exact pairing."""

import random
from pathlib import Path

import pytest

from tests.crash.case import (
    BATCHES,
    EXACT,
    INEXACT,
    REPEATING_TRANSACTIONAL,
    STORM,
    STORM_REPEATED,
    TXID,
    Case,
    Pairing,
)
from tests.crash.driver_runs import DriverServer, Outcome, run_here, run_in_processes, run_killed_at_random
from tests.crash.fuse import POINTS
from tests.crash.matrix import DIES, PAIRINGS, delta_cases, in_turn, memory_cases, table
from trident.errors import InexactPairingError
from trident.log.log_reader import LogReader
from trident.run.running import start

pytestmark = pytest.mark.slow

BEFORE_COMMIT = {"P0", "P1", "P2"}


def check(outcome: Outcome, outcomes: list[Outcome]) -> None:
    outcomes.append(outcome)
    case = outcome.case
    assert not outcome.differences(), outcome.differences()
    assert not outcome.torn, outcome.torn
    if case.how == "fail" or case.point == "P3":  # the driver lives
        assert outcome.winners == 2, f"{case}: batch {TXID} was not tried again"
    elif case.point == "P12":
        assert outcome.crashed_after == [TXID]
    elif case.point == "P13":
        assert 0 < outcome.crashed_after[0] < BATCHES
    elif case.point in BEFORE_COMMIT:
        assert outcome.crashed_after[0] < TXID  # the batches before may be in work
    else:
        assert set(outcome.crashed_after) == {TXID - 1}, f"{case} crashed after {outcome.crashed_after}"


@pytest.mark.sample(1)
@pytest.mark.parametrize("pairing", EXACT, ids=str)
def test_no_death_pause_or_error_in_one_process_is_counted_twice_or_lost(
    pairing: Pairing, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    cases = in_turn(memory_cases(pairing))
    assert {case.point for case in cases} == set(POINTS) - {"P3"}
    for number, case in enumerate(cases):
        check(run_here(case, tmp_path / str(number)), outcomes)


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", in_turn(case for p in EXACT for case in delta_cases(p)), ids=str)
def test_no_killed_or_replaced_driver_is_counted_twice_or_lost(
    case: Case, tmp_path: Path, server: DriverServer, outcomes: list[Outcome]
) -> None:
    check(run_in_processes(case, tmp_path, server), outcomes)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("store", ["memory", "delta"])
@pytest.mark.parametrize("pairing", EXACT, ids=str)
def test_a_worker_killed_as_it_hands_over_is_counted_once(
    pairing: Pairing, store: str, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    case, marker = Case("P3", pairing, store, "kill", 3), tmp_path / "killed"
    graph = case.topology(tmp_path, worker_marker=str(marker)).graph()
    # One batch at a time: a job that several share is run again before any of them fails.
    with start(graph, case.config(tmp_path, engine="spark", parallelism=2, max_spout_pending=1)) as running:
        running.process_all_available()
        failures, last = running.status["failures"], running.status["lastFailure"]
    assert marker.exists()
    assert failures >= 1
    assert "Python worker exited unexpectedly" in str(last)
    check(Outcome(case).finish(tmp_path, LogReader(tmp_path / "log").refresh()), outcomes)


def test_a_state_without_attempts_is_exact_where_replays_are_identical(tmp_path: Path, outcomes: list[Outcome]) -> None:
    for point in DIES:
        check(run_here(Case(point, STORM_REPEATED, how="die"), tmp_path / point), outcomes)


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 40))])
@pytest.mark.parametrize("pairing", EXACT, ids=str)
def test_a_driver_killed_by_the_clock_loses_nothing(
    pairing: Pairing, seed: int, tmp_path: Path, server: DriverServer, outcomes: list[Outcome]
) -> None:
    case = Case("any", pairing, "delta", "kill", 1 + 2 * (seed % 2), seed)
    outcome = run_killed_at_random(case, tmp_path, server, random.Random(f"{pairing} {seed}"))
    outcomes.append(outcome)
    assert outcome.crashed_after
    assert not outcome.differences(), outcome.differences()
    assert not outcome.torn, outcome.torn


def test_a_pairing_that_is_not_exact_is_refused(tmp_path: Path) -> None:
    kinds = {INEXACT: "transactional", REPEATING_TRANSACTIONAL: "transactional", STORM: "opaque without attempts"}
    for pairing, kind in kinds.items():
        case = Case("P0", pairing)
        graph, config = case.topology(tmp_path).graph(), case.config(tmp_path, allow_inexact=False)
        with pytest.raises(
            InexactPairingError, match=f"has an opaque spout and feeds state 'weights', which is {kind}:"
        ):
            start(graph, config)


@pytest.mark.sample(1)
@pytest.mark.parametrize("pairing", [INEXACT, STORM], ids=str)
def test_a_rule_that_does_not_hold_goes_wrong_once_a_store_was_written(pairing: Pairing, tmp_path: Path) -> None:
    # With one batch in work and no cache each point is reached in the same way every time.
    exact = {point: run_here(Case(point, pairing, how="die"), tmp_path / point).is_exact for point in DIES}
    written = {"P7", "P8", "P9", "P10", "P11", "P14"}
    assert {point for point, right in exact.items() if not right} >= written
    assert all(exact[point] for point in ("P0", "P1", "P2", "P4", "P5", "P12"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("pairing", [INEXACT, STORM], ids=str)
def test_a_wrong_rule_goes_wrong_on_delta_too(pairing: Pairing, tmp_path: Path, server: DriverServer) -> None:
    outcome = run_in_processes(Case("P9", pairing, "delta"), tmp_path, server)
    assert outcome.differences()
    assert outcome.case.is_exact is False


def test_half_of_the_cases_have_every_point_both_ways() -> None:
    cases = in_turn(case for pairing in PAIRINGS for case in (*memory_cases(pairing), *delta_cases(pairing)))
    for store in ("memory", "delta"):
        for pending in (1, 3):
            assert {c.point for c in cases if (c.store, c.pending) == (store, pending)} == set(POINTS) - {"P3"}


def test_the_table_counts_what_ended_exact() -> None:
    right, wrong = Outcome(Case("P0", EXACT[0])), Outcome(Case("P0", INEXACT), {"weights": {("a",): 1}})
    assert table([right, right, wrong]).splitlines() == [
        "| point | transactional-transactional | changing-transactional |",
        "|---|---|---|",
        "| P0 before the definition | 2/2 | 0/1 |",
    ]
