"""The time, as the driver sees it: a seam, so that tests move it by hand."""

from __future__ import annotations

import time

__all__ = ["Clock"]


class Clock:
    """The time of this machine."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(time.time() * 1000)
