"""Which rows of two sides meet: the same key, and times that lie close enough; found in columns, without a loop over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trident.runtime.steps.groups import Ints

__all__ = ["Timed", "pairs"]


class Timed(NamedTuple):
    """Rows of a side: the number of each one's key, and its time in microseconds (int64, one per row)."""

    ids: Ints
    at: Ints

    def take(self, rows: Ints) -> Timed:
        """Return some of them."""
        return Timed(self.ids[rows], self.at[rows])


def pairs(left: Timed, right: Timed, earliest: int, latest: int, check: Callable[[int], None]) -> tuple[Ints, Ints]:
    """Return the rows that meet: `earliest <= right time - left time <= latest`, and the same key.

    Parameters
    ----------
    check
        Called with the number of pairs before they are made; may raise.

    Returns
    -------
    tuple
        int64, one per pair: the number of the left row, ascending, and that of the right row, by time for each left one.
    """
    if not len(left.ids) or not len(right.ids):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.lexsort((right.at, right.ids))
    # Times become their ranks, so that key and time fit into one number.
    times, ranks = np.unique(np.concatenate([right.at, left.at + earliest, left.at + latest]), return_inverse=True)
    of_right, lows, highs = np.split(ranks.astype(np.int64), [len(right.at), len(right.at) + len(left.at)])
    codes = (right.ids * len(times) + of_right)[order]
    first = np.searchsorted(codes, left.ids * len(times) + lows, "left")
    counts = np.searchsorted(codes, left.ids * len(times) + highs, "right") - first
    total = int(counts.sum())
    check(total)
    rows = np.repeat(np.arange(len(left.ids)), counts)
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, order[first[rows] + within]
