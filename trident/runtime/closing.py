"""Closes what a topology opened: in a fixed order, each thing once, and all of it even if something raises."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

Close = Callable[[], Any]

# Threads before what they use. Spouts early, because a thread may wait for its feed. The log last, because its claim keeps
# other drivers away until everything else is closed.
_ORDER = ("processing", "drpc", "committing", "spouts", "partitions", "operations", "views", "states", "runner", "log")


class Closers:
    """Everything that was opened so far; it is closed by kind, in the order above."""

    def __init__(self, topology: str) -> None:
        self._topology = topology
        self._by_kind: dict[str, deque[Close]] = {kind: deque() for kind in _ORDER}

    def add(self, kind: str, *closers: Close) -> None:
        """Note how something that was just opened is closed."""
        self._by_kind[kind].extend(closers)

    def close(self, *kinds: str) -> None:
        """Close all, or some kinds only. Each thing is closed once, by the first thread that asks; errors are logged."""
        for kind in kinds or _ORDER:
            while (close := self._next(kind)) is not None:
                try:
                    close()
                except Exception:
                    logger.exception("topology %s: closing failed", self._topology)

    def _next(self, kind: str) -> Close | None:
        try:
            return self._by_kind[kind].popleft()  # atomic: two threads may close at once
        except IndexError:
            return None
