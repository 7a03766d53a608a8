"""Requests to a server: long lists are cut to what it accepts, and a call is tried again with growing pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_DOUBLED = 30
"""The failures after which a pause no longer grows, whatever `max_backoff_s`, because its computation would overflow."""

_SHORTEST_PAUSE_S = 0.01


@dataclass(frozen=True)
class Retries:
    """How often a call is tried again, and the pauses before each try; each is twice as long as the last, with jitter.

    Attributes
    ----------
    retries
        Tries after the first one; 0: none.
    backoff_s, max_backoff_s
        The first pause, and the longest.
    """

    retries: int
    backoff_s: float
    max_backoff_s: float

    def run(
        self,
        attempt: Callable[[], T],
        transient: type[Exception] | tuple[type[Exception], ...],
        goes_on: Callable[[Exception, int, float], bool] | None = None,
    ) -> T:
        """Call `attempt` until it returns; raise the last error when the tries are used up.

        Parameters
        ----------
        transient
            The errors after which another try makes sense. All others are raised at once.
        goes_on
            Decides in place of `retries`: `(error, failures, seconds waited so far) -> another try`.
        """
        failures, waited_s = 0, 0.0
        while True:
            try:
                return attempt()
            except transient as error:
                failures += 1
                again = failures <= self.retries if goes_on is None else goes_on(error, failures, waited_s)
                if not again:
                    raise
            pause_s = self.pause_s(failures)
            time.sleep(pause_s)
            waited_s += pause_s

    def pause_s(self, failures: int) -> float:
        """Return how long to wait after so many failures: half to all of the doubled pause, so that callers spread out."""
        longest: float = min(self.backoff_s * 2 ** min(failures - 1, _DOUBLED), self.max_backoff_s)
        return max(longest * random.uniform(0.5, 1.0), _SHORTEST_PAUSE_S)


def by_count(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Cut a list into slices of at most `most` items, in order."""
    return (items[start : start + most] for start in range(0, len(items), most))


def by_size(items: Sequence[T], sizes: Iterable[int], most: int, room: int) -> Iterator[Sequence[T]]:
    """Cut a list into chunks of at most `most` items and `room` bytes, in order; a larger item goes alone.

    Parameters
    ----------
    sizes
        The bytes of each item.
    """
    measured = list(sizes)
    if sum(measured) <= room:
        yield from by_count(items, most)
        return
    start = used = 0
    for at, size in enumerate(measured):
        if at > start and (at - start == most or used + size > room):
            yield items[start:at]
            start, used = at, 0
        used += size
    yield items[start:]
