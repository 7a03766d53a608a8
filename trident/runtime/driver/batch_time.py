"""The time of a batch, as windows by time see it: a part of the batch's definition, so a replay has the same.

It is logged under the name `$time`, as the definition of a transactional spout is: `{"now": ms}` before the batch is
processed, and with the commit `tuples_at` too, the time of the last batch that had tuples. It never goes back. Windows
behind windows get tuples without a spout's: `levels` has the time of the last batch that may have brought them some.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trident.graph import WindowNode
from trident.planner import Plan
from trident.runtime.windows.grid import Grid

__all__ = ["TIME", "BatchTime", "now_of"]

TIME = "$time"
"""Where the log has it among the spouts; no stream can have this name."""


class BatchTime:
    """Says what time a batch has, and whether time alone is a reason for one."""

    def __init__(self, *levels: Iterable[Grid]) -> None:
        self._levels = [tuple(grids) for grids in levels]

    @staticmethod
    def of(plan: Plan) -> BatchTime | None:
        """Return the time of a plan's batches; None if no window goes by it."""
        windows = [node for node in plan.commits if isinstance(node, WindowNode) and node.config.by_batch_time]
        if not windows:
            return None
        behind: dict[str, int] = {}  # how many windows by the time of the batch are before a node, on the longest way
        levels: list[list[Grid]] = []
        for node in plan.commits:  # each after all that it gets tuples of
            level = behind.get(node.id, 0)
            if node in windows:
                levels.extend([] for _ in range(level + 1 - len(levels)))
                levels[level].append(Grid.of(node.config))
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
    ) -> dict[str, Any] | None:
        """Return the time of the next batch; None if it has no tuples, is not begun, and no window is due.

        Parameters
        ----------
        clock_ms
            The time now.
        logged
            What an earlier attempt at the batch logged, if there was one: it stays so.
        previous
            The time of the batch before; None for the first one.
        has_tuples
            Whether a spout has something for the batch.
        is_begun
            Whether the log has part of its definition, so that it will be run: the time may have been lost.
        """
        if logged is None and not (has_tuples or is_begun) and not self._is_due(clock_ms, previous):
            return None
        earlier = clock_ms if previous is None else previous["now"]
        now = max(clock_ms, earlier) if logged is None else logged["now"]
        reached = self._reached(previous)
        if has_tuples or previous is None:
            reached = [now] * len(self._levels)
        else:
            fires = [
                self._ends(level, now, previous["now"], at) for level, at in zip(self._levels, reached, strict=True)
            ]
            reached[1:] = [now if before else at for before, at in zip(fires, reached[1:], strict=False)]
        first, *behind = reached
        return {"now": now, "tuples_at": first, **({"levels": behind} if behind else {})}

    def _is_due(self, clock_ms: int, previous: Mapping[str, Any] | None) -> bool:
        """Whether a window ended since the batch before that has tuples in it, as far as the time of batches tells."""
        if previous is None:
            return False
        return any(
            self._ends(level, clock_ms, previous["now"], at)
            for level, at in zip(self._levels, self._reached(previous), strict=True)
        )

    def _reached(self, previous: Mapping[str, Any] | None) -> list[int]:
        """By level, the time of the last batch that may have brought tuples to its windows."""
        if previous is None:
            return []
        at, more = _tuples_at(previous), len(self._levels) - 1
        return [at, *([*previous.get("levels", ()), *[at] * more][:more])]

    @staticmethod
    def _ends(level: Iterable[Grid], now: int, before: int, at: int) -> bool:
        return any((before // grid.slide + 1) * grid.slide <= min(now, at + grid.length) for grid in level)


def now_of(definitions: Mapping[str, Any]) -> int | None:
    """Return the time of a batch from all of its definitions; None if it has none."""
    return definitions[TIME]["now"] if TIME in definitions else None


def _tuples_at(definition: Mapping[str, Any]) -> int:
    return int(definition.get("tuples_at", definition["now"]))
