"""Where the boxes of a drawing stand: in given columns from left to right, in rows that keep arrows short."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

Point = tuple[int, float]
_BESIDE_ARROW = 0.6


class Layout(NamedTuple):
    """Columns and rows.

    `places`: the column and the row of each box.
    `ways`: by edge, the points in the columns between its ends: nothing stands there.
    """

    places: Mapping[str, Point]
    ways: Mapping[tuple[str, str], list[Point]]


def laid_out(columns: Mapping[str, int], edges: Iterable[tuple[str, str]]) -> Layout:
    """Return places for boxes whose columns are known; each box stands beside those that lead to it, if there is room.

    An edge that passes columns keeps a place free in each of them.
    """
    ways = {
        (source, target): [(source, target, column) for column in range(columns[source] + 1, columns[target])]
        for source, target in edges
    }
    column_of: dict[Hashable, int] = dict(columns.items())
    column_of |= {step: step[2] for way in ways.values() for step in way}
    before: dict[Hashable, list[Hashable]] = {}
    for (source, target), way in ways.items():
        chain: list[Hashable] = [source, *way, target]
        for one, other in pairwise(chain):
            before.setdefault(other, []).append(one)
    rows: dict[Hashable, float] = {}
    for column in sorted(set(column_of.values())):
        there = [each for each, its in column_of.items() if its == column]
        rows |= _rows({each: _wanted(before.get(each, ()), rows) for each in there}, set(columns))
    return Layout(
        {box: (column, rows[box]) for box, column in columns.items()},
        {edge: [(step[2], rows[step]) for step in way] for edge, way in ways.items()},
    )


def _wanted(before: Iterable[Hashable], rows: Mapping[Hashable, float]) -> float:
    known = [rows[each] for each in before if each in rows]
    return sum(known) / len(known) if known else math.inf


def _rows(wanted: Mapping[Hashable, float], boxes: set[str]) -> dict[Hashable, float]:
    """Return rows from top to bottom, as near to what is wanted as the ones above allow."""
    rows: dict[Hashable, float] = {}
    least, above = 0.0, False
    for each in sorted(wanted, key=lambda each: wanted[each]):
        is_box = each in boxes
        if rows:
            least += 1 if is_box and above else _BESIDE_ARROW
        least = least if wanted[each] == math.inf else max(least, wanted[each])
        rows[each], above = least, is_box
    return rows
