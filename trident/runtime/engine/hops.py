"""Between the stages of a Spark job: which task an item goes to, and which run of a task it comes from.

Each stage writes one shuffle, and all stages number the destinations alike: the tasks of all levels, then the driver's
own. So rows for a later level, or for the driver, wait in the shuffle of the stage that made them until they are read.

If an executor is lost, Spark repeats the tasks whose output was lost with it, and user code may then give other rows.
Tasks that have ended keep the rows of the first run; together with tasks that read the second run they would lose rows
and double others. So every task says which runs it read, and a batch fails if its tasks read different ones.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from trident.runtime.engine.fragment_runs import PutBack
from trident.runtime.engine.routing import RowFrame
from trident.runtime.engine.worker import Destination, Order, Part, Program
from trident.runtime.steps.failures import Failure


@dataclass(frozen=True)
class Stop:
    """What a task that failed sends to every task that reads its stage, so that none goes on, let alone commits."""


Item = bytes | RowFrame | Stop
"""What a task sends: a frame, or an output for the driver, or the order to stop."""


class Source(NamedTuple):
    """A run of a task. The first stage has the number 0; after that the levels count from 1."""

    stage: int
    task: int
    run: str


class Sent(NamedTuple):
    """An item with its source. A task also sends None to every reader of its stage, so that each knows each run."""

    source: Source
    item: Item | None


@dataclass(frozen=True)
class Routes:
    """Where the items of a job go.

    `entries`: by exchange: the numbers of its partitions.
    `levels`: the numbers of the tasks of each level.
    `sources`: the stages that each level reads.
    `readers`: by stage: the numbers of the tasks that read it, in ranges. All of the next level do, and of later ones those
    that it has rows for. Each reader costs a stage as much as a small piece of rows, so there are no others.
    `driver`: the numbers that the driver reads, past all tasks; empty if no stage but the last has rows for it. What tasks tell
    the driver then goes along from stage to stage, because a task of its own would take longer than a few counts.
    """

    entries: Mapping[str, range]
    levels: tuple[range, ...]
    sources: tuple[tuple[int, ...], ...]
    readers: tuple[tuple[range, ...], ...]
    driver: range

    @property
    def count(self) -> int:
        """How many destinations there are."""
        return self.driver.stop

    def number_of(self, frame: RowFrame) -> int | None:
        """Return the number of the task that a frame goes to; None if it goes to the driver."""
        numbers = self.entries.get(frame.target)
        return None if numbers is None else numbers[frame.partition]

    def destination(self, stage: int, task: int) -> Destination:
        """Return what a task of a level serves."""
        number = self.levels[stage - 1][task]
        return next((entry, numbers.index(number)) for entry, numbers in self.entries.items() if number in numbers)

    def readers_of(self, stage: int) -> Iterator[int]:
        """Iterate over the numbers of the tasks that read what a stage sends."""
        return chain.from_iterable(self.readers[stage])

    def to_driver(self, stage: int, task: int) -> int:
        """Return the number to which a task sends what is for the driver; the last stage returns it."""
        if stage == len(self.levels):
            return 0
        numbers = self.driver or self.levels[stage]
        return numbers[task % len(numbers)]


def routes_of(program: Program, any_way: bool, apart: bool, width: int) -> Routes:
    """Return the routes of a job.

    Parameters
    ----------
    any_way
        Whether rows may take other ways than those of the plan: dead letters, to the driver or put back.
    apart
        Whether a later job commits, so that the driver must be told before the last stage.
    width
        How many numbers the driver has, if it gets rows.
    """
    entries, levels = _numbered(program)
    stages = [tuple(program.emitters), *program.levels]
    sends = [{sink.target for entry in stage for sink in program.fragments[entry].sinks} for stage in stages[:-1]]
    readers = [
        tuple(
            entries[entry]
            for ahead, level in enumerate(program.levels[stage:])
            for entry in level
            if not ahead or entry in targets or (any_way and not stage)
        )
        for stage, targets in enumerate(sends)
    ]
    sources = [
        tuple(stage for stage, ranges in enumerate(readers) if any(numbers[0] in level for numbers in ranges))
        for level in levels
    ]
    rows, tasks = any_way or any(targets - entries.keys() for targets in sends), sum(map(len, levels))
    driver = range(tasks, tasks + (width if rows else int(apart)))
    return Routes(entries, tuple(levels), tuple(sources), (*readers, ()), driver)


def _numbered(program: Program) -> tuple[dict[str, range], list[range]]:
    """Return the numbers of the partitions of each exchange, and those of each level."""
    entries: dict[str, range] = {}
    levels: list[range] = []
    number = 0
    for level in program.levels:
        first = number
        for entry in level:
            entries[entry] = range(number, number + (program.exchanges[entry].partitions or 1))
            number = entries[entry].stop
        levels.append(range(first, number))
    return entries, levels


def skips(parts: Sequence[Part], order: Order) -> bool:
    """Whether rows of these parts may take other ways than those of the plan."""
    return order.capture or any(isinstance(part, PutBack) for _, part in parts)


def signed(stage: int, task: int, routes: Routes, items: Iterable[tuple[int, Item]]) -> Iterator[tuple[int, Sent]]:
    """Send items, and tell all readers of the stage the run of this task."""
    source = Source(stage, task, secrets.token_hex(8))
    for to in routes.readers_of(stage):
        yield to, Sent(source, None)
    if routes.driver:
        yield routes.to_driver(stage, task), Sent(source, None)
    for to, item in items:
        yield to, Sent(source, item)


def is_mixed(sources: Set[Source]) -> bool:
    """Whether two of them are runs of one task."""
    return len({(stage, task) for stage, task, _ in sources}) < len(sources)


def digests_of(sources: Set[Source]) -> dict[int, str]:
    """Return by stage a digest that is equal if all its runs are equal."""
    runs: dict[int, list[Source]] = {}
    for source in sorted(sources):
        runs.setdefault(source.stage, []).append(source)
    return {stage: hashlib.sha256(repr([tuple(one) for one in of]).encode()).hexdigest() for stage, of in runs.items()}


def two_runs(stage: int) -> Failure:
    """Describe that different runs of a task of a stage were read."""
    cause = (
        f"stage {stage + 1} lost output of a task, most often with an executor, and Spark ran that task again after "
        "the output of its first run had been read"
    )
    return Failure("spark", None, cause)


def stopped_at(stage: int) -> Failure:
    """Describe that a task did not run because one that it reads had failed; that failure is the cause that is shown."""
    return Failure("spark", None, f"a task of stage {stage + 1} did not run, because a task before it had failed")
