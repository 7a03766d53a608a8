"""Between two stages of a Spark job: which task an item goes to, and which run of a task it comes from.

If an executor is lost, Spark repeats the tasks whose output was lost with it, and user code may then give other rows.
Tasks of the next stage that have ended keep the rows of the first run; together with tasks that read the second run
they would lose rows and double others. So every task says which runs it read, and a batch fails if its tasks read
different ones.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import NamedTuple

from trident.runtime.engine.routing import Frame
from trident.runtime.engine.worker import Program
from trident.runtime.steps.failures import Failure

__all__ = ["Destination", "Hop", "Item", "Sent", "Source", "Stop", "destinations_of", "digest_of", "hops_of", "is_mixed",
           "signed", "two_runs"]  # fmt: skip

Destination = tuple[str, int]
"""An exchange and one of its partitions. A Spark stage has a task for each destination of its level."""


@dataclass(frozen=True)
class Stop:
    """What a task that failed sends to every task of the next stage, so that none goes on, let alone commits."""


Item = bytes | Frame | Stop
"""What is sent between two stages: a frame, or an output that is only passed on, or the order to stop."""

Source = tuple[int, str]
"""A task of the stage before, and the id of its run."""


class Sent(NamedTuple):
    """An item with its source. A task also sends None to every task, so that each task knows each run."""

    source: Source
    item: Item | None


@dataclass(frozen=True)
class Hop:
    """Where a stage sends to: the task of each destination of the next level, and the exchanges of the levels after that."""

    destinations: dict[Destination, int]
    later: frozenset[str]


def destinations_of(program: Program) -> list[list[Destination]]:
    """Return the destinations of each level, in the order of its tasks."""
    return [
        [(entry, partition) for entry in level for partition in range(program.exchanges[entry].partitions or 1)]
        for level in program.levels
    ]


def hops_of(program: Program) -> list[Hop]:
    """Return the hop into each level."""
    levels = program.levels
    return [
        Hop(
            {destination: task for task, destination in enumerate(destinations)},
            frozenset(entry for rest in levels[at + 1 :] for entry in rest),
        )
        for at, destinations in enumerate(destinations_of(program))
    ]


def signed(task: int, hop: Hop, items: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, Sent]]:
    """Send items to tasks of the next stage, and tell all of these the run of this task."""
    source, tasks = (task, secrets.token_hex(8)), len(hop.destinations)
    for to in range(tasks):
        yield to, Sent(source, None)
    for to, item in items:
        yield to % tasks, Sent(source, item)


def is_mixed(sources: Set[Source]) -> bool:
    """Whether two of them are runs of one task."""
    return len({task for task, _ in sources}) < len(sources)


def digest_of(sources: Set[Source]) -> str:
    """Return a digest that is equal if all sources are equal."""
    return hashlib.sha256(repr(sorted(sources)).encode()).hexdigest()


def two_runs(level: int) -> Failure:
    """Describe that tasks of a level read different runs of a task."""
    cause = (
        f"stage {level} lost output of a task, most often with an executor, and Spark ran that task again after tasks of "
        f"stage {level + 1} had read what its first run gave"
    )
    return Failure("spark", None, cause)
