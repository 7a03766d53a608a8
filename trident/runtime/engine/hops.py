"""Between two stages of a Spark job: which task an item goes to, and which run of a task it comes from.

Where an executor is lost Spark runs tasks again whose output was lost with it, and user code need not give the same rows
again. Tasks of the next stage that have ended keep what the first run gave: together with those that read the second one
they would lose rows and double others. So every task says which runs it read, and a batch whose tasks differ in that fails.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import NamedTuple

from trident.runtime.engine.routing import Frame
from trident.runtime.engine.worker import Program
from trident.runtime.steps.rows import Failure

__all__ = ["Cell", "Hop", "Item", "Sent", "Source", "cells_of", "digest_of", "hops_of", "is_mixed", "signed",
           "two_runs"]  # fmt: skip

Cell = tuple[str, int]
"""One partition of an exchange. A Spark stage has a task for each cell of its level."""

Item = bytes | Frame
"""What is sent between two stages: a frame, or an output that only passes through."""

Source = tuple[int, str]
"""A task of the stage before, and an id of this run of it."""


class Sent(NamedTuple):
    """An item as it travels. It is None in what a task sends to every task, so that each knows each run."""

    source: Source
    item: Item | None


@dataclass(frozen=True)
class Hop:
    """Where a stage sends to: the task of each cell of the next level, and the exchanges of the levels after that."""

    cells: dict[Cell, int]
    later: frozenset[str]


def cells_of(program: Program) -> list[list[Cell]]:
    """Return the cells of each level, in the order of its tasks."""
    return [
        [(entry, partition) for entry in level for partition in range(program.exchanges[entry].partitions or 1)]
        for level in program.levels
    ]


def hops_of(program: Program) -> list[Hop]:
    """Return the hop into each level."""
    levels = program.levels
    return [
        Hop(
            {cell: task for task, cell in enumerate(cells)},
            frozenset(entry for rest in levels[at + 1 :] for entry in rest),
        )
        for at, cells in enumerate(cells_of(program))
    ]


def signed(task: int, hop: Hop, items: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, Sent]]:
    """Send items to tasks of the next stage, and to all of these which run of this task it was."""
    source, tasks = (task, secrets.token_hex(8)), len(hop.cells)
    for to in range(tasks):
        yield to, Sent(source, None)
    for to, item in items:
        yield to % tasks, Sent(source, item)


def is_mixed(sources: Set[Source]) -> bool:
    """Whether two runs of one task are among them."""
    return len({task for task, _ in sources}) < len(sources)


def digest_of(sources: Set[Source]) -> str:
    """Return a digest, equal where all the sources are."""
    return hashlib.sha256(repr(sorted(sources)).encode()).hexdigest()


def two_runs(level: int) -> Failure:
    """Say that tasks of a level read different runs of a task."""
    cause = (
        f"stage {level} lost output of a task, most often with an executor, and Spark ran that task again after tasks of "
        f"stage {level + 1} had read what its first run gave"
    )
    return Failure("spark", None, cause)
