"""The campaign: faults × stores × pairings. `python -m tests.crash.commit_tasks.kill_campaign --redis PORT …` runs it.

`--only worker@begun driver` restricts a part to some faults; `--pairings 2` runs only so many of each, other ones in turn.

It prints a line for each run and, at the end, a table and the counts; the exit code is 1 if a run of a pairing that must be
exact was not, or if a run without E1 or E2 never goes wrong.
"""

import argparse
import os
import random
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from tests.crash.case import EXACT, Pairing
from tests.crash.commit_tasks.cluster_runs import SPARK, TaskOutcome, run_beside, run_case, run_doomed
from tests.crash.commit_tasks.task_case import STORES, TaskCase
from tests.crash.commit_tasks.task_seams import POINTS, Fault
from tests.harness.spark_cluster import start_spark_cluster
from trident.spark.session import spark_session, stop_session

CHANGING = EXACT[3]
FAULTS = [
    *((point, how) for how in ("worker", "executor") for point in POINTS),
    ("before", "neighbour"), ("processed", "executor"), ("begun", "raise"), ("chunk", "pause"),
]  # fmt: skip
RULES = [("E1", "put", "executor"), ("E2", "processed", "executor"), ("E2", "before", "neighbour")]
DRIVER_POINTS = [*POINTS, "record"]


