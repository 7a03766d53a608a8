"""The crash matrix: which cases there are, and `python -m tests.crash.matrix`, which runs them and prints a table.

The table has a row for each point and a column for each pairing; a cell counts the runs that ended exact.
"""

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from tests.crash.case import EXACT, INEXACT, REPEATING_TRANSACTIONAL, STORM, STORM_REPEATED, Case, Pairing
from tests.crash.driver_runs import DriverServer, Outcome, run_here, run_in_processes
from tests.crash.fuse import POINTS

PAIRINGS = [*EXACT, REPEATING_TRANSACTIONAL, STORM_REPEATED, INEXACT, STORM]
SPARK_POINT = "P3"
IN_A_FILE = {"P11", "P13"}
"""Points that only a log in files has."""

DIES = [point for point in POINTS if point not in (SPARK_POINT, "P15")]
PARKS = [point for point in POINTS if point not in (SPARK_POINT, "P14")]
FAILS = ["P2", "P4", "P5", "P6", "P7", "P8", "P9"]


def memory_cases(pairing: Pairing, seed: int = 0) -> Iterator[Case]:
    """All cases of a pairing that run in one process: deaths, pauses and errors; and deaths with the log in memory."""
    for pending in (1, 3):
        for how, points in {"die": DIES, "park": PARKS, "fail": FAILS}.items():
            yield from (Case(point, pairing, "memory", how, pending, seed) for point in points)
        yield from (Case(p, pairing, "memory", "die", pending, seed, True) for p in DIES if p not in IN_A_FILE)


def delta_cases(pairing: Pairing, seed: int = 0, pendings: Iterable[int] = (1, 3)) -> Iterator[Case]:
    """All cases of a pairing on Delta: kill -9 at each point but P15, where it is stopped; P3 needs Spark."""
    for pending in pendings:
        for point in POINTS:
            if point != SPARK_POINT:
                yield Case(point, pairing, "delta", "stop" if point == "P15" else "kill", pending, seed)


def in_turn(cases: Iterable[Case]) -> list[Case]:
    """Keep half of the cases: each point, store and way of dying, with 1 and 3 batches in work in turn."""
    groups: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.point, case.pairing, case.store, case.how, case.memory_log].append(case)
    return [group[(at + PAIRINGS.index(group[0].pairing)) % len(group)] for at, group in enumerate(groups.values())]


def run_all(cases: Iterable[Case], server: DriverServer) -> Iterator[Outcome]:
    """Run cases one after the other, each in a directory of its own."""
    for case in cases:
        with tempfile.TemporaryDirectory() as directory:
            here = case.store == "memory"
            yield run_here(case, Path(directory)) if here else run_in_processes(case, Path(directory), server)


def table(outcomes: Iterable[Outcome]) -> str:
    """Return a table of points by pairings as Markdown: exact runs of all runs."""
    cells: dict[tuple[str, Pairing], list[bool]] = defaultdict(list)
    for outcome in outcomes:
        cells[outcome.case.point, outcome.case.pairing].append(outcome.is_exact)
    pairings = [pairing for pairing in PAIRINGS if any(key[1] == pairing for key in cells)]
    lines = ["| point | " + " | ".join(map(str, pairings)) + " |", "|---|" + "---|" * len(pairings)]
    for point, meaning in POINTS.items():
        runs = [cells.get((point, pairing), []) for pairing in pairings]
        if any(runs):
            lines.append(f"| {point} {meaning} | " + " | ".join(f"{sum(r)}/{len(r)}" if r else "" for r in runs) + " |")
    return "\n".join(lines)


def main() -> None:
    with closing(DriverServer()) as server:
        cases = [case for pairing in PAIRINGS for case in (*memory_cases(pairing), *delta_cases(pairing))]
        outcomes = list(run_all(cases, server))
    wrong = [outcome for outcome in outcomes if outcome.case.is_exact and (outcome.torn or not outcome.is_exact)]
    exact = [outcome for outcome in outcomes if outcome.case.is_exact]
    lines = [table(outcomes), "", f"{len(exact)} runs of exact pairings, {len(exact) - len(wrong)} exact"]
    lines += [line for outcome in wrong for line in (*outcome.differences(), *outcome.torn)]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
