"""Consumers that stay open between the batches of a process, by their settings."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

_IDLE_S = 30.0


class Closeable(Protocol):
    """What a pool keeps."""

    def close(self) -> None:
        """Release everything."""

    def rest(self) -> None:
        """It was not used for a while: stop what costs anything meanwhile."""


T = TypeVar("T", bound=Closeable)


class Pool:
    """Lends objects that are costly to open; who borrows one has it alone. Idle ones are closed after a while.

    `idle_s`: after so many seconds.
    """

    def __init__(self, idle_s: float = _IDLE_S) -> None:
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._idle: list[tuple[str, Closeable, float]] = []
        self._timer: threading.Timer | None = None
        atexit.register(self.close)

    @contextmanager
    def borrow(self, key: str, make: Callable[[], T]) -> Iterator[T]:
        """Lend an object; after an error it is closed, because its state is not known."""
        lent = self._take(key) or make()
        try:
            yield lent  # type: ignore[misc]  # what is pooled under a key was made for it
        except BaseException:
            lent.close()
            raise
        with self._lock:
            self._idle.append((key, lent, time.monotonic()))
            self._watch()

    def close(self, key: str | None = None) -> None:
        """Close all idle objects, or one key's."""
        self._close_if(lambda of, since: key is None or of == key)

    @property
    def idle(self) -> int:
        """How many objects are open and not lent."""
        return len(self._idle)

    def _take(self, key: str) -> Closeable | None:
        with self._lock:
            for at in reversed(range(len(self._idle))):
                if self._idle[at][0] == key:
                    return self._idle.pop(at)[1]
        return None

    def _close_if(self, due: Callable[[str, float], bool]) -> None:
        with self._lock:
            closing = [one for of, one, since in self._idle if due(of, since)]
            self._idle = [each for each in self._idle if not due(each[0], each[2])]
            if self._timer is not None and not self._idle:
                self._timer.cancel()
                self._timer = None
        for one in closing:
            one.close()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._idle_s / 4, self._sweep)
            self._timer.daemon = True
            self._timer.start()

    def _sweep(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._timer = None
            for _, one, since in self._idle:
                if now - since >= self._idle_s / 4:
                    one.rest()
        self._close_if(lambda of, since: now - since >= self._idle_s)
        with self._lock:
            if self._idle:
                self._watch()
