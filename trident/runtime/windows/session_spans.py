"""Which rows are in one session: times of a key that are no more than a gap apart; without a loop over rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trident.runtime.steps.key_columns import Ints


class Spans(NamedTuple):
    """Rows, or sessions: the number of each one's key, its first and its last time (int64, one each)."""

    keys: Ints
    starts: Ints
    lasts: Ints


def sessions_of(rows: Spans, gap: int) -> tuple[Ints, Spans]:
    """Put rows together to sessions.

    Returns
    -------
    tuple
        The number of the session of each row (int64, one per row), and the sessions: by key, and of a key by time.
    """
    order = np.lexsort((rows.starts, rows.keys))
    keys, starts, lasts = (column[order] for column in rows)
    # A row may end before the one in front of it, so it is the latest end so far that counts. Times become their ranks, so that
    # key and time fit into one number, and no key goes on with the latest end of another.
    times, ranks = np.unique(lasts, return_inverse=True)
    latest = times[np.maximum.accumulate(keys * len(times) + ranks) % len(times)]
    begins = np.ones(len(keys), bool)
    begins[1:] = (keys[1:] != keys[:-1]) | (starts[1:] - latest[:-1] > gap)
    numbers = np.empty(len(keys), np.int64)
    numbers[order] = np.cumsum(begins) - 1
    return numbers, Spans(keys[begins], starts[begins], latest[np.append(begins, True)[1:]])
