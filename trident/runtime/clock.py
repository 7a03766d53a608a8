"""The time of the driver; an object of its own, so that tests can replace it."""

from __future__ import annotations

import time


class Clock:
    """The time of this machine."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""
        return time.monotonic()

    def cpu(self) -> float:
        """Seconds that the calling thread has computed."""
        return time.thread_time()

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(time.time() * 1000)
