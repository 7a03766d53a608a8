"""The time of the driver; an object of its own, so that tests can replace it."""

from __future__ import annotations

import time


class Clock:
    """The time of this machine."""

    monotonic = staticmethod(time.monotonic)
    """Seconds from an arbitrary start, never going back. As it is, because each batch asks a dozen times."""

    cpu = staticmethod(time.thread_time)
    """Seconds that the calling thread has computed."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(time.time() * 1000)
