"""What windows are, in plain Python that keeps everything and looks through all of it: what the tests compare with."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trident.operations import SessionWindow, WindowConfig

Row = tuple[str, int, int | None]
"""Key, number, event time in milliseconds."""

Fired = tuple[Any, ...]
"""Key (None of the whole stream), start, end, and the numbers, in ordinates."""


def model_of(config: WindowConfig, grouped: bool) -> "WindowModel | SessionModel":
    return SessionModel(config) if isinstance(config, SessionWindow) else WindowModel(config, grouped)


@dataclass
class WindowModel:
    """One window over a stream of rows; fed each committed batch once."""

    config: WindowConfig
    grouped: bool
    kept: list[tuple[str | None, int, int]] = field(default_factory=list)  # key, ordinate, number
    frontier: int | None = None
    late_rows: list[Row] = field(default_factory=list)
    nowhere: int = 0

    def take(self, rows: Sequence[Row], now: int) -> list[Fired]:
        if self.config.counts and self.grouped:
            return self._per_key(rows)
        before, new = self.frontier, self._ordinates(rows, now)
        new = [row for row in new if not self._is_late(row[1], before)]
        self.kept += new
        after = self.frontier
        if after is None:
            return []
        given = (end for _, at, _ in self.kept for end in self._ends(at))
        ends = {end for end in given if end <= after and (before is None or end > before)}
        if before is not None and self._lateness:
            ends |= {end for _, at, _ in new for end in self._ends(at) if end <= before < end + self._lateness}
        return [fired for end in sorted(ends) for fired in self._window(end)]

    def begin_again(self) -> list[Fired]:
        """Return all that was not given, and keep nothing."""
        before = self.frontier
        ends = {end for _, at, _ in self.kept for end in self._ends(at) if before is None or end > before}
        fired = [fired for end in sorted(ends) for fired in self._window(end)]
        self.kept, self.frontier = [], None
        return fired

    @property
    def _lateness(self) -> int:
        return self.config.event_time.lateness_ms if self.config.event_time else 0

    def _ends(self, at: int) -> range:
        slide = self.config.slide
        return range((at // slide + 1) * slide, at + self.config.length + 1, slide)

    def _is_late(self, at: int, before: int | None) -> bool:
        return before is not None and all(end + self._lateness <= before for end in self._ends(at))

    def _ordinates(self, rows: Sequence[Row], now: int) -> list[tuple[str | None, int, int]]:
        if self.config.counts:
            first = self.frontier or 0
            self.frontier = first + len(rows)
            ats: list[int | None] = list(range(first, self.frontier))
        elif self.config.event_time is None:
            self.frontier = now
            ats = [now] * len(rows)
        else:
            ats = [at for _, _, at in rows]
            watermark = max((at for at in ats if at is not None), default=None)
            if watermark is not None:
                watermark -= self.config.event_time.delay_ms
                before = self.frontier
                self.frontier = watermark if before is None else max(before, watermark)
                self.late_rows += [row for row in rows if row[2] is not None and self._is_late(row[2], before)]
            self.nowhere += ats.count(None)
        return [
            (key if self.grouped else None, at, number)
            for (key, number, _), at in zip(rows, ats, strict=True)
            if at is not None
        ]

    def _window(self, end: int) -> list[Fired]:
        start = end - self.config.length
        rows = [(key, number) for key, at, number in self.kept if start <= at < end]
        first = max(start, 0) if self.config.counts else start
        return [(key, first, end, [n for k, n in rows if k == key]) for key in dict.fromkeys(key for key, _ in rows)]

    def _per_key(self, rows: Sequence[Row]) -> list[Fired]:
        fired: list[Fired] = []
        for name, number, _ in rows:
            mine = [kept for kept in self.kept if kept[0] == name]
            self.kept.append((name, len(mine), number))
            count = len(mine) + 1
            if count % self.config.slide == 0:
                first = max(0, count - self.config.length)
                fired.append((name, first, count, [kept[2] for kept in mine[first:]] + [number]))
        return fired


@dataclass
class SessionModel:
    """The sessions of each key; fed each committed batch once."""

    config: SessionWindow
    kept: list[Row] = field(default_factory=list)
    watermark: int | None = None
    late_rows: list[Row] = field(default_factory=list)
    nowhere: int = 0

    def take(self, rows: Sequence[Row], now: int) -> list[Fired]:
        before = self.watermark
        self.nowhere += sum(at is None for *_, at in rows)
        self.kept += [row for row in rows if row[2] is not None]
        latest = max((at for *_, at in rows if at is not None), default=None)
        if latest is not None:
            assert self.config.event_time is not None
            latest -= self.config.event_time.delay_ms
            self.watermark = latest if before is None else max(before, latest)
        fired, open_ones = [], []
        for session in sessions_in(self.kept, self.config.length):
            end = (session[-1][2] or 0) + self.config.length
            if before is not None and end < before:
                self.late_rows += session
            elif self.watermark is not None and end < self.watermark:
                fired.append((session[0][0], session[0][2], session[-1][2], [number for _, number, _ in session]))
            else:
                open_ones += session
        self.kept = open_ones
        return sorted(fired, key=lambda one: one[2])


def sessions_in(rows: Sequence[Row], gap: int) -> list[list[Row]]:
    found: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: (row[0], row[2])):
        if found and found[-1][-1][0] == row[0] and (row[2] or 0) - (found[-1][-1][2] or 0) <= gap:
            found[-1].append(row)
        else:
            found.append([row])
    return found
