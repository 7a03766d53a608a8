"""A chart of lines as SVG, from rows (series, x, y): axes by decades or from zero, a legend, and a caption."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[str, float, float]

_WIDTH, _HEIGHT, _LEFT, _TOP, _BESIDE = 760, 380, 80, 50, 190
_COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a", "#bf3989", "#0a3069")


@dataclass(frozen=True)
class Chart:
    """What stands around the lines: `across` and `up` name the axes, those of `decades` ("x", "y", "xy") are logarithmic."""

    title: str
    across: str
    up: str
    decades: str = ""


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    by_decade: bool

    @classmethod
    def of(cls, values: Sequence[float], by_decade: bool) -> _Axis:
        if not by_decade:
            return cls(0.0, _rounded_up(max(values) or 1.0), False)
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1), True)

    def share(self, value: float) -> float:
        at = math.log10(value) if self.by_decade else value
        return (at - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.by_decade:
            return [10.0**exponent for exponent in range(int(self.low), int(self.high) + 1)]
        return [self.high * fifth / 5 for fifth in range(6)]


def _rounded_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value)


def drawn(chart: Chart, points: Sequence[Point], caption: Sequence[str]) -> str:
    """Return the SVG of points, a line for each series in the order in which they come first; below are lines of text."""
    x = _Axis.of([point[1] for point in points], "x" in chart.decades)
    y = _Axis.of([point[2] for point in points], "y" in chart.decades)
    parts = [f'<text x="{_LEFT}" y="24" font-size="16" font-weight="bold">{escape(chart.title)}</text>']
    for tick in x.ticks():
        at = _across(x, tick)
        parts.append(f'<path d="M{at:.1f},{_TOP}V{_HEIGHT - 70}" stroke="#e6e6e6"/>')
        parts.append(f'<text x="{at:.1f}" y="{_HEIGHT - 52}" text-anchor="middle">{_short(tick)}</text>')
    for tick in y.ticks():
        at = _up(y, tick)
        parts.append(f'<path d="M{_LEFT},{at:.1f}H{_WIDTH - _BESIDE}" stroke="#e6e6e6"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 28}">{escape(chart.across)}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_TOP - 8}">{escape(chart.up)}</text>')
    for at, series in enumerate(dict.fromkeys(point[0] for point in points)):
        parts += _line(series, _COLOURS[at % len(_COLOURS)], at, [p for p in points if p[0] == series], (x, y))
    for at, line in enumerate(caption):
        parts.append(f'<text x="{_LEFT}" y="{_HEIGHT + 12 + at * 14}" font-size="10" fill="#777">{escape(line)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT + 40}" font-family="sans-serif" '
        f'font-size="12" fill="#333"><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _line(series: str, colour: str, at: int, points: Sequence[Point], axes: tuple[_Axis, _Axis]) -> list[str]:
    places = [(_across(axes[0], point[1]), _up(axes[1], point[2])) for point in sorted(points, key=lambda p: p[1])]
    path = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
    beside, top = _WIDTH - _BESIDE + 12, _TOP + 10 + at * 20
    dots = [f'<circle cx="{left:.1f}" cy="{top:.1f}" r="2.5" fill="{colour}"/>' for left, top in places[:40]]
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(dots if len(places) <= 40 else []),
        f'<path d="M{beside},{top - 4}h16" stroke="{colour}" stroke-width="3"/>',
        f'<text x="{beside + 22}" y="{top}">{escape(series)}</text>',
    ]


def _across(axis: _Axis, value: float) -> float:
    return _LEFT + axis.share(value) * (_WIDTH - _BESIDE - _LEFT)


def _up(axis: _Axis, value: float) -> float:
    return _HEIGHT - 70 - axis.share(value) * (_HEIGHT - 70 - _TOP)


def _short(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:.3g}"
