"""The job of several attempts: its tasks run the bodies of `tasks.py` for one attempt after the other.

Every item carries the place of its attempt in the job, so the rows of two attempts never meet, and each attempt has run
ids of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from trident.runtime.engine.hops import destinations_of, hops_of
from trident.runtime.engine.tasks import Job, run_level_task, run_parts_task, run_task
from trident.runtime.engine.worker import Part, Program

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

__all__ = ["shared_rows"]

Body = Callable[[int, Iterator[Any]], Iterator[Any]]
"""What a task does for one attempt: takes the number of the task and the items of the attempt."""

Read = list[tuple[int, list[tuple[int, Part]]]]
"""What one task reads: for each attempt that it serves, by place, the parts with their numbers."""


def shared_rows(
    context: SparkContext,
    program: Program,
    jobs: Sequence[Job],
    parts: Sequence[Sequence[Part]],
    tasks: int,
    placed: Callable[[int, RDD[Any]], RDD[Any]],
) -> RDD[tuple[int, bytes]]:
    """Return what one job gives for several attempts: outputs, each with the place of its attempt.

    Parameters
    ----------
    jobs, parts
        What the tasks of each attempt know, and its parts; by place.
    tasks
        How many tasks read the parts; more, if an attempt has more parts.
    placed
        Requests the cores of a stage, by its number.
    """
    spread = _spread(parts, tasks)
    rows: RDD[Any] = placed(1, context.parallelize(spread, len(spread)))
    hops, destinations = hops_of(program), destinations_of(program)
    if not hops:
        return rows.mapPartitionsWithIndex(partial(_read, [partial(_run_task, job) for job in jobs], True))
    bodies: list[Body] = [partial(run_parts_task, job, hops[0]) for job in jobs]
    rows = rows.mapPartitionsWithIndex(partial(_read, bodies, False))
    for level, (here, after) in enumerate(zip(destinations, [*hops[1:], None], strict=True)):
        bodies = [partial(run_level_task, job, level + 1, here, after) for job in jobs]
        arrived = placed(level + 2, rows.partitionBy(len(here), int))
        rows = arrived.mapPartitionsWithIndex(partial(_gather, bodies, after is None))
    return rows


def _spread(batches: Sequence[Sequence[Part]], tasks: int) -> list[Read]:
    """Spread parts over tasks. An attempt without parts has a task too: an exchange gives results without rows."""
    width = min(max(tasks, *map(len, batches)), max(1, sum(map(len, batches))))
    spread: list[dict[int, list[tuple[int, Part]]]] = [{} for _ in range(width)]
    at = 0
    for place, parts in enumerate(batches):
        spread[at % width].setdefault(place, [])
        for index, part in enumerate(parts):
            spread[at % width].setdefault(place, []).append((index, part))
            at += 1
    return [list(read.items()) for read in spread]


def _run_task(job: Job, task: int, parts: Iterator[tuple[int, Part]]) -> Iterator[bytes]:
    return run_task(job, parts)


def _read(bodies: Sequence[Body], last: bool, task: int, reads: Iterator[Read]) -> Iterator[Any]:
    """Run the parts of a task, those of the first attempt first."""
    for place, parts in list(chain.from_iterable(reads)):
        yield from _tagged(place, bodies[place](task, iter(parts)), last)


def _gather(bodies: Sequence[Body], last: bool, task: int, items: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    """Run a destination for each attempt, with the items that were sent to it for this attempt."""
    arrived: list[list[tuple[int, Any]]] = [[] for _ in bodies]
    for to, (place, item) in items:
        arrived[place].append((to, item))
    for place, body in enumerate(bodies):
        yield from _tagged(place, body(task, iter(arrived[place])), last)


def _tagged(place: int, given: Iterator[Any], last: bool) -> Iterator[Any]:
    if last:
        return ((place, output) for output in given)
    return ((to, (place, item)) for to, item in given)
