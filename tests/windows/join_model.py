"""What a join over time is, in plain Python that compares each row with each: what the tests compare with."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from trident import JoinType

Row = tuple[Any, int, int | None]
"""Key, number, time in milliseconds."""


@dataclass
class JoinModel:
    """A join of two streams, fed each committed batch once. Times are in milliseconds; `outer`: what may be missing."""

    earliest: int
    latest: int
    delays: tuple[int, int] = (0, 0)
    outer: tuple[bool, bool] = (False, False)
    watermarks: list[int | None] = field(default_factory=lambda: [None, None])
    # key, number, time, met, alone
    rows: tuple[list[list[Any]], list[list[Any]]] = field(default_factory=lambda: ([], []))
    late: int = 0
    timeless: int = 0

    def take(self, sides: Sequence[Sequence[Row]]) -> list[tuple[Any, ...]]:
        """Return what a batch gives: key, number and time of the left row, and of the right one."""
        before = list(self.watermarks)
        starts = [len(rows) for rows in self.rows]
        for side, came in enumerate(sides):
            for key, number, at in came:
                self._take(side, key, number, at, before[side])
        joined = [
            self._meet(left, right)
            for a, left in enumerate(self.rows[0])
            for b, right in enumerate(self.rows[1])
            if (a >= starts[0] or b >= starts[1]) and left[0] == right[0] is not None
            if self.earliest <= right[2] - left[2] <= self.latest
        ]
        return joined + [row for side in (0, 1) for row in self._alone(side)]

    def _take(self, side: int, key: Any, number: int, at: int | None, watermark: int | None) -> None:
        if at is None:
            self.timeless += 1
            return
        reached, moved = at - self.delays[side], self.watermarks[side]
        self.watermarks[side] = reached if moved is None else max(moved, reached)
        if watermark is not None and at < watermark:
            self.late += 1
        else:
            self.rows[side].append([key, number, at, False, False])

    def _meet(self, left: list[Any], right: list[Any]) -> tuple[Any, ...]:
        assert not left[4], "a row that came alone meets none"
        assert not right[4], "a row that came alone meets none"
        left[3] = right[3] = True
        return (*left[:3], *right[1:3])

    def _alone(self, side: int) -> list[tuple[Any, ...]]:
        """Rows that can meet no other row any more, and have met none."""
        if not self.outer[1 - side]:
            return []
        watermark, found = self.watermarks[1 - side], []
        for row in self.rows[side]:
            end = row[2] + (self.latest if side == 0 else -self.earliest)
            if not row[3] and not row[4] and (row[0] is None or (watermark is not None and end < watermark)):
                row[4] = True
                found.append((*row[:3], None, None) if side == 0 else (row[0], None, None, *row[1:3]))
        return found


MS = timedelta(milliseconds=1)
INNER, OUTER = JoinType.INNER, JoinType.OUTER
CASES: dict[str, tuple[Any, Any, tuple[JoinType, JoinType]]] = {
    "both outer": (5 * MS, 3 * MS, (OUTER, OUTER)),
    "inner": (5 * MS, 3 * MS, (INNER, INNER)),
    "left outer": ((0 * MS, 8 * MS), 2 * MS, (INNER, OUTER)),
    "full outer": ((-6 * MS, 2 * MS), (0 * MS, 4 * MS), (OUTER, OUTER)),
    "same time": (0 * MS, 10 * MS, (OUTER, INNER)),
    "later only": ((3 * MS, 5 * MS), 0 * MS, (INNER, OUTER)),
}
"""What `join_within` is given: `within`, `delay`, and the types of the join."""


def model_of(within: Any, delay: Any, types: Any) -> JoinModel:
    bounds = (-within, within) if isinstance(within, timedelta) else within
    delays = (delay, delay) if isinstance(delay, timedelta) else delay
    outer = (types[0] is OUTER, types[1] is OUTER)
    return JoinModel(bounds[0] // MS, bounds[1] // MS, (delays[0] // MS, delays[1] // MS), outer)
