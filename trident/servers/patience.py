"""How requests to a server go on while it is away: `Patience` waits until it is back, `Retries` tries a call a few times."""

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from trident.errors import LogError, TridentError

T = TypeVar("T")
logger = logging.getLogger(__name__)

START_S = 10.0
STOP_S = 5.0
_SILENCE_S = 1.0
_SHORTEST_PAUSE_S = 0.01
_MOST_DOUBLED = 60  # times: more would be no number


@dataclass(frozen=True)
class Backoff:
    """The pauses after failures in a row: each is twice as long as the one before, up to the longest."""

    first_s: float
    longest_s: float

    def pause_s(self, failures: int) -> float:
        """Return how long to wait after the n-th failure, from 1."""
        return min(self.longest_s, self.first_s * 2.0 ** min(max(failures, 1) - 1, _MOST_DOUBLED))


AWAY = Backoff(0.1, 5.0)
"""Between two questions of a source to a server that is away."""
_BACKOFF = Backoff(0.05, 1.0)


class Patience:
    """How long requests to a server wait while it is away: `seconds` (None: those of a start), then `error` is raised."""

    def __init__(
        self, server: str, place: object, error: type[TridentError] = LogError, seconds: float | None = None
    ) -> None:
        self.server, self.seconds = server, START_S if seconds is None else seconds
        self._place, self.error = place, error
        self._stopping_since = math.inf
        self._waiting_since: float | None = None  # that it was said
        self._pauses = threading.Event()

    def stop(self) -> None:
        """From now on let each request wait for some seconds at most."""
        self._stopping_since = min(self._stopping_since, time.monotonic())
        self._pauses.set()  # the pause of now ends

    def run(self, request: Callable[[], T], is_away: Callable[[Exception], str | None]) -> T:
        """Return what `request` returns; it is called again while the server is away, so it may write nothing twice.

        `is_away`: what an error says if it is one of a server that is away; None for others.
        """
        since, failures = time.monotonic(), 0
        while True:
            try:
                result = request()
            except Exception as error:
                text = is_away(error)
                if text is None:
                    raise
                self.check(since, f": {text}", error)
            else:
                self.note_answer()
                return result
            failures += 1
            self._pauses.wait(_BACKOFF.pause_s(failures))
            self._pauses.clear()

    def check(self, since: float, why: str = "", error: Exception | None = None) -> None:
        """Raise the error if what has waited since then has waited enough; else say that it waits, once it is known why."""
        now = time.monotonic()
        if now - since > self.seconds or now - max(since, self._stopping_since) > STOP_S:
            self._waiting_since = None
            raise self.error(
                f"no answer from {self.server} at {self._place} for {now - since:.0f} seconds{why}"
            ) from error
        if self._waiting_since is None and (why or now - since > _SILENCE_S):
            self._waiting_since = since
            logger.warning("no answer from %s for %s; waiting until there is one%s", self.server, self._place, why)

    def note_answer(self) -> None:
        """Say that the server answers again, if it was said that it did not."""
        since, self._waiting_since = self._waiting_since, None
        if since is not None:
            logger.warning(
                "%s answers again for %s, after %.1f seconds", self.server, self._place, time.monotonic() - since
            )


@dataclass(frozen=True)
class Retries:
    """How often a call is tried again, and the pauses before each try: each twice as long as the last, with jitter."""

    retries: int  # tries after the first one
    backoff_s: float
    max_backoff_s: float

    def run(
        self,
        attempt: Callable[[], T],
        transient: type[Exception] | tuple[type[Exception], ...],
        goes_on: Callable[[Exception, int, float], bool] | None = None,
    ) -> T:
        """Call `attempt` until it returns; raise the last error when the tries are used up.

        `transient`: the errors after which another try makes sense; `goes_on` decides in place of `retries`, by an error, the
        failures and the seconds waited so far.
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
        longest_s = Backoff(self.backoff_s, self.max_backoff_s).pause_s(failures)
        return max(longest_s * random.uniform(0.5, 1.0), _SHORTEST_PAUSE_S)


def by_count(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Cut a list into slices of at most `most` items, in order."""
    return (items[start : start + most] for start in range(0, len(items), most))


def by_size(items: Sequence[T], sizes: Iterable[int], most: int, room: int) -> Iterator[Sequence[T]]:
    """Cut a list into chunks of at most `most` items and `room` bytes, in order; a larger item goes alone."""
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
