"""The time of a batch, as windows by time see it: a part of the batch's definition, so a replay has the same.

It is logged under the name `$time`, as the definition of a transactional spout is: `{"now": ms}` before the batch is
processed, and with the commit `tuples_at` too, the time of the last batch that had tuples. It never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trident.graph import WindowNode
from trident.planner import Plan
from trident.runtime.window_grid import Grid

__all__ = ["TIME", "BatchTime", "now_of"]

TIME = "$time"
"""Where the log has it among the spouts; no stream can have this name."""


class BatchTime:
    """Says what time a batch has, and whether time alone is a reason for one."""

    def __init__(self, grids: Iterable[Grid]) -> None:
        self._grids = tuple(grids)

    @staticmethod
    def of(plan: Plan) -> BatchTime | None:
        """Return the time of a plan's batches; None if no window goes by it."""
        windows = (node for node in plan.commits if isinstance(node, WindowNode))
        grids = [Grid.of(node.config) for node in windows if node.config.by_batch_time]
        return BatchTime(grids) if grids else None

    def define(
        self, clock_ms: int, logged: Mapping[str, Any] | None, previous: Mapping[str, Any] | None, has_tuples: bool
    ) -> dict[str, int] | None:
        """Return the time of the next batch; None if it has no tuples and no window is due.

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
        """
        if logged is None and not has_tuples and not self._is_due(clock_ms, previous):
            return None
        earlier = clock_ms if previous is None else previous["now"]
        now = max(clock_ms, earlier) if logged is None else logged["now"]
        return {"now": now, "tuples_at": now if has_tuples or previous is None else _tuples_at(previous)}

    def _is_due(self, clock_ms: int, previous: Mapping[str, Any] | None) -> bool:
        """Whether a window ended since the batch before that has tuples in it, as far as the time of batches tells."""
        if previous is None:
            return False
        at = _tuples_at(previous)
        for grid in self._grids:
            end = (previous["now"] // grid.slide + 1) * grid.slide
            if end <= min(clock_ms, at + grid.length):
                return True
        return False


def now_of(definitions: Mapping[str, Any]) -> int | None:
    """Return the time of a batch from all of its definitions; None if it has none."""
    return definitions[TIME]["now"] if TIME in definitions else None


def _tuples_at(definition: Mapping[str, Any]) -> int:
    return int(definition.get("tuples_at", definition["now"]))
