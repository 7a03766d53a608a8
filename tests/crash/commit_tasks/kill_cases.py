"""Makes the cases of the campaign: faults × stores × pairings, each on one job a batch or two, in turn."""

from __future__ import annotations

import random
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.crash.case import EXACT, Pairing
from tests.crash.commit_tasks.task_case import TaskCase
from tests.crash.commit_tasks.task_faults import POINTS, Fault

__all__ = ["CHANGING", "RULES", "Cases"]

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
        """Those that run."""
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
