"""What a pass over a fragment counts: rows and nanoseconds, as whole numbers in one list for each fragment.

A small batch takes a tenth of a millisecond, so nothing is named here. `trident/runtime/figures/figure_names.py` knows what
each number means.

::

    [ROWS, NS,  rows and nanoseconds of the first step, … of the last step,  … of the first sink, … of the last sink]

`ROWS` are those that the entry gave, `NS` is how long the whole pass took, with the entry's own work. A step counts the rows
that it gave. Dead letters that come back are rows that no operation gave; they are counted apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import add

__all__ = ["EACH", "HEAD", "NS", "ROWS", "Figures", "add_figures"]

ROWS, NS = 0, 1
HEAD = EACH = 2
"""How many numbers there are before those of the first step, and of each step and sink."""

Figures = Mapping[str, list[int]]
"""By entry, what was counted."""


def add_figures(total: dict[str, list[int]], more: Figures) -> None:
    """Add the figures of fragments, by entry. The lists of `more` stay as they are."""
    for entry, figures in more.items():
        before = total.get(entry)
        total[entry] = figures if before is None else list(map(add, before, figures))
