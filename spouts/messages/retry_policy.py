"""When a message that failed is emitted again, and when it is given up: the policy, and the messages that wait."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from trident.errors import ConfigError

T = TypeVar("T")
_DEFAULT_LIMIT = 10


@dataclass(frozen=True)
class RetryPolicy:
    """How often, and after which pauses, a message is tried again.

    `max_failures`: after so many failures a message is given up. None: never, unless there is a place for dead letters; then
    after 10.
    `first_pause_s`, `longest_pause_s`: seconds before the first retry; each further pause is twice as long, up to the longest.
    `dead_letters`: the stream or topic that gets what is given up. None: the log gets it.
    """

    max_failures: int | None = None
    first_pause_s: float = 0.2
    longest_pause_s: float = 60.0
    dead_letters: str | None = None

    def __post_init__(self) -> None:
        """Check each value."""
        if self.max_failures is not None and (not isinstance(self.max_failures, int) or self.max_failures < 1):
            raise ConfigError(
                f"max_failures={self.max_failures!r}: give a whole number of at least 1, or None (no limit)"
            )
        if not 0 < self.first_pause_s <= self.longest_pause_s:
            raise ConfigError(
                f"first_pause_s={self.first_pause_s!r}, longest_pause_s={self.longest_pause_s!r}: give seconds above 0, the "
                "longest pause no shorter than the first"
            )
        if self.dead_letters is not None and (not isinstance(self.dead_letters, str) or not self.dead_letters):
            raise ConfigError(f"dead_letters={self.dead_letters!r}: give the name of a place for dead letters, or None")

    @property
    def limit(self) -> int | None:
        """The number of failures after which a message is given up; None: it never is."""
        if self.max_failures is None and self.dead_letters is not None:
            return _DEFAULT_LIMIT
        return self.max_failures

    def gives_up(self, failures: int) -> bool:
        """Whether a message with so many failures is given up."""
        return self.limit is not None and failures >= self.limit

    def pause_s(self, failures: int) -> float:
        """Return how many seconds a message waits after its n-th failure, from 1."""
        doublings = min(max(failures, 1) - 1, 60)
        return min(self.longest_pause_s, self.first_pause_s * 2.0**doublings)


class DueTimes(Generic[T]):
    """Things that are due at some moment each. Those of the same moment keep their order."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[T]:
        return (thing for _, _, thing in self._heap)

    def add(self, thing: T, due: float) -> None:
        """Have a thing wait until `due`."""
        heapq.heappush(self._heap, (due, next(self._numbers), thing))

    def pop_due(self, now: float) -> T | None:
        """Take out what has been due for the longest time; None if nothing is due yet."""
        if not self._heap or self._heap[0][0] > now:
            return None
        return heapq.heappop(self._heap)[2]
