"""The job of several attempts: its tasks run the bodies of `tasks.py` for one attempt after the other.

Every item carries the place of its attempt in the job, so the rows of two attempts never meet, and each attempt has run
ids of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from trident.runtime.engine.stage_chain import Body
from trident.runtime.engine.tasks import Job, run_task
from trident.runtime.engine.worker import Part

__all__ = ["Read", "gather", "read", "run_only", "spread"]

Read = list[tuple[int, list[tuple[int, Part]]]]
"""What one task reads: for each attempt that it serves, by place, the parts with their numbers."""


def spread(batches: Sequence[Sequence[Part]], tasks: int) -> list[Read]:
    """Spread parts over tasks. An attempt without parts has a task too: an exchange gives results without rows."""
    width = min(max(tasks, *map(len, batches)), max(1, sum(map(len, batches))))
    shares: list[dict[int, list[tuple[int, Part]]]] = [{} for _ in range(width)]
    at = 0
    for place, parts in enumerate(batches):
        shares[at % width].setdefault(place, [])
        for index, part in enumerate(parts):
            shares[at % width].setdefault(place, []).append((index, part))
            at += 1
    return [list(share.items()) for share in shares]


def run_only(job: Job, task: int, parts: Iterator[tuple[int, Part]]) -> Iterator[bytes]:
    """Run parts in a job that has no other stage."""
    return run_task(job, parts)


def read(bodies: Sequence[Body], last: bool, task: int, reads: Iterator[Read]) -> Iterator[Any]:
    """Run the parts of a task, those of the first attempt first."""
    for place, parts in list(chain.from_iterable(reads)):
        yield from _tagged(place, bodies[place](task, iter(parts)), last)


def gather(bodies: Sequence[Body], last: bool, task: int, items: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    """Run a destination for each attempt, with the items that were sent to it for this attempt."""
    arrived: list[list[Any]] = [[] for _ in bodies]
    for place, item in items:
        arrived[place].append(item)
    for place, body in enumerate(bodies):
        yield from _tagged(place, body(task, iter(arrived[place])), last)


def _tagged(place: int, given: Iterator[Any], last: bool) -> Iterator[Any]:
    if last:
        return ((place, output) for output in given)
    return ((to, (place, item)) for to, item in given)