class Cases:
    """Makes cases, each with a name and a folder of its own."""

    def __init__(
        self, work: Path, ports: dict[str, int], seed: int, only: Collection[str], pairings: int, at_once: int
    ) -> None:
        self._work, self._ports, self._made, self.seed = work, ports, 0, seed
        self.at_once, self.workers = at_once, "jobs"
        self._only, self._pairings, self._turn = only, pairings, seed * pairings
        self._rng = random.Random(seed)

    @property
    def stores(self) -> list[str]:
        return list(self._ports)

    @property
    def rules(self) -> list[tuple[str, str, str]]:
        """Those that are switched off, one at a time, and the faults that they are for."""
        return [of for of in RULES if not self._only or of[0] in self._only]

    def of(
        self, store: str, pairing: Pairing, point: str, how: str, pending: int, *without: str, partitions: int = 2,
        state: str = "",
    ) -> TaskCase:  # fmt: skip
        """Make a case; the state in which it happens is drawn, if it is not given."""
        self._made += 1
        name = f"kill{self.seed}x{self._made}x{uuid.uuid4().hex[:8]}"  # the stores are not empty
        drawn = self._rng.choice(["weights", "lots"] if pairing.state == "opaque" else ["weights"])
        fault = Fault(point, how, state or drawn, 2, str(self._work / name))
        return TaskCase(
            name, store, pairing, fault, self._ports, pending, self.seed + self._made, partitions, without, self.workers
        )  # fmt: skip

    def _asked(self, point: str, how: str) -> bool:
        return not self._only or how in self._only or f"{how}@{point}" in self._only

    def _next_pairings(self) -> list[tuple[int, Pairing]]:
        """Give the pairings whose turn it is; a number that changes with each round says whether one job or two are first."""
        first, self._turn = self._turn, self._turn + self._pairings
        return [(at + at // len(EXACT), EXACT[at % len(EXACT)]) for at in range(first, self._turn)]

    def on_the_cluster(self) -> Iterator[TaskCase]:
        """Give all faults of workers and executors."""
        for store in self.stores:
            for at, (point, how) in enumerate(FAULTS):
                if self._asked(point, how):
                    for number, pairing in self._next_pairings():
                        pending = 3 if point == "processed" else 1 + 2 * ((at + number) % 2)
                        yield self.of(store, pairing, point, how, pending)

    def of_drivers(self) -> Iterator[list[TaskCase]]:
        """Give the deaths of drivers, a list for each driver."""
        for store in self.stores:
            for number, pairing in self._next_pairings():
                yield [
                    self.of(store, pairing, point, "driver", 1 + 2 * ((at + number) % 2))
                    for at, point in enumerate(
                        [*DRIVER_POINTS, *(["publish", "published"] if store == "delta" else [])]
                    )
                    if self._asked(point, "driver")
                ]

    def slow(self) -> Iterator[TaskCase]:
        """Give commits that are slower than Spark has patience with."""
        for store in self.stores:
            for number, pairing in self._next_pairings():
                yield self.of(store, pairing, "put", "slow", 1 + 2 * (number % 2))

    def repeated(self) -> Iterator[TaskCase]:
        """Give cases whose commit runs again with other rows, if what is killed has rows that it read."""
        for store in self.stores:
            for point in ("put", "committed"):
                yield self.of(store, CHANGING, point, "executor", 1, partitions=1, state="lots")

    def without_rule(self, store: str, rule: str, point: str, how: str) -> TaskCase:
        """Make a case that goes wrong without E1, or without E2, if the rows that Spark lost are in what is killed."""
        if point == "put" and store == "postgres":
            point = "committed"  # before that it has got nothing
        pending, partitions = 3 if point == "processed" else 1, 1 if rule == "E1" else 2
        return self.of(store, CHANGING, point, how, pending, rule, partitions=partitions, state="lots")


_TRIES = 20  # about half go wrong: in the others Spark loses more with the executor, and the batch fails all the same
SPECULATION = {
    "spark.speculation": "TRUE",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.minTaskRuntime": "500ms",
}


def _few(cases: Cases) -> Iterator[TaskOutcome]:
    (store,) = cases.stores
    yield run_case(cases.of(store, CHANGING, "begun", "worker", 1))
    yield run_case(cases.of(store, CHANGING, "before", "neighbour", 1))
    yield from _until_wrong(cases, *RULES[0])
    yield from run_doomed([cases.of(store, CHANGING, "record", "driver", 1)], "local[2]")


def _on_the_cluster(cases: Cases) -> Iterator[TaskOutcome]:
    drawn = list(cases.on_the_cluster())
    random.Random(cases.seed).shuffle(drawn)
    alone = [case for case in drawn if case.fault.how == "pause"]  # others would wait for a worker that is stopped
    yield from run_beside([case for case in drawn if case.fault.how != "pause"], cases.at_once)
    yield from map(run_case, alone)


def _resident(cases: Cases) -> Iterator[TaskOutcome]:
    """Run the faults of workers, executors and drivers where batches are messages to resident workers."""
    cases.workers = "resident"
    yield from map(run_case, cases.on_the_cluster())
    for group in cases.of_drivers():
        for case in group:
            yield from run_doomed([case], "local[2]")


def _of_drivers(cases: Cases) -> Iterator[TaskOutcome]:
    for group in cases.of_drivers():
        yield from run_doomed(group, f"local[{len(group) + 2}]")


def _without_rules(cases: Cases) -> Iterator[TaskOutcome]:
    for rule in cases.rules:
        yield from _until_wrong(cases, *rule)


def _until_wrong(cases: Cases, rule: str, point: str, how: str) -> Iterator[TaskOutcome]:
    stores = cases.stores
    for _ in range(_TRIES):
        exact = []
        for outcome in run_beside([cases.without_rule(store, rule, point, how) for store in stores], len(stores)):
            yield outcome
            exact += [outcome.case.store] * outcome.is_exact
        stores = exact
        if not stores:
            return


PARTS: dict[str, Callable[[Cases], Iterator[TaskOutcome]]] = {
    "few": _few,
    "cluster": _on_the_cluster,
    "drivers": _of_drivers,
    "resident": _resident,
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
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", default="few", choices=PARTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="how@point, how, or the name of a rule")
    parser.add_argument("--pairings", type=int, default=len(EXACT), help="how many of each fault and store")
    parser.add_argument("--at-once", type=int, default=8, help="how many runs, side by side")
    parser.add_argument("--executors", type=int, default=2)
    parser.add_argument(
        "--standalone", action="store_true", help="on a cluster of processes that Spark has started before"
    )
    parser.add_argument("--delta", type=int, help="0: Delta, which has no server")
    for store in ("redis", "cassandra", "postgres"):
        parser.add_argument(f"--{store}", type=int, help="the server's port")
    asked = parser.parse_args(argv)
    ports = {store: port for store in STORES if (port := getattr(asked, store)) is not None}
    outcomes: list[TaskOutcome] = []

    with tempfile.TemporaryDirectory() as folder, _spark(Path(folder), asked):
        cases = Cases(Path(folder), ports, asked.seed, asked.only, asked.pairings, asked.at_once)
        for outcome in PARTS[asked.part](cases):
            outcomes.append(outcome)
            sys.stdout.write(f"{outcome}\n")
            sys.stdout.flush()
    return _judge(outcomes)


@contextmanager
def _spark(work: Path, asked: argparse.Namespace) -> Iterator[None]:
    """Start Spark; if it is to speculate, on two workers that have an address each."""
    speculates = asked.part == "speculation"
    if not asked.standalone and not speculates:
        spark = spark_session("kills", f"local-cluster[{asked.executors},1,1024]", SPARK)
        try:
            yield
        finally:
            stop_session(spark)
        return
    cluster = start_spark_cluster(work / "spark", workers=asked.executors, apart=True)
    path = {"spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}
    try:
        spark = spark_session("kills", cluster.url, SPARK | path | (SPECULATION if speculates else {}))
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
