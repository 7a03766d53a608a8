"""Keeps Python's cycle collector from running while many small objects are made of which none refers to another."""

from __future__ import annotations

import gc
import threading
from types import TracebackType

__all__ = ["CollectorPause"]


class CollectorPause:
    """Pauses the collector inside of it, in all threads; a third of the time of reading messages would be its own.

    Several threads may be inside at once: the last one to leave turns it on again, if it was on before the first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside, self._was_on = 0, False

    def __enter__(self) -> None:
        """Turn the collector off."""
        with self._lock:
            if not self._inside:
                self._was_on = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Turn it on again."""
        with self._lock:
            self._inside -= 1
            if not self._inside and self._was_on:
                gc.enable()
