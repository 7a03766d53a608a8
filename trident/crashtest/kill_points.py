"""Where a job is killed: the moments of a batch, and the choice of as many points as are asked for."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice
from typing import Any


class KillMoment(StrEnum):
    """A bad moment for a kill.

    ``after`` comes first in any choice: what the function wrote is there, and Spark does not know it.
    """

    after = "after"
    line = "line"
    time = "time"
    before = "before"
    committed = "committed"
    uncommitted = "uncommitted"
    older = "older"


USUAL = tuple(moment for moment in KillMoment if moment is not KillMoment.older)
"""What a crash can bring about; a checkpoint is older only if it was restored from a copy."""


@dataclass(frozen=True)
class FunctionCall:
    """What an undisturbed call of the job's function was.

    `query`, `batch`: which query of the job, in the order of their calls of `foreachBatch`, and Spark's number of the batch.
    `seconds`: how long it took.
    `lines`: the lines of the job's own code that it ran, in order, as `job.py:14`.
    `name`: the name of the function.
    """

    query: int
    batch: int
    seconds: float
    lines: tuple[str, ...] = ()
    name: str = "function"


@dataclass(frozen=True)
class KillPoint:
    """One point: the moment, and where it is in which call.

    `line`: before which line that the call runs, counted from 0; None: at no line.
    `after_s`, `of_s`: after so many seconds of a call that takes `of_s`.
    """

    moment: KillMoment
    query: int
    batch: int
    line: int | None = None
    after_s: float | None = None
    of_s: float | None = None

    def asked(self, copy_to: str) -> dict[str, Any]:
        """Return it as the job is told; an older checkpoint is what `copy_to` gets one batch earlier."""
        copy_batch = self.batch - 1 if self.moment is KillMoment.older else None
        return {**dataclasses.asdict(self), "copy_to": copy_to, "copy_batch": copy_batch}


def choose(calls: Sequence[FunctionCall], kills: int, moments: Sequence[KillMoment], seed: int) -> list[KillPoint]:
    """Choose points: the moments in turn, each in a batch, at a line and at a time by chance.

    No point, and no line, comes twice, as long as there are others.

    `calls`: the calls of the undisturbed run.
    `kills`: how many points; fewer only if no call has one of the moments.
    """
    chance = random.Random(seed)
    points: list[KillPoint] = []
    lines: set[str] = set()
    for moment in islice(cycle(moment for moment in KillMoment if moment in moments), kills):
        found = [point for _ in range(20) if (point := _point(moment, calls, chance)) is not None]
        fresh = [point for point in found if point not in points]
        other_line = [point for point in fresh if _line(point, calls) not in lines]
        points += (other_line or fresh or found)[:1]
        lines.update(filter(None, [_line(point, calls) for point in points[-1:]]))
    return points


def _line(point: KillPoint, calls: Sequence[FunctionCall]) -> str | None:
    """Return the line that a point is before, None if it is at no line."""
    lines = next(call.lines for call in calls if (call.query, call.batch) == (point.query, point.batch))
    return None if point.line is None else lines[point.line]


def _point(moment: KillMoment, calls: Sequence[FunctionCall], chance: random.Random) -> KillPoint | None:
    call = chance.choice(calls)
    if moment is KillMoment.older:  # a copy of its checkpoint is made in the batch before
        later = [each for each in calls if any((each.query, each.batch - 1) == (one.query, one.batch) for one in calls)]
        return KillPoint(moment, (one := chance.choice(later)).query, one.batch) if later else None
    if moment is KillMoment.line and len(set(call.lines)) > 1:
        # Lines that run often, in a loop, are as likely as those that run once.
        place = chance.choice(sorted({*call.lines[1:]}))
        at = chance.choice([number for number, each in enumerate(call.lines) if each == place and number])
        return KillPoint(moment, call.query, call.batch, line=at)
    if moment in (KillMoment.line, KillMoment.time):  # a function of a library has no lines of the job's
        after_s = round(chance.uniform(0.05, 0.95) * call.seconds, 3)
        return KillPoint(KillMoment.time, call.query, call.batch, after_s=after_s, of_s=round(call.seconds, 3))
    return KillPoint(moment, call.query, call.batch)
