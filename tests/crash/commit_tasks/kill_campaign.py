"""The campaign: faults × stores × pairings. `python -m tests.crash.commit_tasks.kill_campaign --redis PORT …` runs it.

It prints a line for each run and, at the end, a table and the counts; the exit code is 1 if a run of a pairing that must be
exact was not, or if a run without E1 or E2 never goes wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from tests.crash.case import EXACT, Pairing
from tests.crash.commit_tasks.cluster_runs import SPARK, TaskOutcome, run_beside, run_case, run_doomed
from tests.crash.commit_tasks.task_case import STORES, TaskCase
from tests.crash.commit_tasks.task_faults import POINTS, Fault
from tests.harness.spark_cluster import start_spark_cluster
from trident.runtime.engine.session import spark_session, stop_session

__all__ = ["main"]

CHANGING = EXACT[3]
FAULTS = [
    *((point, how) for how in ("worker", "executor") for point in POINTS),
    ("before", "neighbour"), ("processed", "executor"), ("begun", "raise"), ("chunk", "pause"),
]  # fmt: skip
_TRIES = 4
DRIVER_POINTS = [*POINTS, "record"]
SPECULATION = {
    "spark.speculation": "TRUE",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.minTaskRuntime": "500ms",
}


class Cases:
    """Makes cases, each with a name and a folder of its own."""

    def __init__(self, work: Path, ports: dict[str, int], seed: int) -> None:
        self._work, self._ports, self._made, self.seed = work, ports, 0, seed
        self._rng = random.Random(seed)

    @property
    def stores(self) -> list[str]:
        """Those that run."""
        return list(self._ports)

    def of(
        self, store: str, pairing: Pairing, point: str, how: str, pending: int, *without: str, partitions: int = 2,
        state: str = "",
    ) -> TaskCase:  # fmt: skip
        """Make a case; the state in which it happens is drawn, if it is not given."""
        self._made += 1
        name = f"kill{self.seed}x{self._made}x{uuid.uuid4().hex[:8]}"  # the stores are not empty
        drawn = self._rng.choice(["weights", "lots"] if pairing.state == "opaque" else ["weights"])
        fault = Fault(point, how, state or drawn, 2, str(self._work / name))
        return TaskCase(name, store, pairing, fault, self._ports, pending, self.seed + self._made, partitions, without)

    def on_the_cluster(self) -> Iterator[list[TaskCase]]:
        """Give all faults of workers and executors: those that may, in groups that run side by side."""
        for store in self.stores:
            for at, (point, how) in enumerate(FAULTS):
                cases = [
                    self.of(store, pairing, point, how, 3 if point == "processed" else 1 + 2 * ((at + number) % 2))
                    for number, pairing in enumerate(EXACT)
                ]
                yield from ([case] for case in cases) if how == "pause" else [cases]

    def of_drivers(self) -> Iterator[list[TaskCase]]:
        """Give the deaths of drivers, a list for each driver."""
        for store in self.stores:
            for number, pairing in enumerate(EXACT):
                yield [
                    self.of(store, pairing, point, "driver", 1 + 2 * ((at + number) % 2))
                    for at, point in enumerate(DRIVER_POINTS)
                ]

    def slow(self) -> Iterator[TaskCase]:
        """Give commits that are slower than Spark has patience with."""
        for store in self.stores:
            for number, pairing in enumerate(EXACT):
                yield self.of(store, pairing, "put", "slow", 1 + 2 * (number % 2))

    def repeated(self) -> Iterator[TaskCase]:
        """Give cases whose commit runs again with other rows, if what is killed has rows that it read."""
        for store in self.stores:
            for point in ("put", "committed"):
                yield self.of(store, CHANGING, point, "executor", 1, partitions=1, state="lots")

    def without_rule(self, store: str, rule: str) -> TaskCase:
        """Make a case that goes wrong without E1, or without E2, if the rows that Spark lost are in what is killed."""
        if rule == "E1":
            return self.of(store, CHANGING, "put", "executor", 1, rule, partitions=1, state="lots")
        return self.of(store, CHANGING, "processed", "executor", 3, rule)


def _few(cases: Cases) -> Iterator[TaskOutcome]:
    """Run the cases that tell most."""
    (store,) = cases.stores
    yield run_case(cases.of(store, CHANGING, "begun", "worker", 1))
    yield run_case(cases.of(store, CHANGING, "before", "neighbour", 1))
    yield from _until_wrong(cases, store, "E1")
    yield from run_doomed([cases.of(store, CHANGING, "record", "driver", 1)], "local[2]")


def _on_the_cluster(cases: Cases) -> Iterator[TaskOutcome]:
    groups = list(cases.on_the_cluster())
    random.Random(cases.seed).shuffle(groups)
    for group in groups:
        yield from run_beside(group)


def _of_drivers(cases: Cases) -> Iterator[TaskOutcome]:
    for group in cases.of_drivers():
        yield from run_doomed(group, f"local[{len(group) + 2}]")


def _without_rules(cases: Cases) -> Iterator[TaskOutcome]:
    for store in cases.stores:
        for rule in ("E1", "E2"):
            yield from _until_wrong(cases, store, rule)


def _until_wrong(cases: Cases, store: str, rule: str) -> Iterator[TaskOutcome]:
    for _ in range(_TRIES):
        outcome = run_case(cases.without_rule(store, rule))
        yield outcome
        if not outcome.is_exact:
            return


PARTS: dict[str, Callable[[Cases], Iterator[TaskOutcome]]] = {
    "few": _few,
    "cluster": _on_the_cluster,
    "drivers": _of_drivers,
    "rules": _without_rules,
    "repeated": lambda cases: map(run_case, cases.repeated()),
    "speculation": lambda cases: map(run_case, cases.slow()),
}


def table(outcomes: Sequence[TaskOutcome]) -> str:
    """Return exact runs of all runs, by fault, store and pairing, as Markdown."""
    columns = sorted({(o.case.store, str(o.case.pairing)) for o in outcomes})
    lines = [
        "| fault | " + " | ".join(" ".join(column) for column in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]

    def fault_of(outcome: TaskOutcome) -> str:
        rules = "".join(f" without {rule}" for rule in outcome.case.without)
        return f"{outcome.case.fault.how}@{outcome.case.fault.point}{rules}"

    for fault, group in groupby(sorted(outcomes, key=fault_of), fault_of):
        runs, exact = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for one in group:
            place = one.case.store, str(one.case.pairing)
            runs[place] += 1
            exact[place] += one.is_exact
        lines.append(f"| {fault} | " + " | ".join(f"{exact[c]}/{runs[c]}" if runs[c] else "" for c in columns) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a part of the campaign; see above."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", default="few", choices=PARTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--delta", type=int, help="0: Delta, which has no server")
    for store in ("redis", "cassandra", "postgres"):
        parser.add_argument(f"--{store}", type=int, help="the server's port")
    asked = parser.parse_args(argv)
    ports = {store: port for store in STORES if (port := getattr(asked, store)) is not None}
    outcomes: list[TaskOutcome] = []

    with tempfile.TemporaryDirectory() as folder, _spark(asked.part == "speculation", Path(folder)):
        for outcome in PARTS[asked.part](Cases(Path(folder), ports, asked.seed)):
            outcomes.append(outcome)
            sys.stdout.write(f"{outcome}\n")
            sys.stdout.flush()
    return _judge(outcomes)


@contextmanager
def _spark(speculates: bool, work: Path) -> Iterator[None]:
    """Start Spark; if it is to speculate, on two workers that have an address each."""
    if not speculates:
        spark = spark_session("kills", "local-cluster[2,1,1024]", SPARK)
        try:
            yield
        finally:
            stop_session(spark)
        return
    cluster = start_spark_cluster(work / "spark", apart=True)
    path = {"spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}
    try:
        spark = spark_session("kills", cluster.url, SPARK | SPECULATION | path)
        yield
        stop_session(spark)
    finally:
        cluster.stop()


def _judge(outcomes: Sequence[TaskOutcome]) -> int:
    must = [outcome for outcome in outcomes if not outcome.case.without]
    exact, happened = sum(o.is_exact for o in must), sum(o.happened for o in must)
    wrong = Counter(rule for o in outcomes if not o.is_exact for rule in o.case.without)
    tried = Counter(rule for o in outcomes for rule in o.case.without)
    sys.stdout.write(f"{table(outcomes)}\ncommit tasks: {len(must)} runs, {happened} with their fault, {exact} exact\n")
    for rule in tried:
        sys.stdout.write(f"without {rule}: {tried[rule]} runs, {wrong[rule]} wrong\n")
    sys.stdout.flush()
    return int(exact < len(must) or any(not wrong[rule] for rule in tried))


if __name__ == "__main__":
    sys.exit(main())
