"""The time of a batch, for windows by time. It is in the batch's definition, so a replay has the same time.

It is logged under the name `$time`, like the definition of a transactional spout: `{"now": ms}` before the batch is
processed, and with the commit `tuples_at` too, the time of the last batch that had tuples. It never goes back, but for a
batch whose definition says `begins_again`: with that all windows fire what they hold, and begin again at its time. A
window behind a window gets tuples although no spout has any: `levels` has the time of the last batch that may have brought
some.

Timers are due at times that only their state knows. With the commit `timers` is logged: before this time none is due. At that
time there is a batch, also without tuples, which finds out more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trident.coordination.records import TIME
from trident.graph import WindowNode
from trident.operations.timers import TimersConfig
from trident.planner import Plan
from trident.runtime.windows.grid import Grid

_AHEAD_MS, _TIMERS = 60_000, "timers"


class BatchTime:
    """Says which time a batch has, and whether a batch is due because of the time alone."""

    def __init__(self, *levels: Iterable[Grid | None]) -> None:
        self._levels = [tuple(grids) for grids in levels]  # None: a process, whose timers may fire in any batch

    @staticmethod
    def of(plan: Plan) -> BatchTime | None:
        """Return the time of a plan's batches; None if no window uses it."""
        windows = [node for node in plan.commits if isinstance(node, WindowNode) and node.config.by_batch_time]
        if not windows:
            return None
        behind: dict[str, int] = {}  # the number of windows by batch time before a node, on the longest path
        levels: list[list[Grid | None]] = []
        for node in plan.commits:  # each after all nodes that it gets tuples from
            level = behind.get(node.id, 0)
            if node in windows:
                levels.extend([] for _ in range(level + 1 - len(levels)))
                levels[level].append(None if isinstance(node.config, TimersConfig) else Grid.of(node.config))
                level += 1
            for sink in plan.fragments[node.id].sinks:
                behind[sink.target] = max(level, behind.get(sink.target, 0))
        return BatchTime(*levels)

    def define(
        self,
        clock_ms: int,
        logged: Mapping[str, Any] | None,
        previous: Mapping[str, Any] | None,
        has_tuples: bool,
        is_begun: bool = False,
        may_begin_again: bool = False,
    ) -> dict[str, Any] | None:
        """Return the time of the next batch; None if it has no tuples, has not begun, and no window is due.

        `clock_ms`: the time now.
        `logged`: what an earlier attempt at the batch logged, if there was one; it stays the same.
        `previous`: the time of the batch before; None for the first one.
        `has_tuples`: whether a spout has something for the batch.
        `is_begun`: whether the log has part of its definition, so that the batch will run; its time may have been lost.
        `may_begin_again`: whether time begins again with the batch if it is ahead of the clock.
        """
        if logged is not None:
            now, again = logged["now"], "begins_again" in logged
        else:
            again = may_begin_again and self.ahead(clock_ms, previous)
            if not (has_tuples or is_begun or again or self._is_due(clock_ms, previous)):
                return None
            now = clock_ms if previous is None or again else max(clock_ms, previous["now"])
        first, *behind = self._brought(now, None if has_tuples or again else previous)
        behind_levels = {"levels": behind} if behind else {}
        return {"now": now, "tuples_at": first, **behind_levels, **({"begins_again": True} if again else {})}

    @staticmethod
    def ahead(clock_ms: int, time: Mapping[str, Any] | None) -> bool:
        """Whether the time of a batch is so far ahead of the clock that a clock must have been wrong."""
        return time is not None and time["now"] - clock_ms > _AHEAD_MS

    def _is_due(self, clock_ms: int, previous: Mapping[str, Any] | None) -> bool:
        """Whether a window with tuples ended since the batch before, as far as the times of batches show, or a timer is due."""
        if previous is None:
            return False
        return previous.get(_TIMERS, clock_ms + 1) <= clock_ms or any(self._fires(clock_ms, previous))

    def _fires(self, now: int, previous: Mapping[str, Any]) -> list[bool]:
        """Return by level whether a window with tuples ended since the batch before."""
        return [
            self._ends(level, now, previous["now"], at)
            for level, at in zip(self._levels, self._reached(previous), strict=True)
        ]

    def _brought(self, now: int, previous: Mapping[str, Any] | None) -> list[int]:
        """Return what `_reached` returns after a batch at `now`; None: it may bring tuples to all levels."""
        if previous is None:
            return [now] * len(self._levels)
        first, *behind = self._reached(previous)
        may_fire = (
            None in level or fired for level, fired in zip(self._levels, self._fires(now, previous), strict=True)
        )
        return [first, *(now if fired else at for fired, at in zip(may_fire, behind, strict=False))]

    def _reached(self, previous: Mapping[str, Any]) -> list[int]:
        """Return by level the time of the last batch that may have brought tuples to its windows."""
        at, more = int(previous.get("tuples_at", previous["now"])), len(self._levels) - 1
        return [at, *([*previous.get("levels", ()), *[at] * more][:more])]

    @staticmethod
    def _ends(level: Iterable[Grid | None], now: int, before: int, at: int) -> bool:
        grids = (grid for grid in level if grid is not None)
        return any(
            (grid.reached(before) // grid.slide + 1) * grid.slide
            <= min(grid.reached(now), int(grid.places(np.array([at]))[0]) + grid.length)
            for grid in grids
        )


def with_timers(definitions: Mapping[str, Any], timers: Sequence[int]) -> Mapping[str, Any]:
    """Return the definitions of a batch that is committed, with the time before which no timer is due."""
    return {**definitions, TIME: {**definitions[TIME], _TIMERS: min(timers)}}
